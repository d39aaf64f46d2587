"""Names of adapters, decided without a tensor."""

import math
from typing import Any

import pytest

from keepstep.plan.adapter import AdapterError, adapters_in, peft_names, plan_merge

LORA = {"lora_alpha": 8, "peft_type": "LORA"}
B = "base_model.model."


def test_names_lose_the_adapters_own_name() -> None:
    names = {
        f"{B}q.lora_A.mine.weight": f"{B}q.lora_A.weight",
        f"{B}q.lora_B.mine.weight": f"{B}q.lora_B.weight",
        f"{B}e.lora_embedding_A.mine": f"{B}e.lora_embedding_A",
        f"{B}q.lora_magnitude_vector.mine.weight": f"{B}q.lora_magnitude_vector",
        f"{B}head.modules_to_save.mine.0.weight": f"{B}head.0.weight",
    }
    assert peft_names(names, "mine", with_bias=False) == names
    both = [*names, f"{B}q.lora_A.other.weight"]
    assert peft_names(both, "mine", with_bias=False) == names
    assert adapters_in(both) == ["mine", "other"]


def test_biases_belong_to_it_where_they_are_trained_with_it() -> None:
    names = [f"{B}q.lora_A.mine.weight", f"{B}q.base_layer.bias"]
    assert f"{B}q.base_layer.bias" in peft_names(names, "mine", with_bias=True)
    with pytest.raises(AdapterError, match="part of no adapter"):
        peft_names(names, "mine", with_bias=False)


def test_what_is_no_adapter_is_said() -> None:
    with pytest.raises(AdapterError, match="no tensor of an adapter 'mine'"):
        peft_names([f"{B}q.lora_A.other.weight"], "mine", with_bias=False)
    with pytest.raises(AdapterError, match="no tensor of an adapter"):
        peft_names([f"{B}q.bias"], "mine", with_bias=True)


@pytest.mark.parametrize(
    ("config", "rank", "scaling"),
    [
        ({}, 4, 2.0),
        ({"use_rslora": True}, 4, 4.0),
        ({"alpha_pattern": {"q": 2}}, 4, 0.5),
        ({"alpha_pattern": {r"layers\.\d+\.q": 2}}, 4, 0.5),
        ({"alpha_pattern": {"other": 2}}, 4, 2.0),
        ({"use_rslora": True}, 8, 8 / math.sqrt(8)),
    ],
)
def test_the_scale_is_pefts(config: dict[str, Any], rank: int, scaling: float) -> None:
    name = f"{B}layers.3.q.lora_A.weight"
    merge = plan_merge([name, name.replace("_A", "_B")], LORA | config, {name: rank})
    (delta,) = merge.deltas.values()
    assert list(merge.deltas) == ["layers.3.q.weight"]
    assert delta.scaling == scaling
    assert not delta.transposed


def test_a_factor_without_the_other_cannot_be_merged() -> None:
    name = f"{B}q.lora_A.weight"
    with pytest.raises(AdapterError, match="has no"):
        plan_merge([name], LORA, {name: 2})
    with pytest.raises(AdapterError, match="cannot be merged"):
        plan_merge([name], LORA | {"use_dora": True}, {name: 2})
    with pytest.raises(AdapterError, match="cannot be merged"):
        plan_merge([name], LORA | {"peft_type": "IA3"}, {name: 2})

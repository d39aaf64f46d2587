"""What is written beside training is what was there when the save began."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from keepstep.integrations.hugging_face.capture import Pool, capturing


def test_a_tensor_that_is_gone_leaves_its_address_to_no_other(tmp_path: Path) -> None:
    for size in (100, 10_000, 1_000_000):
        with capturing(Pool()) as captured:
            for number in range(6):
                torch.save({"a": torch.full((size,), float(number))}, tmp_path / f"{number}.pt")
        captured.write()
        for number in range(6):
            assert torch.load(tmp_path / f"{number}.pt")["a"].eq(number).all()


def test_what_may_change_is_written_at_once(tmp_path: Path) -> None:
    array, tensor = np.zeros(4), torch.zeros(4)
    module = torch.nn.Linear(2, 2)
    with capturing(Pool()) as captured:
        torch.save({"array": array}, tmp_path / "array.pt")
        torch.save(module, tmp_path / "module.pt")
        torch.save(OrderedDict(a=[tensor, (1, "x")]), tmp_path / "tensor.pt")
        save_file({"a": torch.ones(2), "b": tensor}, tmp_path / "a.safetensors")
        assert (tmp_path / "array.pt").exists()
        assert (tmp_path / "module.pt").exists()
        assert not (tmp_path / "tensor.pt").exists()
    array += 1
    tensor += 1
    captured.write()
    loaded: Any = torch.load(tmp_path / "array.pt", weights_only=False)
    assert loaded["array"].sum() == 0
    assert torch.load(tmp_path / "tensor.pt")["a"][0].sum() == 0
    assert load_file(tmp_path / "a.safetensors")["b"].sum() == 0


def test_everything_is_as_it_was_afterwards() -> None:
    before = torch.save
    with capturing(Pool()):
        assert torch.save is not before
    assert torch.save is before

import json

import pytest
import torch
from safetensors.torch import save

from keepstep.plan.difference import Kind
from keepstep.plan.weight_files import DTYPES, SizeError, divide, header, index_text, is_weight_file, parse_size


def kinds(**sizes: int) -> list[Kind]:
    return [Kind(name, "uint8", (size,), size) for name, size in sizes.items()]


def names(divided: dict[str, list[Kind]]) -> dict[str, list[str]]:
    return {file: [kind.key for kind in content] for file, content in divided.items()}


def test_sizes_as_people_write_them() -> None:
    assert parse_size("5GB") == 5 * 10**9
    assert parse_size("500 mb") == 500 * 10**6
    assert parse_size("2GiB") == 2**31
    assert parse_size("1.5kB") == 1500
    assert parse_size("1000") == 1000
    for text in ("", "GB", "5GX", "-1", "0", "0.1B", "five", "1e9"):
        with pytest.raises(SizeError, match="is no size"):
            parse_size(text)


def test_one_file_while_everything_fits() -> None:
    assert names(divide(kinds(b=3, a=7), 10)) == {"model.safetensors": ["a", "b"]}
    assert divide([], 10) == {"model.safetensors": []}


def test_files_are_filled_in_the_order_of_names_with_numbers_by_value() -> None:
    layers = [Kind(f"layer.{number}.w", "uint8", (4,), 4) for number in (10, 2, 1)]
    assert names(divide(layers, 8)) == {
        "model-00001-of-00002.safetensors": ["layer.1.w", "layer.2.w"],
        "model-00002-of-00002.safetensors": ["layer.10.w"],
    }


def test_a_tensor_larger_than_a_file_has_one_of_its_own() -> None:
    divided = divide(kinds(a=3, b=100, c=3, d=3), 6)
    assert list(names(divided).values()) == [["a"], ["b"], ["c", "d"]]


def test_a_name_that_is_a_number_and_one_that_is_not() -> None:
    assert [kind.key for kind in divide(kinds(**{"b": 1, "1": 1, "²": 1}), 9)["model.safetensors"]]


def test_the_header_is_that_of_the_reference_writer() -> None:
    tensors = {f"{dtype}.é": torch.zeros(3, 2).to(getattr(torch, dtype)) for dtype in DTYPES}
    tensors["bool.empty"], tensors["int64.scalar"] = torch.zeros(0, 4, dtype=torch.bool), torch.tensor(7)
    listed = [
        Kind(name, str(t.dtype).removeprefix("torch."), tuple(t.shape), t.numel() * t.element_size())
        for name, t in tensors.items()
    ]
    content = divide(listed, 10**9)["model.safetensors"]
    expected = save(tensors, {"format": "pt"})
    assert expected.startswith(header(content, {"format": "pt"}))


def test_equal_metadata_gives_equal_bytes() -> None:
    first = header([], {"b": "x", "format": "pt", "a": "x"})
    assert first == header([], {"a": "x", "b": "x", "format": "pt"})
    assert list(json.loads(first[8:])["__metadata__"]) == ["format", "a", "b"]


def test_the_index_names_the_file_of_each_tensor_and_what_is_left_out() -> None:
    index = json.loads(index_text(divide(kinds(a=3, b=4), 4), {"head": "a"}))
    assert index["weight_map"] == {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    assert index["metadata"] == {"head": "a", "total_size": 7}


def test_only_names_of_weights_are_taken_for_weights() -> None:
    for name in ("model.safetensors", "model.safetensors.index.json", "model-00001-of-00012.safetensors"):
        assert is_weight_file(name)
    for name in ("adapter_model.safetensors", "model-1-of-2.safetensors", "../model.safetensors", "config.json", ""):
        assert not is_weight_file(name)

"""Steps that shard and gather, on ranks."""

from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as Sharded

from keepstep.config.mapper import Cast, Concatenate, Gather, Shard, Transpose
from keepstep.errors import ConfigError
from keepstep.export.mapper import Mapper, spec_of
from tests.rig import forks

# Five rows are divided evenly by nothing here.
Q, K = torch.arange(20.0).reshape(5, 4), torch.arange(12.0).reshape(3, 4) + 100
FUSE = Concatenate(take=("q", "k"), give="qk", sizes=(5, 3))


def mesh_of(*shape: int) -> Any:
    return init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp")[: len(shape)])


def import_and_export(shape: tuple[int, ...], dims: dict[str, int]) -> tuple[bool, bool, bool, int, bool]:
    mesh = mesh_of(*shape)
    steps = (FUSE, Shard(names=("qk",), dims=dims), Cast(names=("qk",), dtype="float64", source="float32"))
    mapper = Mapper(steps)
    made = mapper.apply({"q": Q, "k": K}, mesh)["qk"]
    assert isinstance(made, DTensor)
    placements = [Sharded(dims[axis]) if axis in dims else Replicate() for axis in mesh.mesh_dim_names]
    expected = distribute_tensor(torch.cat([Q, K]).double(), mesh, placements)
    local = made.to_local()
    back = mapper.invert().apply({"qk": made}, mesh)
    return (
        torch.equal(local, expected.to_local()),
        made.placements == expected.placements,
        all(
            type(back[name]) is torch.Tensor and torch.equal(back[name], whole) for name, whole in (("q", Q), ("k", K))
        ),
        local.untyped_storage().nbytes() - local.nbytes,
        spec_of(made) == mapper.plan({"q": spec_of(Q), "k": spec_of(K)}).names["qk"],
    )


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((2,), {"dp": 0}),
        ((3,), {"dp": -1}),
        ((2, 2), {"tp": 1}),
        ((2, 2), {"dp": 0, "tp": 1}),
        ((2, 2), {"dp": 0, "tp": 0}),
    ],
)
def test_a_fused_tensor_is_divided_and_comes_back(shape: tuple[int, ...], dims: dict[str, int]) -> None:
    size = torch.Size(shape).numel()
    ended = forks.values(lambda: import_and_export(shape, dims), size)
    assert ended == [(True, True, True, 0, True)] * size


def refusals() -> list[str]:
    mesh = mesh_of(2)
    sharded = distribute_tensor(Q, mesh, [Sharded(0)])
    cases: list[tuple[Mapper, torch.Tensor, Any]] = [
        (Mapper((Shard(names=("q",), dims={"dp": 0}),)), Q, None),
        (Mapper((Shard(names=("q",), dims={"ep": 0}),)), Q, mesh),
        (Mapper((Shard(names=("q",), dims={"dp": 2}),)), Q, mesh),
        (Mapper((Shard(names=("q",), dims={"dp": 0}),)), sharded, mesh),
        (Mapper((Transpose(names=("q",)),)), sharded, mesh),
        (Mapper((Gather(names=("q",), dims={"dp": 1}),)), sharded, mesh),
    ]
    told = []
    for mapper, tensor, own in cases:
        with pytest.raises(ConfigError) as error:
            mapper.apply({"q": tensor}, own)
        told.append(str(error.value))
    return told


def test_what_cannot_be_divided_or_gathered_is_refused_before_anything_is_read() -> None:
    sharded = "q: it is float32[5, 4] (dimension 0 over dp)"
    assert forks.values(refusals, 2)[1] == [
        "steps.0 shard divides tensors over dp, and there is no device mesh",
        "steps.0 shard divides tensors over ep, and the device mesh has dp",
        "steps.0 shard: q: dimension 2 of 2 does not exist",
        f"steps.0 shard: {sharded}, and shard takes whole tensors; gather it before",
        f"steps.0 transpose: {sharded}, and transpose takes whole tensors; gather it before",
        f"steps.0 gather: {sharded}, declared is {{'dp': 1}}",
    ]


def gathered() -> bool:
    mesh = mesh_of(2, 2)
    q = distribute_tensor(Q, mesh, [Replicate(), Sharded(1)])
    k = distribute_tensor(K, mesh, [Replicate(), Replicate()])
    made = Mapper((Gather(names=("q", "k")), FUSE)).apply({"q": q, "k": k})
    return type(made["qk"]) is torch.Tensor and torch.equal(made["qk"], torch.cat([Q, K]))


def test_gather_takes_any_placement_if_none_is_declared() -> None:
    assert forks.values(gathered, 4) == [True] * 4
    with pytest.raises(ConfigError, match="gather of q cannot be inverted: say how the source is divided"):
        Mapper((Gather(names=("q",)),)).invert()

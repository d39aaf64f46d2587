import pytest

from keepstep.config.mesh import MeshConfig
from keepstep.dist.mesh import MeshShape, solve_mesh
from keepstep.errors import ConfigError


@pytest.mark.parametrize(
    ("axes", "world", "expected"),
    [
        ({}, 4, MeshShape(1, 4)),
        ({}, 1, MeshShape(1, 1)),
        ({"data_parallel_replicate": 2}, 4, MeshShape(2, 2)),
        ({"data_parallel_replicate": "auto", "data_parallel_shard": 1}, 4, MeshShape(4, 1)),
        ({"data_parallel_replicate": 2, "data_parallel_shard": 2}, 4, MeshShape(2, 2)),
    ],
)
def test_auto_takes_what_is_left(axes: dict[str, object], world: int, expected: MeshShape) -> None:
    assert solve_mesh(MeshConfig.model_validate(axes), world) == expected


@pytest.mark.parametrize(
    ("axes", "world"),
    [
        ({"data_parallel_replicate": 3}, 4),
        ({"data_parallel_replicate": 2, "data_parallel_shard": 1}, 4),
        ({"data_parallel_replicate": 2, "data_parallel_shard": 2}, 2),
    ],
)
def test_axes_that_do_not_make_up_the_world_are_refused(axes: dict[str, object], world: int) -> None:
    with pytest.raises(ConfigError, match=f"{world} ranks"):
        solve_mesh(MeshConfig.model_validate(axes), world)


@pytest.mark.parametrize("axis", ["tensor_parallel", "pipeline_parallel"])
def test_an_axis_that_is_not_built_yet_is_refused_by_name(axis: str) -> None:
    with pytest.raises(ConfigError, match=axis):
        solve_mesh(MeshConfig.model_validate({axis: 2}), 4)

import pytest

from keepstep.config.mesh import MeshConfig
from keepstep.dist.mesh import MeshShape, Place, solve_mesh
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


def test_every_rank_has_a_place_of_its_own() -> None:
    shape = solve_mesh(MeshConfig(tensor_parallel=2, pipeline_parallel=3, data_parallel_replicate=2), 24)
    assert shape == MeshShape(2, 2, 2, 3)
    places = [shape.place_of(rank) for rank in range(24)]
    assert len(set(places)) == 24
    assert places[0] == Place(0, 0, 0)
    assert places[1] == Place(0, 1, 0)  # neighbours share the tensor axis
    assert places[2] == Place(1, 0, 0)
    assert places[8] == Place(0, 0, 1)

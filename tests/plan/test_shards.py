"""Shards of an input: their bounds, their names, and when they do not belong together."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstep.plan.config_rules import rule_of
from keepstep.plan.shards import Shard, Share, all_shards, clash, differences, shard_of, share_of


@given(st.integers(0, 10**12), st.integers(1, 300))
def test_each_position_is_in_one_shard(length: int, count: int) -> None:
    bounds = [Shard(index, count).bounds(length) for index in range(count)]
    assert (bounds[0][0], bounds[-1][1]) == (0, length)
    assert all(one[1] == two[0] for one, two in itertools.pairwise(bounds))
    sizes = {end - begin for begin, end in bounds}
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_a_name_tells_of_its_shard(index: int, count: int) -> None:
    shard = Shard(index % count, count)
    assert shard_of(shard.name) == shard


@pytest.mark.parametrize(
    "name", ["shard-00008-of-00008", "shard-0-of-8", "shard-000001-of-00008", "shard-00001", "save-1"]
)
def test_other_names_are_no_shard(name: str) -> None:
    assert shard_of(name) is None


def test_all_shards_of_some() -> None:
    assert all_shards([Shard(2, 3)]) == [Shard(0, 3), Shard(1, 3), Shard(2, 3)]
    assert len(all_shards([Shard(0, 3), Shard(1, 2)])) == 5
    assert all_shards([]) == []


@pytest.mark.parametrize(
    ("names", "shard", "expected"),
    [
        ([], Shard(0, 2), None),
        (["shard-00001-of-00002", ".keepstep", "notes.txt"], Shard(0, 2), None),
        (["shard-00001-of-00003"], Shard(0, 2), "shard-00001-of-00003"),
        (["shard-00001-of-00003"], None, "shard-00001-of-00003"),
        (["save-5", "saves.jsonl"], Shard(0, 2), "save-5"),
        (["_index.jsonl"], Shard(0, 2), "_index.jsonl"),
        (["save-5", "_index.jsonl"], None, None),
    ],
)
def test_another_division_of_the_job_is_seen(names: list[str], shard: Shard | None, expected: str | None) -> None:
    assert clash(names, shard) == expected


def test_what_shards_were_made_of() -> None:
    record = {"dataset_sha256": "a" * 64, "base_weights": None, "tokenizer_sha256": "t"}
    first, second = share_of(Shard(0, 2), 7, record), share_of(Shard(1, 2), 7, record)
    assert (first.begin, first.end, second.begin, second.end) == (0, 3, 3, 7)
    assert Share.from_row(second.to_row()) == second
    assert differences([first, second]) == []
    assert differences([]) == []
    # What one of them does not know is no difference.
    known = replace(second, made_of={**second.made_of, "base_weights": "w", "dataset_sha256": "b" * 64})
    assert differences([first, known]) == [
        "shard 1 and shard 0 have different dataset_sha256: bbbbbbbbbbbb and aaaaaaaaaaaa"
    ]
    (longer,) = differences([first, share_of(Shard(1, 2), 8, record)])
    assert longer == "shard 1 and shard 0 are not of one input: 8 samples in 2 shards, and 7 in 2"


def test_a_checkpoint_of_another_shard_is_refused() -> None:
    assert rule_of("inference.shard.index")[0] == rule_of("inference.shard.count")[0] == "refuse"

"""What policies are told of a checkpoint."""

import json
import os
from pathlib import Path

import pytest

from keepstep.plan.policies import NO_RULES, Best, Rules, YoungerThan
from keepstep.plan.scores import measured
from keepstep.storage.candidates import candidates_of, created_seconds, digest_of
from keepstep.storage.scoring.scores import read_scores
from keepstep.storage.survey import survey
from tests.rig.folders import make_checkpoint
from tests.rig.scores import give_score


def test_only_what_the_rules_need_is_looked_up(tmp_path: Path) -> None:
    give_score(make_checkpoint(tmp_path, 10), accuracy=0.5)
    complete = survey(tmp_path).complete
    rows = measured(read_scores(tmp_path))
    (bare,) = candidates_of(complete, NO_RULES, rows)
    assert (bare.step, bare.created, bare.measured) == (10, None, None)
    assert bare.size > 40_000
    (full,) = candidates_of(complete, Rules((Best("task/accuracy", "max"), YoungerThan(1))), rows)
    assert full.measured is not None
    assert full.measured.metrics == {"task/accuracy": 0.5}
    assert full.created == 1767225600.0


def test_scores_belong_to_the_bytes_and_not_to_the_step(tmp_path: Path) -> None:
    give_score(make_checkpoint(tmp_path / "before", 10, size=400), tmp_path, accuracy=0.5)
    make_checkpoint(tmp_path, 10)
    (one,) = candidates_of(
        survey(tmp_path).complete, Rules((Best("task/accuracy", "max"),)), measured(read_scores(tmp_path))
    )
    assert one.measured is None


def test_the_digest_is_the_last_field_of_the_manifest(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, 10)
    (found,) = survey(tmp_path).complete
    assert digest_of(found) == json.loads((checkpoint / "manifest.json").read_text())["digest"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ('{"created_at": "1970-01-02T00:00:00Z"}', 86400.0),
        ('{"created_at": "1970-01-02T00:00:00"}', 86400.0),
        ('{"created_at": "1970-01-02T01:00:00+01:00"}', 86400.0),
        ('{"created_at": "yesterday"}', 7.0),
        ('{"created_at": 3}', 7.0),
        ("{}", 7.0),
        ("not json", 7.0),
    ],
)
def test_the_age_is_what_the_run_record_says_else_that_of_the_manifest(
    text: str, seconds: float, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint(tmp_path, 10)
    (found,) = survey(tmp_path).complete
    (checkpoint / "run.json").write_text(text)
    os.utime(checkpoint / "manifest.json", (7, 7))
    assert created_seconds(found) == seconds


def test_of_what_is_gone_the_age_is_not_known(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, 10)
    (found,) = survey(tmp_path).complete
    checkpoint.rename(tmp_path / "gone")
    assert created_seconds(found) is None

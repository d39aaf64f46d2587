"""What is said about the steps to come."""

from pathlib import Path

from keepstep.plan.outlook import data_outlook, plot, rate_outlook
from tests.rig import jobs


def test_where_in_the_data() -> None:
    found = data_outlook(127, 50, 4, 8)
    assert (found.epoch, found.sample_in_epoch) == (2, 27)
    assert (found.steps_per_epoch_before, found.steps_per_epoch_now) == (13, 7)
    assert data_outlook(0, 50, None, 8).steps_per_epoch_before is None


def test_rates_are_those_that_the_schedule_gives(tmp_path: Path) -> None:
    same = rate_outlook(jobs.training(tmp_path, 12), jobs.training(tmp_path, 12), 4)
    assert same is not None
    assert not same.is_changed
    assert same.steps == tuple(range(5, 13))
    longer = rate_outlook(jobs.training(tmp_path, 12), jobs.training(tmp_path, 40), 11)
    assert longer is not None
    assert longer.is_changed
    assert longer.steps[0] == 12
    assert longer.steps[-1] == 40
    assert longer.before[1:] == (None,) * (len(longer.steps) - 1)
    assert longer.now[0] is not None
    assert longer.before[0] is not None
    assert longer.now[0] > longer.before[0]


def test_nothing_is_said_of_a_scheduler_of_the_jobs_own(tmp_path: Path) -> None:
    own = jobs.training(tmp_path, 12, providers={"lr_scheduler": "a:b"})
    assert rate_outlook(None, own, 0) is None
    assert rate_outlook(None, jobs.training(tmp_path, 12), 12) is None


def test_the_plot_shows_both_curves(tmp_path: Path) -> None:
    rates = rate_outlook(jobs.training(tmp_path, 12), jobs.training(tmp_path, 40), 0)
    assert rates is not None
    lines = plot(rates).splitlines()
    assert len(lines) == 10
    drawn = "".join(lines[:8])
    assert "o" in drawn
    assert "*" in drawn
    assert all(len(line) < 80 for line in lines)
    assert lines[8].split() == ["step", "1", "40"]

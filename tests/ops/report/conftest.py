"""The page of one long run, drawn once."""

import pytest

from keepstep.ops.report.gather import gather
from keepstep.ops.report.page import render
from keepstep.plan.report.story import story_of
from tests.rig.report_runs import long_run


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of 10,000 steps, 200 checkpoints and 5 attempts on 8 ranks."""
    return render(story_of(gather(long_run(tmp_path_factory.mktemp("report") / "long"))))

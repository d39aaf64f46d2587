"""What docs/hugging-face.md shows is run."""

import logging
import os
import re
from pathlib import Path
from typing import Any

from keepstep.integrations.hugging_face import Options
from tests.rig import forks

TEXT = (Path(__file__).parents[3] / "docs" / "hugging-face.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _ran(folder: Path, *blocks: str) -> tuple[list[str], dict[str, Any]]:
    """Run blocks in one namespace, as a script in this folder. Returns what keepstep said, and the namespace."""
    os.chdir(folder)
    kept = Kept()
    logger = logging.getLogger("keepstep")
    logger.setLevel(logging.INFO)
    logger.addHandler(kept)
    space: dict[str, Any] = {}
    for block in blocks:
        exec(block, space)
    return kept.lines, space


def test_the_documented_scripts_run(tmp_path: Path) -> None:
    """The first one by itself, and the others after it: a stop that is caught, and the settings of TRL."""

    def start(*blocks: str) -> Any:
        lines, space = _ran(tmp_path, *blocks)
        return lines[0], lines[-1], space["output"].global_step, "fine_tuning" in space

    first, _, step, _ = forks.values(lambda: start(PYTHON[0]))[0]
    assert (first, step) == ("starting from the first step", 30)
    resumed = "resumed from step 30 (runs/mine/checkpoint-30)"
    complete = "Training is already complete, nothing to do (step 30)"
    assert forks.values(lambda: start(*PYTHON)) == [(resumed, complete, 30, True)]


def test_the_documented_sitecustomize(tmp_path: Path) -> None:
    """The script without keepstep in it, and without an argument of `train()`."""
    (outside,) = re.findall(r"<!-- sitecustomize.py -->\n```\n(.*?)```", TEXT, re.DOTALL)
    script = PYTHON[0].replace("from keepstep.integrations.hugging_face import make_resumable\n", "")
    script = script.replace("make_resumable(trainer)\n", "").replace("resume_from_checkpoint=True", "")
    assert "keepstep" not in script

    def start() -> Any:
        return _ran(tmp_path, outside, script)[0][0]

    assert forks.values(start) == ["starting from the first step"]
    assert forks.values(start) == ["resumed from step 30 (runs/mine/checkpoint-30)"]


def test_the_options_are_all_documented() -> None:
    for name in Options.__dataclass_fields__:
        assert f"`{name}`" in TEXT, name

"""The tables of keys in the docs have every key, with its default."""

import re
from pathlib import Path

import yaml

from keepstep.config import CheckpointingConfig
from keepstep.config.outputs import OutputsConfig
from keepstep.config.retention import Keep, KeepBest

DOCS = Path(__file__).parents[2] / "docs"


def rows(page: str, header: str) -> dict[str, tuple[str, ...]]:
    """The rows of the table that has this first cell in its header, by their first cells."""
    text = (DOCS / page).read_text()
    (table,) = re.findall(rf"^\| `{header}` \|[^\n]*\n\|[-| ]+\n((?:\|[^\n]*\n)+)", text, re.MULTILINE)
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|\n"))] for line in table.splitlines()]
    return {first.strip("`"): tuple(rest) for first, *rest in cells}


def test_jobs_lists_every_key_of_checkpointing() -> None:
    found = rows("jobs.md", "checkpointing")
    fields = CheckpointingConfig.model_fields
    assert list(found) == list(fields)
    told = {"none": (), "TERM, INT, USR1, USR2": ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")}
    for name, (default, meaning) in found.items():
        assert meaning, name
        field = fields[name]
        if field.is_required():
            assert default == "", name
        else:
            value = told[default] if default in told else yaml.safe_load(default.strip("`"))
            assert value == field.get_default(call_default_factory=True), name


def test_inference_lists_every_key_of_outputs() -> None:
    found = rows("inference.md", "outputs")
    assert list(found) == list(OutputsConfig.model_fields)
    for name, (default, meaning) in found.items():
        assert meaning, name
        field = OutputsConfig.model_fields[name]
        assert default == "" if field.is_required() else yaml.safe_load(default.strip("`")) == field.default, name


def test_choosing_has_every_rule() -> None:
    assert list(rows("choosing.md", "keep")) == list(Keep.model_fields)
    (block,) = re.findall(r"^```yaml\n(.*?)^```", (DOCS / "choosing.md").read_text(), re.DOTALL | re.MULTILINE)
    example = yaml.safe_load(block)["checkpointing"]
    made = CheckpointingConfig.model_validate(example)
    assert made.keep is not None
    assert example["keep"].keys() == Keep.model_fields.keys()
    assert example["keep"]["best"].keys() == KeepBest.model_fields.keys()

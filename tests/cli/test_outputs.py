"""`keepstep outputs`: what is committed, whether it is right, and one file of it."""

import json
import shutil
from pathlib import Path

import pytest

from keepstep.job.inference import InferenceJob
from tests.rig import forks, outputs
from tests.rig.command import keepstep


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that two ranks have ended, and that nobody changes."""
    folder = tmp_path_factory.mktemp("finished")
    forks.values(lambda: InferenceJob(outputs.config(folder)).run(), 2)
    return folder / "out"


def test_ls(finished: Path) -> None:
    lines = keepstep("outputs", "ls", str(finished)).stdout.splitlines()
    assert lines[0].split() == ["PART", "FIRST", "ROWS", "SIZE"]
    assert [line.split()[1:3] for line in lines[1:4]] == [["0", "10"], ["2", "10"], ["20", "10"]]
    assert lines[-1].startswith("103 rows, 0 failed, ")
    assert lines[-1].endswith("; complete")
    found = json.loads(keepstep("outputs", "ls", str(finished), "--json").stdout)
    assert (found["rows"], found["inputs"], found["complete"], len(found["parts"])) == (103, 103, True, 12)
    assert found["parts"][1]["spans"] == [[2, 2, 4, 5]]


def test_verify(finished: Path, tmp_path: Path) -> None:
    done = keepstep("outputs", "verify", str(finished))
    assert (done.returncode, done.stdout.endswith(": all as written, each position once\n")) == (0, True)
    copy = shutil.copytree(finished, tmp_path / "copy")
    part = min(copy.glob("part-*"))
    part.unlink()
    done = keepstep("outputs", "verify", str(copy))
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == f"{part.name} is gone"
    assert "no part holds position 0 to 1, 4 to 5, 8 to 9, 12 to 13, 16 to 17" in done.stdout
    found = json.loads(keepstep("outputs", "verify", str(copy), "--json").stdout)
    assert (found["rows"], len(found["problems"])) == (93, 2)


def test_merge(finished: Path, tmp_path: Path) -> None:
    target = tmp_path / "all.jsonl"
    done = keepstep("outputs", "merge", str(finished), str(target))
    assert (done.returncode, done.stdout) == (0, f"{target}: 103 rows\n")
    assert [json.loads(line)["id"] for line in target.read_text().split("\n")[:-1]] == list(range(103))
    again = keepstep("outputs", "merge", str(finished), str(target))
    assert (again.returncode, "is there already" in again.stderr) == (2, True)


def test_a_job_that_has_not_ended_is_merged_when_asked(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    (copy / "_SUCCESS.json").unlink()
    for part in copy.glob("part-000000026*"):
        part.rename(copy / f".{part.name}.tmp")
    assert keepstep("outputs", "ls", str(copy)).stdout.endswith("; the job has not ended\n")
    refused = keepstep("outputs", "merge", str(copy), str(tmp_path / "all.jsonl"))
    assert (refused.returncode, "--partial merges what is committed" in refused.stderr) == (2, True)
    found = json.loads(keepstep("outputs", "merge", str(copy), str(tmp_path / "all"), "--partial", "--json").stdout)
    assert (found["rows"], found["complete"]) == (100, False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "copy"]


def test_push_copies_what_is_committed_and_the_final_manifest_last(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    (copy / "_SUCCESS.json").unlink()
    hidden = [part.rename(copy / f".{part.name}.tmp") for part in copy.glob("part-000000026*")]
    (tmp_path / "there").mkdir()
    words = ("outputs", "push", str(copy), f"file://{tmp_path / 'there'}", "--json")
    assert json.loads(keepstep(*words).stdout) | {"address": "", "bytes": 0} == {
        "address": "",
        "parts": 10,
        "bytes": 0,
        "complete": False,
    }
    for part in hidden:
        part.rename(copy / part.name[1:-4])
    shutil.copy(finished / "_SUCCESS.json", copy)
    assert json.loads(keepstep(*words).stdout)["parts"] == 2
    names = {path.name for path in finished.iterdir()} - {"_index.jsonl"}
    there = {path.name: path.read_bytes() for path in (tmp_path / "there").iterdir()}
    assert there == {name: (finished / name).read_bytes() for name in names}
    assert json.loads(keepstep(*words).stdout)["parts"] == 0
    (tmp_path / "there" / "part-000000005-00007-1-0.jsonl").touch()
    refused = keepstep(*words)
    assert (refused.returncode, "holds parts of another job" in refused.stderr) == (2, True)


def test_a_part_that_is_not_as_it_was_written_is_not_copied(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    part = min(copy.glob("part-*"))
    part.write_bytes(bytes(part.stat().st_size))
    (tmp_path / "there").mkdir()
    refused = keepstep("outputs", "push", str(copy), f"file://{tmp_path / 'there'}")
    assert refused.returncode == 4
    assert not (tmp_path / "there" / "_SUCCESS.json").exists()


def test_a_folder_without_outputs_is_no_empty_one(tmp_path: Path) -> None:
    for command in ("ls", "verify"):
        done = keepstep("outputs", command, str(tmp_path))
        assert (done.returncode, "holds no outputs" in done.stderr) == (1, True)
    (tmp_path / "_index.jsonl").write_text("[]\n")
    assert keepstep("outputs", "ls", str(tmp_path)).returncode == 4


@pytest.mark.parametrize("command", ["ls", "verify", "merge", "push"])
def test_help_has_an_example(command: str) -> None:
    done = keepstep("outputs", command, "--help")
    assert f"Example: keepstep outputs {command}" in done.stdout

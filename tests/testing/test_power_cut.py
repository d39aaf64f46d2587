"""From system calls to what a power cut may leave: reading traces, and the check on a loop of one's own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint import save as save_module
from keepstep.storage import local
from keepstep.testing import faults
from keepstep.testing.faults.calls import Call, committed_step, count_calls, read_calls
from keepstep.testing.faults.crash_states import ROOT, Exchange, Make, Name, Operation, Remove, Resize, Sync, Write
from tests.rig.syscalls import require_strace
from tests.testing.test_faults import own_loop, two_ranks


class TestTraces:
    def test_a_call_that_other_threads_have_interrupted_is_whole(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text(
            '7 10.0 fsync(3</a> <unfinished ...>\n8 10.1 rename("a", "b") = 0 <0.000100>\n'
            "7 10.2 <... fsync resumed>) = 0 <0.200000>\n"
        )
        sync, rename = read_calls(log)
        assert sync == Call(7, "fsync", "3</a>", 0, 10.0, 10.2)
        assert (rename.thread, rename.name, rename.result) == (8, "rename", 0)

    def test_the_call_that_a_process_died_in_has_no_result(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text('fsync(3) = 0\nwrite(1, ") = 5", 5) = 5\nrename("save-1", "x" <unfinished ...>) = ?\nfsync(3')
        assert [(call.name, call.result) for call in read_calls(log)] == [
            *(("fsync", 0), ("write", 5), ("rename", None), ("fsync", None)),
        ]

    def test_calls_count_by_thread_and_those_of_started_programs_do_not(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text('1 fsync(3) = 0\n2 fsync(3) = 0\n2 fsync(3) = 0\n3 execve("git") = 0\n' + "3 fsync(3) = 0\n" * 9)
        assert count_calls(log)["fsync"] == 2

    @pytest.mark.parametrize(
        ("lines", "step"),
        [
            (['rename("/r/.save-2.tmp-1", "/r/save-2") = 0'], 2),
            (['rename("/r/.save-2.tmp-1", "/r/save-2") = -1 EIO (Input/output error)'], 0),
            (['rename("/r/.save-2.tmp-1", "/r/save-2") = 0', 'rename("/r/save-2", "/r/.save-2.del-1") = 0'], 2),
            (['rename("/r/.save-2.tmp-1", "/r/save-2") = 0', 'rename("/r/save-2", "/r/.save-2.tmp-1") = 0'], 0),
            (['renameat2(AT_FDCWD, "/r/.save-4.tmp-2", AT_FDCWD, "/r/save-4", RENAME_EXCHANGE) = 0'], 4),
            (['rename("/r/.checkpoint-4.tmp-1/checkpoint-4", "/r/checkpoint-4") = 0'], 4),
            (
                [
                    'rename("/r/.checkpoint-4.tmp-1/checkpoint-4", "/r/checkpoint-4") = 0',
                    'rename("/r/checkpoint-4", "/r/.checkpoint-4.tmp-1/checkpoint-4") = 0',
                ],
                0,
            ),
        ],
    )
    def test_a_step_is_committed_when_it_has_its_name_also_if_it_is_gone(
        self, tmp_path: Path, lines: list[str], step: int
    ) -> None:
        log = tmp_path / "log"
        log.write_text("\n".join(lines))
        assert committed_step(log) == step


def record(tmp_path: Path, program: str) -> list[Operation]:
    """What a Python program does in an empty folder, which is its working directory."""
    require_strace(tmp_path)
    folder, log = tmp_path / "folder", tmp_path / "log"
    folder.mkdir()
    command = ["strace", "-f", "-o", str(log), *faults.STRACE_OPTIONS]
    program = f"import os, threading\n{program}"
    subprocess.run([*command, sys._base_executable, "-S", "-c", program], cwd=folder, check=True)
    return faults.read_recording([log], folder)


class TestRecording:
    def test_a_file_is_made_written_synced_renamed_and_deleted(self, tmp_path: Path) -> None:
        lines = ["os.mkdir('d')", "f = open('d/a', 'wb', buffering=0)", "f.write(b'1234')", "os.fsync(f.fileno())"]
        lines += ["os.pwrite(f.fileno(), b'X', 1)", "f.write(b'5')", "os.rename('d/a', 'b')", "f.truncate(2)"]
        lines += ["os.link('b', 'c')", "os.unlink('b')", "d = os.open('.', os.O_RDONLY)", "os.fsync(d)"]
        found = record(tmp_path, "\n".join(lines))
        assert found == [
            *(Make(ROOT, "d", 1, True), Make(1, "a", 2), Write(2, 0, b"1234"), Sync(2, 3), Write(2, 1, b"X")),
            *(Write(2, 4, b"5"), Name(ROOT, "b", 2, (1, "a")), Resize(2, 2), Name(ROOT, "c", 2), Remove(ROOT, "b")),
            Sync(ROOT, 10),
        ]

    def test_a_file_that_is_opened_again(self, tmp_path: Path) -> None:
        lines = ["open('a', 'wb', buffering=0).write(b'12')", "open('a', 'ab', buffering=0).write(b'3')"]
        lines += ["f = open('a', 'r+b', buffering=0); f.write(b'X'); f.seek(2); f.write(b'Y')"]
        lines += ["open('a', 'wb', buffering=0).write(b'4')"]
        assert record(tmp_path, "\n".join(lines)) == [
            *(Make(ROOT, "a", 1), Write(1, 0, b"12"), Write(1, 2, b"3"), Write(1, 0, b"X"), Write(1, 2, b"Y")),
            *(Resize(1, 0), Write(1, 0, b"4")),
        ]

    def test_two_folders_change_names(self, tmp_path: Path) -> None:
        lines = ["import ctypes", "os.mkdir('a'); os.mkdir('b'); open('a/x', 'w').close()"]
        lines += ["ctypes.CDLL(None).renameat2(-100, b'a', -100, b'b', 2)", "os.unlink('b/x')"]
        program = "import sys; sys.path[:] = [p for p in sys.path if p]\n" + "\n".join(lines)
        assert record(tmp_path, program)[3:] == [Exchange((ROOT, "a"), (ROOT, "b")), Remove(1, "x")]

    def test_nothing_of_several_threads_is_lost(self, tmp_path: Path) -> None:
        lines = ["def work(n):", "  for i in range(20):", "    f = open(f'{n}-{i}', 'wb', buffering=0); f.write(b'1')"]
        lines += ["    os.fsync(f.fileno()); os.rename(f'{n}-{i}', f'{n}-{i}.done')"]
        lines += ["threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]"]
        lines += ["[t.start() for t in threads]; [t.join() for t in threads]"]
        found = record(tmp_path, "\n".join(lines))
        assert "unfinished" in (tmp_path / "log").read_text()
        assert {kind: sum(isinstance(one, kind) for one in found) for kind in (Make, Write, Sync, Name)} == {
            **dict.fromkeys((Make, Write, Sync, Name), 80)
        }

    def test_what_the_model_does_not_know_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(faults.RecordingError, match="pwritev"):
            record(tmp_path, "f = open('a', 'wb', buffering=0); os.pwritev(f.fileno(), [b'1'], 0)")

    def test_so_is_a_file_that_was_there_before(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        old, new = ("".join(rf"\x{byte:02x}" for byte in bytes(tmp_path / name)) for name in ("old", "new"))
        log.write_text(f'1.0 rename("{old}", "{new}") = 0')
        with pytest.raises(faults.RecordingError, match="'old' was there before"):
            faults.read_recording([log], tmp_path)


def test_a_state_is_made_in_place_of_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "old").touch()
    faults.materialize(faults.CrashState(1, {"d": None, "d/a": b"1", "b": b""}), tmp_path / "work")
    found = {str(path.relative_to(tmp_path / "work")) for path in (tmp_path / "work").rglob("*")}
    assert found == {"d", "d/a", "b"}
    assert (tmp_path / "work" / "d" / "a").read_bytes() == b"1"


def test_a_commit_is_a_name_whose_folder_was_synced_after_it(tmp_path: Path) -> None:
    named = [Make(ROOT, ".save-2.tmp-1", 1, True), Name(ROOT, "save-2", 1, (ROOT, ".save-2.tmp-1"))]
    assert faults.Recording.of(named).commits == ()
    recording = faults.Recording.of([*named, Sync(ROOT)])
    assert recording.commits == ((3, 2),)
    assert (recording.committed(2), recording.committed(3)) == (0, 2)
    assert faults.Recording.of([*named, Sync(ROOT, begun=1)]).commits == ()


@pytest.fixture
def traceable(tmp_path: Path) -> None:
    require_strace(tmp_path)
    own_loop(str(tmp_path / "warm"))


def test_a_loop_of_ones_own_stands_power_cuts(traceable: None, tmp_path: Path) -> None:
    report = faults.power_cuts(own_loop, start_method="fork", limit=20, folder=tmp_path / "work")
    print(f"\n{report}")
    assert report.bad == []
    assert report.states >= 8


def test_all_ranks_are_recorded(traceable: None, tmp_path: Path) -> None:
    report = faults.power_cuts(two_ranks, ranks=2, start_method="fork", limit=8, folder=tmp_path / "work")
    print(f"\n2 ranks: {report}")
    assert report.bad == []
    assert report.operations > 65  # of one rank: 61


def without_syncs(folder: str) -> None:
    """A broken saver: it commits as ever, and nothing of its files and folders was synced before."""
    save_module.sync_folder = local.sync_folder = lambda path: None if ".tmp-" in path.name else sync(path)
    own_loop(folder)


sync: Any = local.sync_folder


def test_a_saver_that_leaves_a_sync_out_is_found(traceable: None, tmp_path: Path) -> None:
    report = faults.power_cuts(without_syncs, start_method="fork", limit=60, folder=tmp_path / "work")
    print(f"\n{report}: {report.bad[:1]}")
    assert any("was committed" in problem or "failed" in problem for problem in report.bad)

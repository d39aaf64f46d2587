"""What is left of a machine's memory, or of the control group's."""

import os
import threading
from pathlib import Path

import pytest

from keepstep.storage import memory
from keepstep.storage.priority import stand_back

MIB = 1 << 20


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_SELF", tmp_path / "self")
    (tmp_path / "meminfo").write_text("MemTotal: 8192 kB\nMemAvailable:   4096 kB\n")
    return tmp_path


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("_dot_", ".")).write_text(f"{value}\n")


def test_without_a_group_the_machine_counts(system: Path) -> None:
    assert memory.available_bytes() == 4 * MIB
    (system / "meminfo").unlink()
    assert memory.available_bytes() is None


def test_the_tightest_group_counts_and_its_file_cache_can_be_given_back(system: Path) -> None:
    (system / "self").write_text("0::/jobs/mine\n")
    group(system / "cgroup" / "jobs", memory_dot_max=3 * MIB, memory_dot_current=2 * MIB)
    group(system / "cgroup" / "jobs" / "mine", memory_dot_max="max", memory_dot_current=MIB)
    assert memory.available_bytes() == MIB
    group(system / "cgroup" / "jobs", memory_dot_stat=f"anon 5\ninactive_file {MIB // 2}")
    assert memory.available_bytes() == MIB + MIB // 2


def test_groups_of_the_first_version_are_understood(system: Path) -> None:
    (system / "self").write_text("7:cpu:/\n4:memory:/job\n0::/\n")
    place = system / "cgroup" / "memory" / "job"
    group(place, memory_dot_limit_in_bytes=2 * MIB, memory_dot_usage_in_bytes=MIB + 5)
    assert memory.available_bytes() == MIB - 5


def test_a_thread_that_stands_back_leaves_the_others_alone() -> None:
    found = []

    def work() -> None:
        stand_back()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [10]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before

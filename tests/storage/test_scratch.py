"""Temporary folders of processes that were killed are taken away by the next one."""

import os
import subprocess
import sys
from pathlib import Path

from keepstep.storage.scratch import make_scratch

CODE = """
import sys, time
from pathlib import Path
from keepstep.storage.scratch import make_scratch
print(make_scratch("keepstep-x", Path(sys.argv[1])), flush=True)
time.sleep(60)
"""


def test_those_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    (tmp_path / "keepstep-x-mine").mkdir()
    (tmp_path / "keepstep-y-1-1-other").mkdir()
    process = subprocess.Popen([sys.executable, "-c", CODE, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    theirs = Path(process.stdout.readline().strip())
    own = make_scratch("keepstep-x", tmp_path)
    assert theirs.is_dir()
    process.kill()
    process.communicate()
    again = make_scratch("keepstep-x", tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([own.name, again.name, "keepstep-x-mine", "keepstep-y-1-1-other"])

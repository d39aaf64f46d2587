"""`keepstep ls` of many checkpoints, the start of Python included, beside the start of Python and typer alone.

python -m benchmarks.listing --json result.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.rig.folders import make_checkpoint

from benchmarks.measure import machine, timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="checkpoints")
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def start(code: str, *arguments: str) -> None:
        command = [sys.executable, "-c", code, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)

    with tempfile.TemporaryDirectory(prefix="keepstep-bench-") as scratch:
        run = Path(scratch) / "run"
        for step in range(1, options.count + 1):
            make_checkpoint(run, step, size=100)
        code = "from keepstep.cli.main import main; main()"
        bare = timed("python with typer, nothing done", lambda: start("import typer"))
        ls = timed(f"keepstep ls of {options.count} checkpoints", lambda: start(code, "ls", str(run)))
    ratios = {"ls_seconds": ls.median, "ls_vs_bare_python": ls.median / bare.median}
    print("\n" + "\n".join(f"{name:24s} {value:.2f}" for name, value in ratios.items()))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "ratios": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()

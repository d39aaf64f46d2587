"""`keepstep report` of a long run: seconds to make the page, its bytes, and seconds until Chromium has painted it.

python -m benchmarks.report --json result.json

The run has 10,000 steps, 200 checkpoints and 5 attempts. Opening is measured without a network, beside an empty page,
and left out where no Chromium is installed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.rig.browser import CHROMIUM, browser
from tests.rig.report_runs import long_run

from benchmarks.measure import machine, timed

_RUNS = 5


def opened(page: Path, scratch: Path) -> dict[str, float]:
    """Median seconds until an empty page and the report are painted."""
    empty = scratch / "empty.html"
    empty.write_text("<!DOCTYPE html><title>empty</title>")
    seconds: dict[str, list[float]] = {"empty_page_seconds": [], "open_seconds": [], "open_on_a_phone_seconds": []}
    with browser(scratch) as chromium:
        for _ in range(_RUNS):  # by turns: the machine's speed drifts
            seconds["empty_page_seconds"].append(chromium.open(empty))
            seconds["open_seconds"].append(chromium.open(page))
            seconds["open_on_a_phone_seconds"].append(chromium.open(page, width=360))
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--checkpoints", type=int, default=200)
    parser.add_argument("--attempts", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the result here")
    options = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    code = "from keepstep.cli.main import main; main()"

    with tempfile.TemporaryDirectory(prefix="keepstep-bench-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        run = long_run(
            scratch / "run",
            steps=options.steps,
            checkpoints=options.checkpoints,
            attempts=options.attempts,
            ranks=options.ranks,
        )
        page = scratch / "report.html"

        def keepstep(*words: object) -> None:
            command = [sys.executable, "-c", code, *map(str, words)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)

        report = timed("keepstep report", lambda: keepstep("report", run, "-o", page))
        top = timed("keepstep top --once", lambda: keepstep("top", run, "--once"))
        ratios = {"report_seconds": report.median, "top_seconds": top.median, "page_mb": page.stat().st_size / 1e6}
        if CHROMIUM:
            ratios |= opened(page, scratch)
    print("\n" + "\n".join(f"{name:24s} {value:.3f}" for name, value in ratios.items()))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "ratios": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Embeds functions of the standard library, is killed in the middle, goes on, and searches in what came out.

python examples/embed/demo.py
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = Path("runs/embed")
KEEPSTEP = (sys.executable, "-c", "import sys; from keepstep.cli.main import main; sys.argv[0] = 'keepstep'; main()")
KILLED_AT = 50
WISHES = ("parse a date", "compress bytes", "open a connection to a server", "sort a list in place")


def main() -> None:
    options = sys.argv[1:]
    if options:
        say(f"Options for both starts: {' '.join(options)}")
    shutil.rmtree(FOLDER, ignore_errors=True)
    say(f"The first start, killed after the commit of step {KILLED_AT}")
    begun = time.monotonic()
    process = subprocess.Popen(command("infer", HERE / "embed.yaml", *options), env=environment())
    while not (FOLDER / "saves" / f"save-{KILLED_AT}").is_dir():
        if process.poll() is not None:
            sys.exit(f"it ended before it saved step {KILLED_AT}")
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    print(f"killed (SIGKILL) after {time.monotonic() - begun:.0f} s", flush=True)
    run("outputs", "ls", FOLDER / "vectors")
    say("The same command again")
    run("infer", HERE / "embed.yaml", *options)
    run("outputs", "verify", FOLDER / "vectors")
    say("Search")
    for wish in WISHES:
        subprocess.run([sys.executable, HERE / "search.py", wish], env=environment(), check=True)


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def command(*words: object) -> list[str]:
    return [*KEEPSTEP, *map(str, words)]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    return {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", **os.environ, "PYTHONPATH": path}


def run(*words: object) -> None:
    print("$ keepstep", *words, flush=True)
    if subprocess.run(command(*words), env=environment(), check=False).returncode:
        sys.exit(f"keepstep {words[0]} failed")


if __name__ == "__main__":
    main()

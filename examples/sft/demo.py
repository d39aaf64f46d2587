"""Kills the fine-tuning in the middle of a save, starts it again, and compares it with a run that nobody killed.

python examples/sft/demo.py
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
COMMAND = [sys.executable, "-c", "import sys; from keepstep.cli.main import main; sys.argv[0] = 'keepstep'; main()"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path("runs/sft"))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--base-steps", type=int, default=80)
    parser.add_argument("--kill-at", type=int, default=30, help="the step whose save is not to end")
    arguments = parser.parse_args()
    base, killed, whole = (arguments.folder / name for name in ("base", "killed", "whole"))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for old in (killed, whole):
        shutil.rmtree(old, ignore_errors=True)
    if not base.is_dir():
        say(f"No base model in {base} yet: making one")
        run("base.py", base, "--steps", arguments.base_steps, shows=("base model",))

    options = ("--base", base, "--steps", arguments.steps)
    say(f"The first start, killed while it saves step {arguments.kill_at}")
    kill_in_a_save(killed, arguments.kill_at, options)
    keepstep("ls", killed)
    say("The same command again")
    run("train.py", killed, *options, shows=("resumed", "starting", "saved", "deleted"))
    say("Another run, that nobody kills")
    run("train.py", whole, *options, shows=("resumed", "starting"))

    say("Losses")
    are_same = compare(killed, whole)
    say("The folder")
    keepstep("ls", killed)
    newest = max(killed.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    keepstep("show", newest)
    keepstep("verify", killed)
    if not are_same:
        sys.exit("the killed run is another run")


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


def start(script: str, *arguments: object, output: int | IO[str] = subprocess.PIPE) -> "subprocess.Popen[str]":
    environment = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True, env=environment)


def run(script: str, *arguments: object, shows: tuple[str, ...]) -> None:
    """Run to the end. Shows lines that begin so; all of them, where it fails."""
    begun = time.monotonic()
    process = start(script, *arguments)
    output, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{output}\n{script} failed")
    lines = [line for line in output.splitlines() if line.startswith(shows)]
    print("\n".join(lines), f"\n({time.monotonic() - begun:.0f} s)", flush=True)


def kill_in_a_save(folder: Path, step: int, options: tuple[object, ...]) -> None:
    """SIGKILL when the temporary folder of this step's save is there, or after that save where it was quicker."""
    with tempfile.TemporaryFile("w+") as output, start("train.py", folder, *options, output=output) as process:
        while process.poll() is None:
            under_way = next(folder.glob(f".checkpoint-{step}.tmp-*"), None)
            if under_way or (folder / f"checkpoint-{step}").is_dir():
                process.kill()
                process.wait()
                print(
                    f"killed (SIGKILL); {f'{under_way.name} was there' if under_way else 'the save had just ended'}",
                    flush=True,
                )
                return
            time.sleep(0.002)
        output.seek(0)
        sys.exit(f"{output.read()}\nit ended before it saved step {step}")


def compare(killed: Path, whole: Path) -> bool:
    """Print some steps; whether all losses and the last weights are the same, bit for bit."""
    one, other = losses(killed), losses(whole)
    print("step   killed and resumed   not killed")
    for step in [1, *range(5, max(other) + 1, 5)]:
        print(f"{step:4}   {one.get(step, '-'):<18}   {other[step]:<18}")
    weights = [(folder / "adapter" / "adapter_model.safetensors").read_bytes() for folder in (killed, whole)]
    same = sum(one.get(step) == loss for step, loss in other.items())
    print(f"{same} of {len(other)} losses are the same, bit for bit; the adapters are", end=" ")
    print("the same, byte for byte" if weights[0] == weights[1] else "NOT the same", flush=True)
    return one == other and weights[0] == weights[1]


def losses(folder: Path) -> dict[int, float]:
    """The loss of each step, from the newest checkpoint."""
    newest = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    history = json.loads((newest / "trainer_state.json").read_text())["log_history"]
    return {one["step"]: one["loss"] for one in history if "loss" in one}


def keepstep(*arguments: object) -> None:
    text = [str(one) for one in arguments]
    print("$ keepstep", *text, flush=True)
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src")}
    subprocess.run([*COMMAND, *text], check=False, env=environment)


if __name__ == "__main__":
    main()

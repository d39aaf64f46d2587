"""Checks and times the paths that need a GPU. Under five minutes; says what it skipped and why.

python -m benchmarks.gpu_check --gib 4 --dir /scratch
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import keepstep
from benchmarks.measure import machine


class Weights(nn.Module):
    """Tensors of 32 MiB, on the GPU."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.randn(2048, 4096, device="cuda")) for _ in range(count))
        self.register_buffer("strided", torch.randn(512, 512, device="cuda").t()[::2])
        self.register_buffer("half", torch.randn(1000, device="cuda", dtype=torch.bfloat16))


def checkpointer(model: nn.Module, folder: Path, mode: str) -> keepstep.Checkpointer:
    config = keepstep.CheckpointingConfig(save_dir=str(folder), period_steps=1, num_to_keep=2, mode=mode)
    return keepstep.Checkpointer(config, keepstep.JobState(model=model), handle_signals=False)


def bits(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


def fill(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(value)


def check(name: str, good: bool) -> None:
    print(f"{'ok  ' if good else 'FAIL'} {name}", flush=True)
    if not good:
        sys.exit(1)


def run(gib: float, folder: Path) -> None:
    model = Weights(max(1, round(gib * 32)))
    before = bits(model)
    for mode in ("sync", "async"):
        path = folder / mode
        with checkpointer(model, path, mode) as saver:
            saver.resume()
            for step in range(1, 5):
                torch.cuda.synchronize()
                start = time.perf_counter()
                saver.save(step)
                stall = time.perf_counter() - start
                fill(model, -1.0)  # the job goes on at once
                saver.wait()
                whole = time.perf_counter() - start
                print(f"     {mode} save {step}: stall {stall:.3f} s, written after {whole:.3f} s", flush=True)
                with torch.no_grad():
                    for value, kept in zip(model.state_dict().values(), before, strict=True):
                        value.copy_(kept)
        fill(model, 0.0)
        torch.cuda.synchronize()
        start = time.perf_counter()
        with checkpointer(model, path, "sync") as loader:
            loader.resume()
        torch.cuda.synchronize()
        print(f"     resume: {time.perf_counter() - start:.3f} s", flush=True)
        check(f"{mode}: every bit comes back, though the job went on", same(bits(model), before))
        state = {f"model.{name}": torch.zeros_like(value) for name, value in model.state_dict().items()}
        start = time.perf_counter()
        dcp.load(state, checkpoint_id=path / "save-4", no_dist=True)
        print(f"     dcp.load of the same folder: {time.perf_counter() - start:.3f} s", flush=True)
        check(f"{mode}: plain DCP reads the same", same(list(state.values()), before))
    plain = {"m": model.state_dict()}
    dcp.save(plain, checkpoint_id=folder / "plain", no_dist=True)
    fill(model, 0.0)
    start = time.perf_counter()
    keepstep.load_dcp(plain, folder / "plain")
    print(f"     load_dcp of plain DCP's folder: {time.perf_counter() - start:.3f} s", flush=True)
    check("plain DCP's folder comes back", same(bits(model), before))
    fused = torch.optim.AdamW(model.parameters(), fused=True)
    sum(parameter.sum() for parameter in model.parameters()).backward()
    fused.step()
    config = keepstep.CheckpointingConfig(save_dir=str(folder / "fused"), period_steps=1, mode="async")
    with keepstep.Checkpointer(config, keepstep.JobState(model=model, optimizer=fused), handle_signals=False) as saver:
        saver.save(1)
    steps = [slots["step"].clone() for slots in fused.state.values()]
    fused.state.clear()
    with keepstep.Checkpointer(config, keepstep.JobState(model=model, optimizer=fused), handle_signals=False) as loader:
        loader.resume()
    back = [slots["step"] for slots in fused.state.values()]
    check("a fused optimizer's step counts come back to the GPU", same(back, steps) and all(b.is_cuda for b in back))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=4.0, help="size of the state")
    parser.add_argument("--dir", type=Path, help="scratch folder on the disk that counts")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: this machine has no GPU that torch can use")
        return
    print({**machine(), "gpu": torch.cuda.get_device_name()})
    folder = Path(tempfile.mkdtemp(dir=options.dir, prefix="keepstep-gpu-"))
    try:
        run(options.gib, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

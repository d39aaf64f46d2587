"""Scores one checkpoint of the example on some held-out files: what `keepstep watch` runs.

keepstep watch runs/checkpoints/stdlib-lm --score "python examples/stdlib_lm/score.py {checkpoint} 0:6" \
    --set canary="python examples/stdlib_lm/score.py {checkpoint} 6:8"
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import corpus
from gpt import GPT
from tasks import BitsPerByte

import keepstep


def main(checkpoint: str, files: str) -> None:
    begin, _, end = files.partition(":")
    model = GPT().eval()
    keepstep.load_dcp({"model": model.state_dict()}, checkpoint)  # fills the tensors in place
    chosen = corpus.source_files(held_out=True)[int(begin) : int(end)]
    with torch.inference_mode():
        rows = BitsPerByte(80).predict(model, [(path.name, path.read_bytes()[:4000]) for path in chosen])
    bits = sum(row["bits_per_byte"] * row["bytes"] for row in rows) / sum(row["bytes"] for row in rows)
    print(json.dumps({"bits_per_byte": bits, "files": len(rows)}))


if __name__ == "__main__":
    main(*sys.argv[1:])

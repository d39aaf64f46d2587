"""Prints where the example's results lie, and how its model compares with counting."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import corpus
from ngram import bigram_bits, trigram_bits

RUN = Path("runs/checkpoints/stdlib-lm")
EXPORT = Path("runs/export")
OUTPUT = Path("runs/bits_per_byte.jsonl")


def main() -> None:
    rows = [json.loads(line) for line in OUTPUT.read_text().splitlines()]
    total = sum(row["bytes"] for row in rows)
    model = sum(row["bits_per_byte"] * row["bytes"] for row in rows) / total
    train, held_out = corpus.text(held_out=False), corpus.text(held_out=True)
    print(f"\nbits per byte on {len(rows)} held-out files ({total:,} bytes; the fewer, the better):")
    print(f"  bigram, counted on the same text   {bigram_bits(train, held_out):.3f}")
    print(f"  trigram, counted on the same text  {trigram_bits(train, held_out):.3f}")
    print(f"  this model                         {model:.3f}")
    print("\nwhere things lie:")
    print(f"  checkpoints    {RUN}/          (look: .venv/bin/keepstep ls {RUN})")
    print(f"  loss and rate  {RUN}/metrics.jsonl")
    print(f"  weights        {EXPORT}/model.safetensors")
    print(f"  results        {OUTPUT}")


if __name__ == "__main__":
    main()

"""Finds functions of the standard library by what they do.

python examples/embed/search.py "parse a date"
"""

import argparse
import json
from pathlib import Path

import minilm
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open


def load(folder: Path) -> tuple[list[str], NDArray[np.float32]]:
    """Ids and vectors of all committed parts; a job may be at work there."""
    ids, vectors = list[str](), [np.zeros((0, 384), np.float32)]
    # A part is called so from its commit on; jobs that share the input have a folder each.
    for path in sorted([*folder.glob("part-*.safetensors"), *folder.glob("shard-*/part-*.safetensors")]):
        with safe_open(path, framework="np") as part:
            ids += json.loads(part.metadata()["ids"])
            vectors.append(part.get_tensor("embedding"))
    return ids, np.concatenate(vectors)


def best(text: str, ids: list[str], vectors: NDArray[np.float32], count: int) -> list[tuple[float, str]]:
    """The functions whose vectors point where that of the text does: cosine and id."""
    with torch.inference_mode():
        wanted = minilm.embed(minilm.model(), minilm.tokens(minilm.tokenizer(), [text]))[0].numpy()
    likeness = vectors @ wanted
    return [(float(likeness[index]), ids[index]) for index in np.argsort(-likeness)[:count]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Find functions of the standard library by what they do.")
    parser.add_argument("text")
    parser.add_argument("--folder", type=Path, default=Path("runs/embed/vectors"))
    parser.add_argument("--count", type=int, default=5)
    arguments = parser.parse_args()
    ids, vectors = load(arguments.folder)
    if not ids:
        raise SystemExit(f"{arguments.folder} holds no vectors: keepstep infer examples/embed/embed.yaml")
    print(f"{arguments.text!r} among {len(ids)} functions:")
    for cosine, where in best(arguments.text, ids, vectors, arguments.count):
        print(f"  {cosine:.2f}  {where}")


if __name__ == "__main__":
    main()

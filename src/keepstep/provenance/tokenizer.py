"""Tells one tokenizer from another by what it does with text."""

import hashlib
import json
from typing import Any

# Set by each call that pads or cuts, so they say what was called last.
_OF_CALLS = ("truncation", "padding")
_OF_WRAPPERS = ("chat_template", "model_max_length", "padding_side", "truncation_side")


def is_tokenizer(value: Any) -> bool:
    """Whether this is a tokenizer of Hugging Face: of `tokenizers`, or of `transformers`."""
    of_tokenizers = type(value).__module__.partition(".")[0] == "tokenizers" and hasattr(value, "to_str")
    return of_tokenizers or (hasattr(value, "get_vocab") and hasattr(value, "convert_tokens_to_ids"))


def tokenizer_text(tokenizer: Any) -> str:
    """All that decides what a tokenizer makes of a text, as one text."""
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(inner, "to_str"):
        content = json.loads(inner.to_str())
        for name in _OF_CALLS:
            content.pop(name, None)
    else:
        added = getattr(tokenizer, "added_tokens_encoder", {})
        content = {"vocabulary": tokenizer.get_vocab(), "added": added, "class": type(tokenizer).__name__}
    wrapper = {name: repr(getattr(tokenizer, name, None)) for name in _OF_WRAPPERS}
    special = {name: str(token) for name, token in getattr(tokenizer, "special_tokens_map", {}).items()}
    return json.dumps({"tokenizer": content, "wrapper": wrapper, "special": special}, sort_keys=True)


def tokenizer_digest(tokenizer: Any) -> str:
    """SHA-256 (hex) of `tokenizer_text`."""
    return hashlib.sha256(tokenizer_text(tokenizer).encode()).hexdigest()

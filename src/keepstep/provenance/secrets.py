"""Takes secrets out of what is written down: a checkpoint is copied to places where its job's keys must not go."""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

MASK = "***"
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset(
    {"password", "passwd", "pwd", "passphrase", "secret", "secrets", "credential", "credentials", "bearer", "apikey"}
)
_SECRET_PAIRS = frozenset(
    {("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key"), ("account", "key"), ("auth", "key")}
)
# A token of a vocabulary is no secret: pad_token, eos_token, image_token.
_VOCABULARY = frozenset(
    {"pad", "eos", "bos", "unk", "sep", "cls", "mask", "special", "image", "start", "end", "stop", "added", "prompt"}
)
# Shapes of keys that services hand out, wherever they stand.
_SHAPES = re.compile(
    r"hf_[A-Za-z0-9]{16,}"
    r"|sk-[A-Za-z0-9_-]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[A-Za-z0-9_-]{30,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
)
_AFTER_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~-]{8,}")
_IN_URL = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+(?=@)")
_IN_QUERY = re.compile(
    r"(?i)\b([\w-]*(?:token|secret|password|passwd|signature|api[_-]?key|access[_-]?key|credential)[\w-]*|sig)"
    r"(\s*=\s*)[^&\s,;]+"
)


def masked(value: Any) -> Any:
    """The same containers, with every value that looks like a secret replaced by "***"."""
    if isinstance(value, Mapping):
        return {name: _masked_under(str(name), held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one) for one in value]
    return masked_text(value) if isinstance(value, str) else value


def masked_text(text: str) -> str:
    """A text without the secrets that can be told by their shape."""
    text = _SHAPES.sub(MASK, text)
    text = _AFTER_BEARER.sub(rf"\1 {MASK}", text)
    text = _IN_URL.sub(rf"\1:{MASK}", text)
    return _IN_QUERY.sub(rf"\1\2{MASK}", text)


def _masked_under(name: str, value: Any) -> Any:
    if not names_a_secret(name):
        return masked(value)
    if isinstance(value, Mapping):
        return {inner: _mask_all(held) for inner, held in value.items()}
    return _mask_all(value)


def _mask_all(value: Any) -> Any:
    """Under the name of a secret all texts are masked, and numbers too: a PIN is one. Nothing, yes and no are kept."""
    if isinstance(value, Mapping):
        return {name: _mask_all(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_mask_all(one) for one in value]
    return value if value is None or isinstance(value, bool) or value == "" else MASK


def names_a_secret(name: str) -> bool:
    """Whether what stands under a name is to be kept to oneself."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if _SECRET_WORDS & set(words) or any(pair in _SECRET_PAIRS for pair in pairwise(words)):
        return True
    # "tokens" counts, "token" names one: max_tokens is a number, hf_token a key.
    return bool(words) and words[-1] == "token" and not _VOCABULARY & set(words)

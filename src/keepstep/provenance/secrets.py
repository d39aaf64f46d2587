"""Takes secrets out of what is written down: a checkpoint is copied to places where its job's keys must not go."""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

MASK = "***"
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_WORDS = frozenset(
    {
        *("password", "passwd", "pass", "passphrase", "secret", "secrets", "credential", "credentials", "bearer"),
        *("auth", "authorization", "cookie", "cookies", "dsn", "apikey", "apitoken", "hftoken", "authtoken"),
        *("accesstoken", "accesskey", "secretkey", "privatekey", "webhook"),
    }
)
# A key opens something; "key" alone, or what it is the key of, is a name.
_KEYS_OF = frozenset(
    {
        "api",
        "access",
        "private",
        "secret",
        "account",
        "auth",
        "ssh",
        "encryption",
        "license",
        "wandb",
        "signing",
        "storage",
    }
)
_PAIRS = frozenset({("connection", "string"), ("webhook", "url"), ("sas", "url")})
# A token of a vocabulary is no secret: pad_token, eos_token, image_token; nor is a number of tokens.
_VOCABULARY = frozenset(
    {
        *("pad", "eos", "bos", "unk", "sep", "cls", "mask", "special", "image", "audio", "video", "start", "end"),
        *("stop", "added", "prompt", "max", "min", "num", "per", "new", "next", "first", "last", "sharing"),
    }
)
# Shapes of keys that services hand out, wherever they stand.
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}"
    r"|sk-(?:proj-|ant-|or-)?[A-Za-z0-9_]*(?=[A-Za-z_-]*[0-9A-Z])[A-Za-z0-9_]{16,}[A-Za-z0-9_-]*"
    r"|sk_(?:live|test)_[A-Za-z0-9]{10,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|npm_[A-Za-z0-9]{20,}|dckr_pat_[A-Za-z0-9_-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[A-Za-z0-9_-]{30,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r")"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
    r"|(?<=hooks\.slack\.com/services/)[A-Za-z0-9/]+"
)
_AFTER_SCHEME = re.compile(
    r"(?i)(authorization\s*[:=]\s*(?:bearer|basic|token)?\s*)[^\s,;\"']+|\b(bearer\s+)[A-Za-z0-9+/=._~-]{8,}"
)
# Up to the last @ before the path: a password may hold one.
_IN_URL = re.compile(r"(?<=://)(?:([^/@\s:]*):[^\s]*|[A-Za-z0-9_.~-]{16,})(?=@[^@\s/]+(?:/|$|\s|:))")
_GIVEN = re.compile(
    r"(?i)(?<![A-Za-z0-9])((?:[\w-]*[_-])?(?:password|passwd|passphrase|secret|signature|api[_-]?key|access[_-]?key|"
    r"account[_-]?key|secret[_-]?key|credential|access[_-]?token|auth[_-]?token|hf[_-]?token|token|sig))"
    r"(\s*[:=]\s*|(?<=--password)\s+|(?<=--token)\s+|(?<=--secret)\s+|(?<=--api-key)\s+)[^&\s,;\"']+"
)


def masked(value: Any) -> Any:
    """The same containers, with every value that looks like a secret replaced by "***"."""
    if isinstance(value, Mapping):
        return {name: _masked_under(str(name), held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one) for one in value]
    return masked_text(value) if isinstance(value, str) else value


def masked_text(text: str) -> str:
    """A text without the secrets that can be told by their shape, or by the name before them."""
    text = _SHAPES.sub(MASK, text)
    text = _AFTER_SCHEME.sub(lambda found: f"{found[1] or found[2]}{MASK}", text)
    text = _IN_URL.sub(lambda found: f"{found[1]}:{MASK}" if found[1] is not None else MASK, text)
    return _GIVEN.sub(lambda found: found[0] if _is_of_a_vocabulary(found[1]) else f"{found[1]}{found[2]}{MASK}", text)


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
    if _is_of_a_vocabulary(name):
        return False
    pairs = set(pairwise(words))
    if (
        _SECRET_WORDS & set(words)
        or _PAIRS & pairs
        or any(first in _KEYS_OF and last == "key" for first, last in pairs)
    ):
        return True
    # "tokens" counts, "token" names one: max_tokens is a number, hf_token a key.
    return words[-1:] == ["token"]


def _is_of_a_vocabulary(name: str) -> bool:
    return bool(_VOCABULARY & {word.lower() for word in _WORDS.findall(name)})

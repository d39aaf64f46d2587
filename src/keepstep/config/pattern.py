"""Patterns of tensor names: literal text with placeholders."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)(\*?)\}")


@dataclass(frozen=True)
class NamePattern:
    """A name in which `{layer}` stands for one or more characters without a dot, `{rest*}` for any of them.

    A placeholder that stands twice has the same text in both places. Made by `name_pattern`.

    Attributes:
        text: as it was written.
        placeholders: their names, each once, in the order of the text.
    """

    text: str
    placeholders: tuple[str, ...]
    _expression: re.Pattern[str]

    def match(self, name: str) -> dict[str, str] | None:
        """What the placeholders stand for in `name`; None if it is another name."""
        found = self._expression.fullmatch(name)
        return None if found is None else found.groupdict()

    def match_prefix(self, name: str) -> tuple[str, dict[str, str]] | None:
        """The beginning of `name` that this pattern matches, and its placeholders; None if it begins otherwise."""
        found = self._expression.match(name)
        return None if found is None else (found.group(), found.groupdict())

    def fill(self, values: Mapping[str, str]) -> str:
        """The name with `values` in place of the placeholders. Raises KeyError for one that has no value."""
        return _PLACEHOLDER.sub(lambda found: values[found[1]], self.text)


@cache
def name_pattern(text: str) -> NamePattern:
    """Read a pattern. Raises ValueError for braces that are no placeholder."""
    names: dict[str, str] = {}
    expression, end = "", 0
    for found in _PLACEHOLDER.finditer(text):
        expression += re.escape(text[end : found.start()])
        name, spans_dots = found[1], bool(found[2])
        if name in names:
            if names[name] != found[2]:
                raise ValueError(f"{text!r}: {{{name}}} and {{{name}*}} cannot both stand in one pattern")
            expression += f"(?P={name})"
        else:
            expression += f"(?P<{name}>.+)" if spans_dots else f"(?P<{name}>[^.]+)"
        names[name] = found[2]
        end = found.end()
    expression += re.escape(text[end:])
    if set("{}") & set(_PLACEHOLDER.sub("", text)):
        raise ValueError(f"{text!r}: a placeholder looks like {{layer}}, or {{rest*}} for text with dots")
    return NamePattern(text, tuple(names), re.compile(expression))


def can_overlap(first: str, second: str) -> bool:
    """Whether some name matches both patterns (repeated placeholders are taken as independent)."""
    a, b = _tokens(first), _tokens(second)
    seen: set[tuple[int, int]] = set()
    open_pairs = [(0, 0)]
    while open_pairs:
        i, j = open_pairs.pop()
        if (i, j) in seen:
            continue
        seen.add((i, j))
        if i == len(a) and j == len(b):
            return True
        if i < len(a) and a[i].repeats:
            open_pairs.append((i + 1, j))
        if j < len(b) and b[j].repeats:
            open_pairs.append((i, j + 1))
        if i < len(a) and j < len(b) and a[i].shares_a_character_with(b[j]):
            open_pairs.append((i if a[i].repeats else i + 1, j if b[j].repeats else j + 1))
    return False


@dataclass(frozen=True)
class _Token:
    """One character of a name, or several: `literal` none means any, without the dot unless `dots`."""

    literal: str | None
    dots: bool = False
    repeats: bool = False

    def shares_a_character_with(self, other: "_Token") -> bool:
        if self.literal is None and other.literal is None:
            return True
        if self.literal is not None and other.literal is not None:
            return self.literal == other.literal
        literal, wild = (self, other) if self.literal is not None else (other, self)
        return literal.literal != "." or wild.dots


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    end = 0
    for found in _PLACEHOLDER.finditer(text):
        tokens += [_Token(c) for c in text[end : found.start()]]
        dots = bool(found[2])
        tokens += [_Token(None, dots), _Token(None, dots, repeats=True)]
        end = found.end()
    return tokens + [_Token(c) for c in text[end:]]

"""Texts from files, before they are shown."""


def shown(text: str) -> str:
    """A text without what no page and no terminal may get: control characters and halves of pairs are written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

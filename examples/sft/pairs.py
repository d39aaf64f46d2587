"""Questions and answers from the docstrings of the Python standard library on this machine. Nothing is imported."""

import ast
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(sysconfig.get_paths()["stdlib"])
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data", "encodings"}
_SHORTEST, _LONGEST = 20, 240
_HEAD = 2000


def pairs() -> list[dict[str, str]]:
    """All pairs, in the order of the files' names and of their lines."""
    return [
        {"prompt": f"Question: What does {name} do?\nAnswer:", "completion": f" {answer}"}
        for name, answer in _documented()
    ]


def sources() -> list[str]:
    """The beginnings of the source files."""
    return [path.read_text(errors="replace")[:_HEAD] for path in _files()]


def _documented() -> Iterator[tuple[str, str]]:
    for path in _files():
        with warnings.catch_warnings(action="ignore"):  # old files have escapes that newer versions warn of
            tree = ast.parse(path.read_bytes())
        module = ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            answer = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            if _SHORTEST <= len(answer) <= _LONGEST:
                yield f"{module}.{node.name}", answer


def _files() -> list[Path]:
    found = []
    for folder, subfolders, names in os.walk(_ROOT):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED]
        found += [
            Path(folder, name) for name in names if name.endswith(".py") and not name.startswith("_sysconfigdata")
        ]
    return sorted(found)

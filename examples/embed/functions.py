"""All functions of the Python standard library on this machine, in the order of their files and lines."""

import ast
import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import minilm

from keepstep.job.protocols import JobContext

_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data", "encodings"}
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ROOT = Path(sysconfig.get_paths()["stdlib"])


@dataclass(frozen=True)
class Function:
    """One function: where it stands, and its source without the indentation of the first line."""

    file: str
    line: int
    name: str
    source: str


def functions() -> list[Function]:
    """Every function and method, also those inside of others."""
    return [function for path in _files() for function in _functions_of(path)]


def _files() -> list[Path]:
    found = []
    for folder, subfolders, names in os.walk(_ROOT):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED]
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(found)


def _functions_of(path: Path) -> Iterator[Function]:
    file, data = path.relative_to(_ROOT).as_posix(), path.read_bytes()
    lines = data.splitlines()

    def walk(node: ast.AST, within: str) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, _NAMED):
                yield from walk(child, within)
                continue
            name = f"{within}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                source = b"\n".join(lines[child.lineno - 1 : child.end_lineno]).decode(errors="replace")
                yield Function(file, child.lineno, name, source.strip())
            yield from walk(child, name)

    yield from walk(ast.parse(data), "")


class Functions:
    """The data set. A batch is the tokens of its functions."""

    kind = "functions of the standard library"

    def __init__(self, found: list[Function]) -> None:
        self._functions = found
        self.tokenizer = minilm.tokenizer()

    def __len__(self) -> int:
        return len(self._functions)

    def __getitem__(self, index: int) -> str:
        function = self._functions[index]
        return f"{function.name}\n{function.source}"

    def id_of(self, index: int) -> str:
        """What the search shows."""
        function = self._functions[index]
        return f"{function.file}:{function.line} {function.name}"

    def fingerprint(self) -> str:
        """Of all that is read, so that a run does not go on after an update of Python."""
        digest = hashlib.sha256()
        for index in range(len(self)):
            digest.update(f"{self.id_of(index)}\n{self[index]}\0".encode())
        return digest.hexdigest()

    def collate(self, samples: list[str]) -> Any:
        return minilm.tokens(self.tokenizer, samples)


def some(context: JobContext) -> Functions:
    """Every eighth function: about two minutes on two cores."""
    return Functions(functions()[::8])


def everything(context: JobContext) -> Functions:
    """All functions."""
    return Functions(functions())

"""What readers of Hugging Face's layout want beside the weights: configuration and tokenizer."""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from keepstep.errors import ConfigError
from keepstep.export.folder import read_export, scratch_name
from keepstep.export.stream import WrittenFile, digest_of

logger = logging.getLogger("keepstep")

NAMES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "preprocessor_config.json",
    "processor_config.json",
)
TOKENIZER_FILES = NAMES[NAMES.index("tokenizer.json") : NAMES.index("preprocessor_config.json")]
_DTYPE_FIELDS = ("dtype", "torch_dtype")


def has_side_files(folder: str | Path) -> bool:
    """Whether a folder has any of the known files."""
    return bool(_known(folder))


def find_side_files(folder: str | Path) -> list[Path]:
    """The known files of a folder, links followed. Raises ConfigError where it has none."""
    found = _known(folder)
    if not found:
        raise ConfigError(f"{folder} has neither a configuration nor a tokenizer ({', '.join(NAMES[:4])}, ...)")
    return found


def _known(folder: str | Path) -> list[Path]:
    return [path for name in NAMES if (path := Path(folder) / name).is_file()]


def copy_side_files(found: list[Path], folder: Path, target: Path, dtype: str | None) -> dict[str, WrittenFile]:
    """Copy files to a folder under their scratch names, and sync them.

    One that lies in the target already, and is not as an earlier export wrote it, is the user's and stays.

    Args:
        found: the files.
        folder: where they are written.
        target: where they are to be.
        dtype: what the weights were cast to; `config.json` is to say so, if it says anything about that.
    """
    recorded = read_export(target).get("files", {})
    written = {}
    for path in found:
        if not _is_ours(target / path.name, recorded):
            logger.warning("%s is not keepstep's and stays as it is", target / path.name)
            continue
        scratch = folder / scratch_name(path.name)
        shutil.copyfile(path, scratch)
        if dtype is not None and path.name == "config.json":
            _set_dtype(scratch, dtype)
        descriptor = os.open(scratch, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        written[path.name] = digest_of(scratch)
    return written


def _is_ours(path: Path, recorded: object) -> bool:
    if not os.path.lexists(path):
        return True
    known = recorded.get(path.name) if isinstance(recorded, Mapping) else None
    return isinstance(known, Mapping) and path.is_file() and digest_of(path).digest == known.get("digest")


def _set_dtype(path: Path, dtype: str) -> None:
    try:
        config = json.loads(path.read_text())
    except ValueError:
        return
    fields = [name for name in _DTYPE_FIELDS if isinstance(config, dict) and name in config]
    if fields:
        path.write_text(json.dumps({**config, **dict.fromkeys(fields, dtype)}, indent=2) + "\n")

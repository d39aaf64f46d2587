"""Looks whether a checkpoint that a Trainer wrote alone is whole, without running anything that it holds."""

import json
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from keepstep.errors import DamagedCheckpointError
from keepstep.ops.safetensors_source import names_in
from keepstep.plan import layout
from keepstep.plan.adopt import AdoptFacts
from keepstep.plan.trainer_files import SAFETENSORS, STATE, dcp_folders, is_archive
from keepstep.storage.folder_files import files_below
from keepstep.storage.json_file import read_json
from keepstep.storage.plain import NotPlainError, open_plain
from keepstep.storage.survey import SurveyedCheckpoint

_INDEX = f"{SAFETENSORS}.index.json"
_BIN_INDEX = ".bin.index.json"


def look_at(checkpoint: SurveyedCheckpoint) -> AdoptFacts:
    """What there is to know of one checkpoint before it is adopted.

    Raises:
        CouldNotLookError, OSError: something in it cannot be read.
    """
    path, found = checkpoint.path, checkpoint.found
    if checkpoint.manifest is not None or os.path.lexists(path / layout.MANIFEST):
        problem = "" if checkpoint.manifest is not None else found.problem
        return AdoptFacts(found.step, found.condition, found.problem, {}, None, (problem,) if problem else ())
    try:
        files = dict(files_below(path, own_names(path) | {layout.SCORE_MARK}))
    except ValueError as error:
        return AdoptFacts(found.step, found.condition, found.problem, {}, None, (str(error),))
    step = read_json(path / STATE).get("global_step")
    is_step = isinstance(step, int) and not isinstance(step, bool)
    problems = tuple(_problems(path, files))
    return AdoptFacts(found.step, found.condition, found.problem, files, step if is_step else None, problems)


def own_names(path: Path) -> set[str]:
    """Names of files that an adoption left that did not end: its run record, and scratch files."""
    scratch = (f".{layout.RUN_RECORD}.", f".{layout.MANIFEST}.")
    found = {name for name in os.listdir(path) if name.startswith(scratch) and name.endswith(".tmp")}
    return found | ({layout.RUN_RECORD} if read_json(path / layout.RUN_RECORD).get("adopted") is True else set())


def _problems(path: Path, files: dict[str, int]) -> Iterable[str]:
    tensors: dict[str, set[str]] = {}
    for name in files:
        if name.endswith(SAFETENSORS):
            try:
                tensors[name] = names_in(path / name)
            except DamagedCheckpointError as error:
                yield f"{name} is not whole: {error}"
        elif is_archive(name) and (problem := _archive_problem(path / name)):
            yield f"{name} is not whole: {problem}"
    for name in files:
        if name.endswith((_INDEX, _BIN_INDEX)):
            yield from _index_problems(path, name, files, tensors)
    for folder in dcp_folders(files):
        if f"{folder}{layout.METADATA}" not in files:
            yield f"{folder}{layout.METADATA} is missing"


def _index_problems(path: Path, name: str, files: dict[str, int], tensors: dict[str, set[str]]) -> Iterable[str]:
    """What an index names and the files do not have."""
    places = read_json(path / name).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(one, str) for one in places.values()):
        yield f"{name} is not readable as an index"
        return
    folder = name[: name.rfind("/") + 1]
    absent = sorted({file for file in places.values() if folder + file not in files})
    yield from (f"{folder}{file} is missing, and {name} names it" for file in absent)
    for tensor, file in places.items():
        if folder + file in tensors and tensor not in tensors[folder + file]:
            yield f"{folder}{file} has no {json.dumps(tensor)}, and {name} names it"
            return


def _archive_problem(file: Path) -> str:
    """Why an archive of torch.save cannot be whole; empty where its end says what is in it."""
    try:
        descriptor = open_plain(file)
    except NotPlainError as error:
        return str(error)
    with os.fdopen(descriptor, "rb") as opened:
        try:
            with zipfile.ZipFile(opened) as archive:
                names: Any = archive.namelist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            return f"no archive of torch.save ends there ({error})"
    return "" if names else "there is nothing in it"

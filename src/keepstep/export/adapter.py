"""Adapters in PEFT's own layout, with the tokenizer beside them, bound to the base that they were trained on."""

import json
import logging
import os
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keepstep.dcp.source import DamageFoundError, Source
from keepstep.errors import ConfigError, DamagedCheckpointError, GuardRefusedError
from keepstep.export.adapter_origin import find_adapter
from keepstep.export.folder import begin, check_target, finish, give_up, read_export, scratch_name
from keepstep.export.origin import CheckpointOrigin
from keepstep.export.selection import MODEL, committed, facts_of, identity_of, kind_of
from keepstep.export.side_files import TOKENIZER_FILES, copy_side_files, find_side_files
from keepstep.export.source import source_digest
from keepstep.export.stream import Outgoing, WrittenFile, write_file
from keepstep.export.trainer_checkpoint import held_files, is_trainers, open_adapter
from keepstep.plan.manifest import Manifest
from keepstep.plan.weight_files import header
from keepstep.provenance.tokenizer import tokenizer_digest
from keepstep.storage.content import FileDigests, cache_file
from keepstep.storage.run_record import read_true_record

logger = logging.getLogger("keepstep")

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
_WHY_A_TOKENIZER = (
    "an adapter without its tokenizer loads with any, and gives subtly wrong results with another revision of it"
)


def export_adapter(
    checkpoint: str | Path,
    target: str | Path,
    *,
    adapter: str | None = None,
    tokenizer: str | Path | None = None,
    without_tokenizer: bool = False,
) -> dict[str, WrittenFile]:
    """Write an adapter as `peft.PeftModel.from_pretrained` reads it; the folder appears when it is complete.

    Args:
        checkpoint: a `save-<step>` folder of a model with adapters; of a trainable-only run, or of a whole one. Or a
            Trainer's, which has the tokenizer in it, if the Trainer had one.
        target: the folder to make, or that of an earlier export.
        adapter: its name; may be left out where there is one only.
        tokenizer: the folder with the tokenizer's files, which are put beside it.
        without_tokenizer: do without one.

    Returns:
        The files with size and digest.

    Raises:
        ConfigError: there is no such adapter, no tokenizer, or `target` holds something that is no export.
        GuardRefusedError: the tokenizer is not the one that the run was trained with.
        DamagedCheckpointError: a byte of the checkpoint has changed.
        ExportError: what is read back is not what was written.
    """
    checkpoint, target = Path(checkpoint), Path(target)
    check_target(target)
    _, manifest = committed(checkpoint)
    if is_trainers(checkpoint):
        return _export_trainers(checkpoint, target, manifest, adapter, tokenizer, without_tokenizer=without_tokenizer)
    record = read_true_record(checkpoint)
    beside = _tokenizer_files(tokenizer, record, without_tokenizer=without_tokenizer)
    try:
        with Source(checkpoint, manifest) as opened:
            name, config, weights = find_adapter(checkpoint, adapter, CheckpointOrigin(opened, MODEL))
            tensors = [
                Outgoing(kind_of(key, weight.dtype, weight.shape, None), weights)
                for key, weight in sorted(weights.weights.items())
            ]
            identity = {**identity_of(checkpoint), **facts_of(checkpoint, manifest), "adapter": name}
            return _write(target, tensors, {**config, **_base_of(record)}, beside, identity)
    except DamageFoundError as error:
        raise DamagedCheckpointError(f"{checkpoint} is damaged and not exported: {error}") from error


def _export_trainers(
    checkpoint: Path,
    target: Path,
    manifest: Manifest,
    adapter: str | None,
    tokenizer: str | Path | None,
    *,
    without_tokenizer: bool,
) -> dict[str, WrittenFile]:
    """A verified copy of the adapter that a Trainer's checkpoint holds, and of its tokenizer."""
    with ExitStack() as stack:
        name, config, weights = open_adapter(stack, checkpoint, manifest, adapter)
        own = held_files(checkpoint, manifest, TOKENIZER_FILES) if tokenizer is None and not without_tokenizer else []
        record = read_true_record(checkpoint)
        beside = own or _tokenizer_files(tokenizer, record, without_tokenizer=without_tokenizer)
        tensors = [
            Outgoing(kind_of(key, weight.dtype, weight.shape, None), weights)
            for key, weight in sorted(weights.weights.items())
        ]
        # What a Trainer's run record says of the base is a digest of the model in memory, and not of files.
        facts = {**facts_of(checkpoint, manifest), "base_weights": None, "adapter": name}
        return _write(target, tensors, config, beside, {**identity_of(checkpoint), **facts})


def check_adapter(folder: str | Path, *, base: str | Path | None = None, tokenizer: Any = None) -> None:
    """Refuse to put an adapter on another base, or to use it with another tokenizer, than it was trained with.

    Args:
        folder: an export of `export_adapter`.
        base: where the base's weights lie: a safetensors file, or a folder with some.
        tokenizer: the tokenizer that is to be used.

    Raises:
        ConfigError: the folder is no such export, or `base` is no model state.
        GuardRefusedError: one of them is another.
    """
    bound = read_export(Path(folder))
    if "adapter" not in bound:
        raise ConfigError(f"{folder} is no adapter that keepstep exported")
    if base is not None and bound.get("base_weights") is not None:
        with FileDigests(cache_file()) as files:
            found = source_digest(base, files)
        if found != bound["base_weights"]:
            revision = f" at revision {bound['base_revision']}" if bound.get("base_revision") else ""
            raise GuardRefusedError(
                f"{folder} was trained on {bound.get('base_model')}{revision} (digest {bound['base_weights']}); {base} "
                f"has other weights (digest {found})"
            )
    if tokenizer is not None and bound.get("tokenizer_sha256") not in (None, tokenizer_digest(tokenizer)):
        raise GuardRefusedError(
            f"{folder} was trained with another tokenizer; the right one lies beside it, if any does"
        )


def load_adapter(model: Any, folder: str | Path, *, base: str | Path | None = None, tokenizer: Any = None) -> Any:
    """A `peft.PeftModel` of a base model and an exported adapter, checked by `check_adapter` first.

    Args:
        model: the base model.
        folder, base, tokenizer: as of `check_adapter`.

    Raises:
        ConfigError: peft is not installed, or as `check_adapter`.
        GuardRefusedError: as `check_adapter`.
    """
    check_adapter(folder, base=base, tokenizer=tokenizer)
    try:
        import peft
    except ImportError:
        raise ConfigError("loading an adapter needs peft: pip install peft") from None
    return peft.PeftModel.from_pretrained(model, os.fspath(folder))


def _base_of(record: dict[str, Any]) -> dict[str, Any]:
    base = {"base_model_name_or_path": record.get("base_model"), "revision": record.get("base_revision")}
    return {"inference_mode": True, **{name: value for name, value in base.items() if value is not None}}


def _tokenizer_files(tokenizer: str | Path | None, record: dict[str, Any], *, without_tokenizer: bool) -> list[Path]:
    if tokenizer is None:
        if without_tokenizer:
            return []
        raise ConfigError(f"name the tokenizer's folder (--with): {_WHY_A_TOKENIZER}. --without-tokenizer does without")
    found = [path for path in find_side_files(tokenizer) if path.name in TOKENIZER_FILES]
    if not found:
        raise ConfigError(f"{tokenizer} holds no tokenizer ({', '.join(TOKENIZER_FILES[:3])}, ...): {_WHY_A_TOKENIZER}")
    trained_with = record.get("tokenizer_sha256")
    present = _digest_of_folder(tokenizer)
    if trained_with is not None and present is not None and present != trained_with:
        raise GuardRefusedError(f"{tokenizer} is another tokenizer than the one that the run was trained with")
    return found


def _digest_of_folder(folder: str | Path) -> str | None:
    """The digest of the tokenizer in a folder; None where transformers is not there to read it."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        logger.warning("transformers is not installed, so the tokenizer in %s was not compared with the run's", folder)
        return None
    return tokenizer_digest(AutoTokenizer.from_pretrained(os.fspath(folder), local_files_only=True))


def _write(
    target: Path, tensors: list[Outgoing], config: dict[str, Any], beside: list[Path], identity: dict[str, Any]
) -> dict[str, WrittenFile]:
    folder = begin(target)
    try:
        head = header([one.kind for one in tensors], {"format": "pt"})
        files = {WEIGHTS: write_file(folder / scratch_name(WEIGHTS), head, tensors)}
        text = (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
        files[CONFIG] = write_file(folder / scratch_name(CONFIG), text, ())
        files |= copy_side_files(beside, folder, target, None)
        finish(folder, target, files, {**identity, "files": {name: asdict(one) for name, one in files.items()}})
    finally:
        if folder != target or target.is_dir():
            give_up(folder, target)
    return files

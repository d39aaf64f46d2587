"""The weights of a Trainer's checkpoint, which are safetensors already: verified, then copied as any other origin."""

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from keepstep.errors import ConfigError, DamagedCheckpointError
from keepstep.export.mapped import MappedOrigin
from keepstep.export.merge import MergedOrigin
from keepstep.export.origin import FilesOrigin, Origin
from keepstep.export.selection import (
    MODEL,
    Selection,
    Wish,
    committed,
    facts_of,
    identity_of,
    kind_of,
    select,
)
from keepstep.export.side_files import NAMES, find_side_files
from keepstep.export.stream import Outgoing
from keepstep.plan import layout
from keepstep.plan.manifest import Manifest
from keepstep.plan.trainer_files import ADAPTER_CONFIG, ADAPTER_FILE, SAFETENSORS, sort_out
from keepstep.plan.weight_files import INDEX_FILE, SINGLE_FILE, divide
from keepstep.storage.json_file import read_json
from keepstep.storage.verify import verify_files

_SHOWN = 3


def is_trainers(checkpoint: Path) -> bool:
    """Whether a path has the name of a checkpoint of a Trainer."""
    return layout.naming_of(checkpoint.name) is layout.TRAINER


def select_any(stack: ExitStack, checkpoint: Path, wish: Wish) -> Selection:
    """Open what weights come from, whoever wrote the checkpoint. Raises as `select`."""
    return _select(stack, checkpoint, wish) if is_trainers(checkpoint) else select(stack, checkpoint, wish)


def side_files_of(checkpoint: Path, asked: str | Path | None) -> list[Path]:
    """The configuration and tokenizer files that go beside the weights: those asked for, or a Trainer's own.

    Raises:
        ConfigError: there are none in the folder that was asked for, or `checkpoint` is none.
        DamagedCheckpointError: one of the checkpoint's is not as it was written.
    """
    if asked is not None:
        return find_side_files(asked)
    if not is_trainers(checkpoint):
        return []
    _, manifest = committed(checkpoint)
    return held_files(checkpoint, manifest, NAMES)


def held_files(checkpoint: Path, manifest: Manifest, names: Collection[str]) -> list[Path]:
    """Those of some files that a checkpoint holds, verified. Raises DamagedCheckpointError."""
    found = [name for name in names if name in manifest.files]
    verify(checkpoint, manifest, found)
    return [checkpoint / name for name in found]


def verify(checkpoint: Path, manifest: Manifest, names: Collection[str]) -> None:
    """Compare every byte of some files with their digests. Raises DamagedCheckpointError."""
    damage = verify_files(checkpoint, manifest, names)
    if damage:
        more = f" and {len(damage) - 1} more files" if len(damage) > 1 else ""
        raise DamagedCheckpointError(f"{checkpoint} is damaged and not exported: {damage[0]}{more}")


def holds_only_an_adapter(checkpoint: Path) -> bool:
    """Whether it is a Trainer's checkpoint with an adapter and no whole weights. Raises as `committed`."""
    if not is_trainers(checkpoint):
        return False
    held = sort_out(committed(checkpoint)[1].files)
    return bool(held.adapters) and not held.weights


def open_adapter(
    stack: ExitStack, checkpoint: Path, manifest: Manifest, adapter: str | None
) -> tuple[str, dict[str, object], FilesOrigin]:
    """An adapter's name, PEFT's configuration of it, and its weights, verified.

    PEFT puts the adapter `default` beside the other files, and one of another name into a folder of that name.

    Raises:
        ConfigError: there is none, or no such.
        DamagedCheckpointError: it is not as it was written.
    """
    files = [one for one in sort_out(manifest.files).adapters if one.endswith(SAFETENSORS)]
    there = {one.rpartition("/")[0] or "default": one for one in files}
    if not there:
        raise ConfigError(f"{checkpoint} holds no adapter as safetensors; `keepstep export` writes its weights")
    if adapter is None and len(there) > 1:
        raise ConfigError(f"{checkpoint} holds the adapters {', '.join(there)}: say which with --adapter")
    name = adapter or next(iter(there))
    if name not in there:
        raise ConfigError(f"{checkpoint} holds no adapter {name!r}; there are: {', '.join(there)}")
    config = there[name].replace(ADAPTER_FILE, ADAPTER_CONFIG)
    if config not in manifest.files:
        raise ConfigError(f"{checkpoint} has no {config}, so the adapter {name!r} cannot be used")
    verify(checkpoint, manifest, (there[name], config))
    return name, read_json(checkpoint / config), stack.enter_context(FilesOrigin(checkpoint / there[name], (), {}))


def check_held(checkpoint: Path, wish: Wish) -> None:
    """Refuse what is meant for keepstep's own checkpoints. Raises ConfigError."""
    if wish.weights != MODEL or wish.named is not None:
        raise ConfigError(f"{checkpoint}: a Trainer holds one set of weights: leave --weights and --ema out")
    if wish.partial:
        raise ConfigError(f"{checkpoint}: --partial is for checkpoints of keepstep with trainable parameters only")
    if wish.source is not None and not wish.merge:
        raise ConfigError(
            f"{checkpoint}: --source is for checkpoints of keepstep with trainable parameters only; --merge-base puts "
            "an adapter into its base"
        )


def _select(stack: ExitStack, checkpoint: Path, wish: Wish) -> Selection:
    """Raises as `select`, and ConfigError where the weights are no safetensors."""
    check_held(checkpoint, wish)
    step, manifest = committed(checkpoint)
    facts = {**facts_of(checkpoint, manifest), "weights": MODEL, "dtype": wish.dtype}
    origin: Origin
    if wish.merge and wish.source is not None:
        name, config, adapter = open_adapter(stack, checkpoint, manifest, wish.adapter)
        base = stack.enter_context(FilesOrigin(wish.source, (), {}))
        origin, facts = MergedOrigin(base, adapter, config, wish.source), {**facts, "merged": name}
    else:
        origin = _whole(stack, checkpoint, manifest)
    if wish.mapper is not None:
        origin = MappedOrigin(origin, wish.mapper)
    kinds = [kind_of(key, weight.dtype, weight.shape, wish.dtype) for key, weight in origin.weights.items()]
    files = {file: [Outgoing(kind, origin) for kind in own] for file, own in divide(kinds, wish.max_shard_size).items()}
    return Selection(step, files, {}, {**identity_of(checkpoint), **facts})


def _whole(stack: ExitStack, checkpoint: Path, manifest: Manifest) -> FilesOrigin:
    """The whole weights, verified."""
    held = sort_out(manifest.files)
    if not held.weights and held.adapters:
        raise ConfigError(f"{checkpoint} holds an adapter: --to peft copies it, --merge-base puts it into its base")
    if SINGLE_FILE not in held.weights and INDEX_FILE not in held.weights:
        found = ", ".join(held.weights[:_SHOWN]) or "none"
        raise ConfigError(
            f"{checkpoint} has no {SINGLE_FILE}; of weights there is: {found}. `accelerate merge-weights` makes "
            "one of FSDP's shards, zero_to_fp32.py of DeepSpeed's, and keepstep convert reads one file of torch.save"
        )
    verify(checkpoint, manifest, [name for name in held.weights if name.endswith(SAFETENSORS) or name == INDEX_FILE])
    return stack.enter_context(FilesOrigin(checkpoint, (), {}))

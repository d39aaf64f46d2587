"""Makes a checkpoint of weights that others wrote, by the one save path."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from keepstep.checkpoint.checkpointer import Checkpointer
from keepstep.checkpoint.claim import claim_folder
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.world import SingleWorld
from keepstep.errors import ConfigError
from keepstep.export.incoming import Incoming, open_weights
from keepstep.export.source import source_digest
from keepstep.plan import layout
from keepstep.provenance.record import RunFacts
from keepstep.state.component import refuse_unstorable
from keepstep.state.job_state import JobState
from keepstep.storage.content import FileDigests, cache_file


@dataclass(frozen=True)
class Converted:
    """What was made: the checkpoint, its tensors (tied ones once) and their bytes, and what was left out.

    Attributes:
        form: what the source is: "safetensors", "torch" or "dcp".
    """

    checkpoint: str
    step: int
    form: str
    tensors: int
    size: int
    left_out: tuple[str, ...]


def convert(
    source: str | Path, target: str | Path, *, step: int | None = None, weights: str | None = None
) -> Converted:
    """Make a committed checkpoint that holds `model.<name>` for each tensor of a source.

    Args:
        source: see `keepstep.export.incoming.open_weights`.
        target: a run's folder, or the `save-<step>` in it that is to be made. What else lies there stays.
        step: completed steps that the checkpoint counts; by default what `target` says, or 0.
        weights: what the names of the weights begin with in the source; by default that is found out.

    Raises:
        ConfigError: an argument cannot work: the source is of an unknown kind, the checkpoint is there already, ...
        DamagedCheckpointError: a file of the source is cut off or not readable.
        UnsupportedStateError: the source holds what only general unpickling could read, or a tensor that cannot be
            stored.
        RunInUseError: a job saves to that folder.
        SaveError: it could not be written; nothing was committed.
    """
    source, folder, number = Path(source), *_place(Path(target), step)
    checkpoint = folder / layout.checkpoint_name(number)
    _refuse_what_is_there(checkpoint)
    with ExitStack() as stack:
        incoming = open_weights(stack, source, weights)
        for name, tensor in incoming.tensors.items():
            refuse_unstorable(f"model.{name}", tensor)  # before the run's folder is touched
        state = JobState(model=stand_in(incoming))
        config = CheckpointingConfig(save_dir=str(folder), period_steps=1)
        claim = claim_folder(folder, world := SingleWorld())
        stack.callback(claim.release)
        _refuse_what_is_there(checkpoint)  # another one may have made it until now
        facts = _facts(source, folder, incoming)
        with Checkpointer(config, state, facts=facts, world=world, handle_signals=False, claim=claim) as checkpointer:
            checkpointer.save(number)
        held = {id(tensor): tensor for tensor in incoming.tensors.values()}
        size = sum(tensor.numel() * tensor.itemsize for tensor in held.values())
        return Converted(str(checkpoint), number, incoming.form, len(held), size, incoming.left_out)


def stand_in(incoming: Incoming) -> nn.Module:
    """A model whose state consists of these tensors, under these names.

    They lie in it directly: names with dots would otherwise have to make a tree, in which `a` and `a.b` are no two
    tensors.
    """
    model = nn.Module()
    model._buffers.update(incoming.tensors)
    return model


def _place(target: Path, step: int | None) -> tuple[Path, int]:
    """The run's folder and the step."""
    if step is not None and step < 0:
        raise ConfigError(f"--step {step}: must be 0 or more")
    named = layout.step_of(target.name)
    if named is None:
        return target, step or 0
    if step not in (None, named):
        raise ConfigError(f"{target} is the name of step {named}, and --step says {step}")
    return target.parent, named


def _refuse_what_is_there(checkpoint: Path) -> None:
    if os.path.lexists(checkpoint):
        raise ConfigError(f"{checkpoint} is there already; choose another folder or --step")


def _facts(source: Path, folder: Path, incoming: Incoming) -> RunFacts:
    """What the run record says. Of the source its name only: where it lies is a matter of this machine."""
    digest = None
    if incoming.form == "safetensors":
        with FileDigests(cache_file()) as files:
            digest = source_digest(source, files)
    return RunFacts(folder.resolve().name, base_model=source.resolve().name, base_weights=digest)

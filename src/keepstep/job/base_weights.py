"""Guards a resume against base weights that have changed since the job was begun."""

from pathlib import Path

from keepstep.config.training import ModelStageFactoryConfig
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import GuardRefusedError
from keepstep.export.source import source_digest
from keepstep.plan import layout
from keepstep.plan.resume import ResumeDecision, Start
from keepstep.storage.run_record import read_record


def guard_base_weights(
    config: ModelStageFactoryConfig, folder: Path, decision: ResumeDecision, world: World
) -> str | None:
    """Compare the bytes of source_checkpoint with those that the newest checkpoint was begun with. Collective.

    Returns:
        Their digest, for the run record; None without a source_checkpoint.

    Raises:
        GuardRefusedError: they are others now.
    """
    source = config.source_checkpoint
    if source is None:
        return None
    with agreed(world, f"looking for source_checkpoint = {source}"):
        there = Path(source).exists() if world.rank == 0 else False
    if (
        decision.start is Start.RESUME
        and not config.checkpoint_only_trainable_parameters
        and not world.broadcast(there)
    ):
        return None  # the checkpoint holds all weights; the source is not needed any more
    with agreed(world, f"reading source_checkpoint = {source}"):
        present = source_digest(source) if world.rank == 0 else ""
    present = world.broadcast(present)
    if decision.start is Start.RESUME:
        checkpoint = folder / layout.checkpoint_name(decision.candidates[0])
        with agreed(world, f"reading {checkpoint}"):
            saved = read_record(checkpoint).get("base_weights") if world.rank == 0 else None
        saved = world.broadcast(saved)
        if saved is not None and saved != present:
            raise GuardRefusedError(
                f"the weights in source_checkpoint = {source} are others than those that {checkpoint} was begun with. "
                "For the new weights take another save_dir; to go on with the old ones put them back"
            )
    return present

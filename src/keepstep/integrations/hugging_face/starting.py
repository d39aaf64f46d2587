"""Where a Trainer begins: at its first step, or at a checkpoint that was verified and holds all that it needs."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepstep.checkpoint.claim import FolderClaim
from keepstep.checkpoint.folder_resume import choose, verify_together
from keepstep.checkpoint.fresh import submission
from keepstep.checkpoint.identity import RunIdentity
from keepstep.checkpoint.mirrors.run_mirrors import RunMirrors
from keepstep.checkpoint.resume import Elsewhere, look
from keepstep.checkpoint.run_folder import RunFolder
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import CheckpointNotFoundError, DamagedCheckpointError, GuardRefusedError, ResumeError
from keepstep.integrations.hugging_face import contents, hub
from keepstep.plan import layout
from keepstep.plan.resume import Condition
from keepstep.storage.line import Line, note_line, read_line

logger = logging.getLogger("keepstep")

_HOW_TO_ACCEPT = (
    'In a script: make_resumable(trainer, accept=["field=value"]), or enable(accept=[...]); another output_dir begins '
    "another run"
)


@dataclass(frozen=True)
class Start:
    """Completed steps, and the checkpoint that they come from; no checkpoint at the first step."""

    step: int
    path: Path | None

    @property
    def path_for_trainer(self) -> str | None:
        return None if self.path is None else str(self.path)


@dataclass(frozen=True)
class Look:
    """What is needed to choose."""

    trainer: Any
    folder: Path
    world: World
    run: RunFolder
    config: CheckpointingConfig
    identity: RunIdentity
    claim: FolderClaim
    mirrors: RunMirrors


def choose_start(
    trainer: Any,
    folder: Path,
    asked: Any,
    world: World,
    run: RunFolder,
    config: CheckpointingConfig,
    identity: RunIdentity,
    claim: FolderClaim,
    mirrors: RunMirrors,
) -> Start:
    """Where `train(resume_from_checkpoint=asked)` begins. Collective; nothing of the trainer is changed.

    Raises:
        CheckpointNotFoundError: a path was asked for and is not there, or what is there was never committed.
        DamagedCheckpointError: checkpoints are there, and none is good; or the one that was asked for is not.
        GuardRefusedError: data, base weights, batch or world are others now.
        StateMismatchError: the checkpoint lacks something that this trainer needs.
        ResumeError: a rank could not look.
    """
    about = Look(trainer, folder, world, run, config, identity, claim, mirrors)
    try:
        return _choose(about, asked)
    except GuardRefusedError as error:
        raise GuardRefusedError(f"{error}\n{_HOW_TO_ACCEPT}") from error


def _choose(about: Look, asked: Any) -> Start:
    if asked is None or asked is False:
        _begin_a_line(about, Line(0, about.claim.attempt))
        return Start(0, None)
    start = _newest(about) if asked is True or _is_under_way(about, Path(asked)) else _asked_for(about, Path(asked))
    if start.path is not None:
        with agreed(about.world, f"looking whether {start.path} holds all that is needed", ResumeError):
            _check(about.trainer, start.path, about.identity)
    return start


def _newest(about: Look) -> Start:
    hub.fetch_newer(about.trainer, about.folder, about.world, about.claim)

    def judge(one: Elsewhere) -> None:
        about.identity.know(one.step, one.where, one.record)
        about.identity.guard(one.step)

    about.mirrors.bring(lambda: about.claim, guard=judge, whole_from=0)
    policy = about.run.damage_policy(about.config, about.mirrors.repair)
    found = choose(about.folder, layout.TRAINER, about.world, None, policy, about.identity.guard)
    if found.path is not None:
        return Start(found.step, found.path)
    line: Line | None = _told(about, lambda: read_line(about.folder))
    if line is not None and line.source is not None:
        return _asked_for(about, Path(line.source))
    _refuse_plain(about)
    return Start(0, None)


def _asked_for(about: Look, path: Path) -> Start:
    """A checkpoint that was named by its path: of this folder, of another, or one that a plain Trainer wrote."""
    world = about.world
    with agreed(world, f"looking for {path}", ResumeError):
        if not path.is_dir():
            raise CheckpointNotFoundError(f"{path}: there is no such checkpoint (resume_from_checkpoint)")
        step = layout.TRAINER.step_of(path.resolve().name)
        is_own = path.resolve().parent == about.folder.resolve() and step is not None
        is_committed = (path / layout.MANIFEST).is_file()
    if is_own and is_committed and step is not None:
        policy = about.run.damage_policy(about.config)
        choose(about.folder, layout.TRAINER, world, step, policy, about.identity.guard)
        _begin_a_line(about, Line(step, about.claim.attempt, submission()))
        return Start(step, path)
    if is_committed and step is not None:
        about.identity.place(step, path)
        about.identity.guard(step)
        damage, _ = verify_together(path, step, world)
        if damage:
            raise DamagedCheckpointError(f"{path} is damaged: {damage[0]}. Nothing was loaded")
    elif world.rank == 0:
        logger.warning(
            "%s was not written by keepstep: its content cannot be verified (`keepstep adopt` takes such folders over)",
            path,
        )
    step = _step_in(path, world)
    line_step = step if is_own else 0
    _begin_a_line(about, Line(line_step, about.claim.attempt, submission(), None if is_own else str(path.absolute())))
    return Start(step, path)


def _begin_a_line(about: Look, line: Line) -> None:
    """Note that the run goes on from here, where later checkpoints are there: the next start must not take them."""
    later = [
        step
        for step in look(about.folder, about.world, naming=layout.TRAINER).candidates
        if step > line.step or line.source is not None
    ]
    # On the Hub later ones may be there, too, until the first push of the new line.
    if not later and line.source is None and not hub.keeps_checkpoints(about.trainer.args):
        return
    with agreed(about.world, f"noting in {about.folder} where the run goes on", ResumeError):
        if about.world.rank == 0:
            about.claim.confirm()
            note_line(about.folder, line)
            if later:
                names = ", ".join(layout.TRAINER.checkpoint_name(step) for step in later[:3])
                logger.warning(
                    "%s goes on from step %d: what lies beyond it there (%s%s) is of another line of the run, and is "
                    "set aside in %s by the first save",
                    about.folder,
                    line.step,
                    names,
                    ", ..." if len(later) > 3 else "",
                    layout.SET_ASIDE,
                )


def _is_under_way(about: Look, path: Path) -> bool:
    """Whether this very submission of the job asked for this path before: it was reclaimed, and goes on."""
    line: Line | None = _told(about, lambda: read_line(about.folder))
    if line is None or line.submission is None or line.submission != submission():
        return False
    if line.source is not None:
        return str(path.absolute()) == line.source
    is_own = path.resolve().parent == about.folder.resolve()
    return is_own and bool(layout.TRAINER.step_of(path.name) == line.step)


def _told(about: Look, ask: Any) -> Any:
    """The main process's answer, on all ranks."""
    with agreed(about.world, f"looking into {about.folder}", ResumeError):
        found = ask() if about.world.rank == 0 else None
    return about.world.broadcast(found)


def _refuse_plain(about: Look) -> None:
    """A folder with checkpoints that were never committed is not an empty one."""
    decision = look(about.folder, about.world, naming=layout.TRAINER)
    plain = [
        layout.TRAINER.checkpoint_name(one.step)
        for one in decision.ignored
        if one.condition is Condition.INCOMPLETE
        and (about.folder / layout.TRAINER.checkpoint_name(one.step) / "trainer_state.json").exists()
    ]
    if plain:
        raise CheckpointNotFoundError(
            f"{about.folder} holds checkpoints that keepstep did not write ({', '.join(plain[:3])}), and none of its "
            f"own. `keepstep adopt {about.folder}` looks through them and takes the whole ones over; "
            "resume_from_checkpoint=PATH takes one as it is"
        )


def _step_in(path: Path, world: World) -> int:
    from transformers import TrainerState

    with agreed(world, f"reading {path}", ResumeError):
        try:
            return int(TrainerState.load_from_json(str(path / "trainer_state.json")).global_step)
        except FileNotFoundError:
            raise CheckpointNotFoundError(
                f"{path} is no checkpoint of a Trainer: it has no trainer_state.json"
            ) from None
        except (OSError, ValueError, TypeError) as error:
            raise DamagedCheckpointError(f"{path / 'trainer_state.json'} cannot be read: {error}") from error


def _check(trainer: Any, path: Path, identity: RunIdentity) -> None:
    args = trainer.args
    engine = "deepspeed" if trainer.is_deepspeed_enabled else "fsdp" if trainer.is_fsdp_enabled else ""
    contents.check_state(
        path,
        world_size=int(args.world_size),
        has_scaler=getattr(trainer.accelerator, "scaler", None) is not None,
        takes_any_world="world_size" in identity.accepted,
        engine=engine,
    )
    if not engine:
        contents.check_weights(path, trainer.model)

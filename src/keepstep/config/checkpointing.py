"""Where and how often a job saves."""

import difflib
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from keepstep.config.base import NoBool, Section
from keepstep.config.mirror import Mirrors, unprinted
from keepstep.config.retention import Keep

DEFAULT_MAX_LOSS_MINUTES = 15.0
# Ten years.
MOST_MINUTES = 10 * 365 * 1440.0
Period = int | Literal["last_step", "disable", "auto"]
GuardPolicy = Literal["refuse", "warn", "accept"]
StopSignal = Literal["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGCONT", "SIGXCPU"]


# The fields of run.json that a resume compares; `plan/guards.py` says what each means.
GUARDED_FIELDS = (
    "dataset_sha256",
    "base_weights",
    "base_revision",
    "tokenizer_sha256",
    "seed",
    "global_batch_size",
    "world_size",
    "git_commit",
    "git_diff_sha256",
    "python",
    "torch",
    "transformers",
    "trl",
    "numpy",
    "keepstep",
    "threads",
    "cpu_capability",
    "gpu",
)


def _period(value: object, info: ValidationInfo) -> object:
    if value in ("last_step", "disable", "auto") or (type(value) is int and value >= 1):
        return value
    # One that is wrong is told of by itself.
    if value is None and info.data.get("period_minutes", "wrong") is not None:
        return value
    raise ValueError('must be a whole number of steps, 1 or more, or "last_step", or "disable", or "auto"')


def _max_loss(value: object) -> object:
    return DEFAULT_MAX_LOSS_MINUTES if value is None else value


def _number_to_keep(value: object) -> object:
    if value is None or (type(value) is int and value >= 1):
        return value
    raise ValueError("must be a whole number, 1 or more, or null to keep all")


def _known_fields(policies: dict[str, GuardPolicy]) -> dict[str, GuardPolicy]:
    for name in policies:
        if name not in GUARDED_FIELDS and not name.startswith("config."):
            near = difflib.get_close_matches(name, GUARDED_FIELDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{name} is not compared{hint} Known: {', '.join(GUARDED_FIELDS)}, config.<path>")
    return policies


class CheckpointingConfig(Section):
    """Where and how often a job saves.

    Attributes:
        save_dir: folder of all runs. A training run saves to `<save_dir>/<run.name>/save-<step>`, an inference job to
            `<save_dir>/save-<step>`. With several nodes it must lie on a file system that all of them see, but for
            `peer_copies`.
        period_minutes: save at the first step that ends so many minutes after the last save, by the main process's
            clock, and at the last step. It stands in place of `period_steps`.
        period_steps: save every that many steps and at the last step; "last_step": only there; "disable": never;
            "auto": as often as it costs least, by what saves and failures of the run have cost (docs/advise.md).
            Required, unless `period_minutes` is given.
        max_loss_minutes: of "auto", and refused elsewhere: a crash is to cost so much at most; 15 when left out.
        num_to_keep: how many checkpoints remain after a save; None keeps all.
        keep: what remains beside those: every so many steps, the best by a score, the young; and the most that all of
            it may take on the disk.
        mode: "sync": the job waits until a checkpoint is committed; "async": it goes on as soon as its state is copied
            into host memory, which takes as many bytes a rank as its shard.
        when_busy: what happens in async mode when a save comes due while one is under way: "wait" for it, or "skip"
            the new one (never the last step's, nor that of a stop).
        on_damage: what a resume does about a checkpoint that is not as it was written: "fall_back": move it to
            `.keepstep/quarantine`, with a report, and take the one before it; "stop": leave all as it is and fail.
        verify_on_resume: "full": every byte of a checkpoint is compared with its digest; "loaded": what this job reads.
        on_save_error: what a save that failed does: "stop": it raises; "continue": it warns and the job goes on, until
            `max_failed_saves` of them fail in a row. The last step's save and that of a stop raise in any case.
        max_failed_saves: so many in a row end the job.
        mirror: where a second copy of the checkpoints goes: an address, or a section with one, or several of them.
        peer_copies: 1: `save_dir` is a folder of the same path that each machine has for itself (a local disk, or
            `/dev/shm`), and each rank's files are copied to the next machine as well: a job that loses one goes on from
            the newest checkpoint that the others can put together. 0: all machines share `save_dir`.
        guards: what a difference between a checkpoint's run.json and this job does to a resume, by field:
            "refuse" (exit code 3), "warn" or "accept". docs/guards.md lists fields and defaults.
        stop_signals: on these the job saves the step that it is at and leaves.
        grace_seconds: how long after such a signal the process is killed. Where a save would take longer, none is
            begun. None: what SLURM says, if it started the job; else as long as it takes.
        hang_seconds: a save or a resume that takes longer prints the stacks of all threads, and goes on waiting.
        timeout_seconds: how long ranks wait for each other before they give up.
    """

    @model_validator(mode="before")
    @classmethod
    def _hide_addresses(cls, values: Any) -> Any:
        """Errors print what was given: a mirror's address may hold what must not be shown."""
        if isinstance(values, dict) and "mirror" in values:
            return {**values, "mirror": unprinted(values["mirror"])}
        return values

    @model_validator(mode="before")
    @classmethod
    def _have_one_period(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("period_minutes") is None:
            return values
        if values.get("period_steps") is not None:
            raise ValueError(
                "period_steps and period_minutes are two periods at once: give one of them, or null for the other "
                "(period_steps=null with --set)"
            )
        return {**values, "period_steps": None}

    save_dir: Annotated[str, Field(min_length=1)]
    period_minutes: Annotated[float | None, Field(gt=0, le=MOST_MINUTES), NoBool] = None
    period_steps: Annotated[Period | None, BeforeValidator(_period)]
    max_loss_minutes: Annotated[float, Field(gt=0, le=MOST_MINUTES), BeforeValidator(_max_loss), NoBool] = (
        DEFAULT_MAX_LOSS_MINUTES
    )
    num_to_keep: Annotated[int | None, BeforeValidator(_number_to_keep)] = None
    keep: Keep | None = None
    mode: Literal["sync", "async"] = "sync"
    when_busy: Literal["wait", "skip"] = "wait"
    on_damage: Literal["fall_back", "stop"] = "fall_back"
    verify_on_resume: Literal["full", "loaded"] = "full"
    on_save_error: Literal["stop", "continue"] = "stop"
    max_failed_saves: Annotated[int, Field(ge=1), NoBool] = 3
    mirror: Mirrors = ()
    peer_copies: Annotated[Literal[0, 1], NoBool] = 0
    guards: Annotated[dict[str, GuardPolicy], AfterValidator(_known_fields)] = Field(default_factory=dict)
    stop_signals: tuple[StopSignal, ...] = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
    grace_seconds: Annotated[float | None, Field(gt=0), NoBool] = None
    hang_seconds: Annotated[float, Field(gt=0), NoBool] = 600.0
    timeout_seconds: Annotated[float, Field(gt=0), NoBool] = 7200.0

    @model_validator(mode="after")
    def _only_auto_has_a_bound(self) -> "CheckpointingConfig":
        # The default may be given: it is in what a configuration is written down as.
        if self.period_steps != "auto" and self.max_loss_minutes != DEFAULT_MAX_LOSS_MINUTES:
            raise ValueError(
                "max_loss_minutes is of period_steps: auto, and no other period heeds it: leave it out, or null, or "
                "set period_steps to auto"
            )
        return self

    @model_validator(mode="after")
    def _copies_have_one_way(self) -> "CheckpointingConfig":
        if self.peer_copies and self.mirror:
            raise ValueError(
                "peer_copies: 1 and a mirror do not go together yet: a machine's folder holds only a part of each "
                "checkpoint. Take one of them"
            )
        return self

    @model_validator(mode="after")
    def _keep_has_something_to_do(self) -> "CheckpointingConfig":
        if self.keep is None:
            return self
        if self.peer_copies:
            raise ValueError("peer_copies: 1 and keep do not go together yet: use num_to_keep alone")
        if self.num_to_keep is None and self.keep.adds and self.keep.disk_budget_gb is None:
            raise ValueError(
                "keep says what remains beside the num_to_keep newest, and num_to_keep: null keeps all: set "
                "num_to_keep to 1 or more, or a keep.disk_budget_gb"
            )
        return self

"""What identifies a run, and the guard that compares it with a checkpoint before that is loaded."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from keepstep.checkpoint.accepted import note_accepted, read_accepted
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.agree import agreed
from keepstep.dist.world import World, host_name
from keepstep.errors import GuardRefusedError, ResumeError, SaveError
from keepstep.plan import layout
from keepstep.plan.guard_text import is_quiet, refusal, sentence
from keepstep.plan.guards import UNKNOWN, Accepted, GuardFinding, Wishes, check_wishes, judge, refused
from keepstep.plan.layout import Naming
from keepstep.provenance.adapters import adapter_configs
from keepstep.provenance.fingerprint import fingerprint
from keepstep.provenance.record import SCHEMA_VERSION, RunFacts, collect
from keepstep.provenance.tokenizer import is_tokenizer, tokenizer_digest
from keepstep.state.job_state import JobState
from keepstep.storage.content import FileDigests, cache_file
from keepstep.storage.run_record import read_true_record

logger = logging.getLogger("keepstep")

_MOST_ACCEPTED = 200
# What a run was begun with stays its identity when it is not needed any more, or has only been given another name.
_INHERITED = ("base_model", "base_revision", "base_weights")


class RunIdentity:
    """Collected once for an attempt. Methods are collective.

    Raises:
        ConfigError: something is to be accepted that is not compared.

    Args:
        folder: the run's folder.
        world: the ranks.
        facts: what the job knows of itself.
        config: for the policies.
        accept: differences that are accepted, `field=value` or `field`.
        state: of the job; its data loader tells what `facts` leaves open.
        naming: how checkpoints are called in the folder.

    Attributes:
        folder: the run's folder; another one when a new line of the run has been begun.
    """

    def __init__(
        self,
        folder: Path,
        world: World,
        facts: RunFacts,
        config: CheckpointingConfig,
        accept: Sequence[str] = (),
        state: JobState | None = None,
        naming: Naming = layout.NATIVE,
    ) -> None:
        self.folder, self._world, self._naming = folder, world, naming
        self._facts, self._state = facts, state
        check_wishes(accept)
        self._policies, self._accept = config.guards, tuple(accept)
        self._record: dict[str, Any] | None = None
        self._adapters: dict[str, Any] = {}
        self._judged: set[int] = set()
        self._places: dict[int, Path] = {}
        self._known: dict[int, tuple[str, dict[str, Any]]] = {}
        self._findings: tuple[GuardFinding, ...] = ()

    def describe(self, stages: Sequence[Any]) -> None:
        """Note what the record says of the model itself: its adapters. Not collective, before `record`."""
        self._adapters = adapter_configs(stages)

    def move_to(self, folder: Path) -> None:
        """A new line of the run has been begun in this folder."""
        self.folder = folder
        if self._record:
            self._record["run"] = folder.name

    def place(self, step: int, checkpoint: Path) -> None:
        """The checkpoint of this step is another one than that in the run's folder. Not collective."""
        self._places[step] = checkpoint

    def know(self, step: int, where: str, record: Mapping[str, Any]) -> None:
        """The checkpoint of this step is not here yet; this is its run record. Not collective."""
        self._known[step] = where, dict(record)

    def _path(self, step: int) -> Path:
        return self._places.get(step, self.folder / self._naming.checkpoint_name(step))

    def record(self) -> Mapping[str, Any]:
        """The fields of run.json; the main process's count, other ranks get none.

        Raises:
            SaveError: they cannot be collected, or hold what JSON cannot.
        """
        if self._record is None:
            hosts = len(set(self._world.gather(host_name())))
            with agreed(self._world, "collecting the run record", SaveError):
                self._record = collect(self._complete(), self._world.size, hosts) if self._world.rank == 0 else {}
        if self._record and self._adapters:
            self._record["adapters"] = self._adapters
        return self._record

    def compare(self, step: int) -> tuple[GuardFinding, ...]:
        """What differs between a checkpoint and this job, on all ranks.

        Raises:
            ResumeError: the main process could not look.
        """
        self.record()
        with agreed(self._world, f"comparing {self._naming.checkpoint_name(step)} with this job", ResumeError):
            found = self._compare(step) if self._world.rank == 0 else ()
        return self._world.broadcast(found)

    def guard(self, step: int) -> None:
        """Stand in the way of a resume that would not be the same run. A checkpoint is judged once.

        Raises:
            GuardRefusedError: on all ranks; nothing was loaded or written.
        """
        if step in self._judged:
            return
        findings = self.compare(step)
        if refused(findings):
            raise GuardRefusedError(
                refusal(self._known[step][0] if step in self._known else str(self._path(step)), findings)
            )
        self._judged.add(step)
        self._findings = findings
        if self._world.rank == 0:
            self._inherit(step, findings)
            for finding in findings:
                (logger.info if is_quiet(finding) else logger.warning)("%s", sentence(finding))

    @property
    def accepted(self) -> frozenset[str]:
        """Fields that differ from the checkpoint, and were accepted or warned of; on all ranks, after `guard`."""
        return frozenset(finding.field for finding in self._findings)

    def note_accepted(self) -> None:
        """Bind what was accepted to its value: the same command line is run again after every stop. Needs the folder to
        be held."""
        with agreed(self._world, f"noting in {self.folder} what was accepted", ResumeError):
            if self._world.rank == 0:
                wanted = [f for f in self._findings if f.why.startswith(("--accept", "accepted before"))]
                note_accepted(self.folder, [Accepted(f.field, f.saved, f.now) for f in wanted])

    def _complete(self) -> RunFacts:
        """The facts, with what can be told from the data loader and its data set."""
        facts, state = self._facts, self._state
        if state is None:
            return facts
        if facts.data_parallel is None:
            facts = replace(facts, data_parallel=state.dp_size)
        if facts.elastic is None and state.data is not None:
            facts = replace(facts, elastic=bool(getattr(state.data, "position_is_global", False)))
        dataset = getattr(state.data, "dataset", None)
        return facts if dataset is None else with_dataset(facts, dataset)

    def _compare(self, step: int) -> tuple[GuardFinding, ...]:
        saved = self._saved(step)
        before = [*read_accepted(self.folder), *_accepted_in(saved)]
        return judge(saved, self.record(), Wishes(self._policies, self._accept, before))

    def _saved(self, step: int) -> dict[str, Any]:
        saved = dict(self._known[step][1]) if step in self._known else read_true_record(self._path(step))
        if saved.get("schema") != SCHEMA_VERSION:
            saved.pop("base_weights", None)  # it was another digest then
        return saved

    def _inherit(self, step: int, findings: Sequence[GuardFinding]) -> None:
        saved = self._saved(step)
        record = dict(self.record())
        is_same_base = record["base_weights"] in (None, saved.get("base_weights"))
        for name in _INHERITED:
            if is_same_base and saved.get(name) is not None:
                record[name] = saved[name]
        new = [{**asdict(finding), "policy": finding.policy.value, "from_step": step} for finding in findings]
        earlier = saved.get("accepted")
        record["accepted"] = [*(earlier if isinstance(earlier, list) else []), *new][-_MOST_ACCEPTED:]
        self._record = record


def with_dataset(facts: RunFacts, dataset: Any, *, rehash: bool = False) -> RunFacts:
    """The facts, with what identifies the data set and its tokenizer, where they do not say it already.

    Args:
        facts: what is known.
        dataset: any data set; no sample is taken from it.
        rehash: read files again whose digests are remembered.

    Raises:
        ConfigError: what it declares about itself is not what it should be.
        OSError: a file of it cannot be read.
    """
    tokenizer = getattr(dataset, "tokenizer", None)
    if facts.tokenizer_sha256 is None and is_tokenizer(tokenizer):
        facts = replace(facts, tokenizer_sha256=tokenizer_digest(tokenizer))
    if facts.dataset_sha256 is not None:
        return facts
    with FileDigests(cache_file(), rehash=rehash) as files:
        found = fingerprint(dataset, files)
    if found.reason:
        what = "the data set" if found.value == UNKNOWN else "a part of the data set"
        logger.info("%s cannot be identified (%s): a change of it will not be noticed", what, found.reason)
    return replace(facts, dataset_sha256=found.value, dataset_parts=found.parts)


def _accepted_in(record: Mapping[str, Any]) -> list[Accepted]:
    held = record.get("accepted")
    entries = [one for one in held if isinstance(one, dict)] if isinstance(held, list) else []
    return [
        Accepted(one["field"], one["saved"], one["now"])
        for one in entries
        if one.get("policy") == "accept" and all(isinstance(one.get(name), str) for name in ("field", "saved", "now"))
    ]

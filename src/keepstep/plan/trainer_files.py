"""What the files mean that the Hugging Face Trainer writes into a checkpoint, told from their names."""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from keepstep.plan.weight_files import INDEX_FILE, SINGLE_FILE

STATE = "trainer_state.json"
ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
SAFETENSORS = ".safetensors"

_FULL = (SINGLE_FILE, INDEX_FILE, "pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model_fsdp.bin")
_FULL_SHARD = re.compile(r"(?:model|pytorch_model)-\d{5,}-of-\d{5,}\.(?:safetensors|bin)")
_ADAPTER = re.compile(r"(?:[^/]+/)?adapter_model\.(?:safetensors|bin)")
_RNG = re.compile(r"rng_state(?:_(0|[1-9][0-9]{0,8}))?\.pth", re.ASCII)
# Folders in which FSDP and DeepSpeed put shards.
_FSDP_WEIGHTS = re.compile(r"pytorch_model_fsdp_\d+/")
_FSDP_OPTIMIZER = re.compile(r"optimizer_\d+/")
_DEEPSPEED = re.compile(r"global_step\d+/")
# Archives that torch.save has written.
_ARCHIVE = re.compile(r"(?:.*/)?[^/]+\.(?:pt|pth|bin)")


@dataclass(frozen=True)
class TrainerFiles:
    """The files of one checkpoint by what they hold.

    Attributes:
        weights: of the whole model.
        adapters: of adapters that PEFT trained.
        optimizer, scheduler, scaler: their state.
        rng: random states, one file for each rank.
        ranks: those whose random states are there; of a single process 0.
        by_deepspeed: whether DeepSpeed holds weights, optimizer and perhaps the scheduler in a format of its own.
    """

    weights: tuple[str, ...]
    adapters: tuple[str, ...]
    optimizer: tuple[str, ...]
    scheduler: tuple[str, ...]
    scaler: tuple[str, ...]
    rng: tuple[str, ...]
    ranks: tuple[int, ...]
    by_deepspeed: bool

    @property
    def world_size(self) -> int:
        """Ranks that wrote it, as far as their random states tell; at least 1."""
        return max(self.ranks, default=0) + 1

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the parts of a job's state that are there."""
        there = {
            "model": self.weights or self.adapters,
            "optimizer": self.optimizer,
            "lr_scheduler": self.scheduler,
            "scaler": self.scaler,
            "rng": self.rng,
        }
        return tuple(name for name, files in there.items() if files)

    def missing(self) -> tuple[str, ...]:
        """What a resume of a Trainer wants and is not there, in words."""
        found = []
        if not self.weights and not self.adapters:
            found.append(f"weights ({SINGLE_FILE} or {ADAPTER_FILE})")
        if not self.optimizer:
            found.append("optimizer.pt")
        if not self.scheduler and not self.by_deepspeed:
            found.append("scheduler.pt")
        if not self.rng:
            found.append("rng_state.pth")
        found += [f"rng_state_{rank}.pth" for rank in range(self.world_size) if self.rng and rank not in self.ranks]
        return tuple(found)


def sort_out(names: Collection[str]) -> TrainerFiles:
    """Tell what the files of a checkpoint hold. Names are paths below it, with `/` between folders."""
    ordered = sorted(names)
    rng = {name: match for name in ordered if (match := _RNG.fullmatch(name))}
    # The Trainer writes either the one of a single process or one for each rank; beside others the first is a leftover.
    single = [name for name, match in rng.items() if match[1] is None]
    numbered = {name: int(match[1]) for name, match in rng.items() if match[1] is not None}
    return TrainerFiles(
        weights=_those(ordered, lambda name: name in _FULL or _FULL_SHARD.fullmatch(name), _FSDP_WEIGHTS, _DEEPSPEED),
        adapters=_those(ordered, _ADAPTER.fullmatch),
        optimizer=_those(ordered, lambda name: name in ("optimizer.pt", "optimizer.bin"), _FSDP_OPTIMIZER, _DEEPSPEED),
        scheduler=_those(ordered, lambda name: name == "scheduler.pt"),
        scaler=_those(ordered, lambda name: name == "scaler.pt"),
        rng=tuple(numbered or single),
        ranks=tuple(sorted(numbered.values())) if numbered else tuple(0 for _ in single),
        by_deepspeed=any(_DEEPSPEED.match(name) for name in ordered),
    )


def is_archive(name: str) -> bool:
    """Whether a file of this name is an archive of torch.save."""
    return _ARCHIVE.fullmatch(name) is not None and not _DEEPSPEED.match(name)


def dcp_folders(names: Iterable[str]) -> tuple[str, ...]:
    """Folders below a checkpoint that are checkpoints of torch.distributed, which have a `.metadata`."""
    folders = (name.partition("/")[0] + "/" for name in names if "/" in name)
    return tuple(sorted({one for one in folders if _FSDP_WEIGHTS.fullmatch(one) or _FSDP_OPTIMIZER.fullmatch(one)}))


def base_name(path: object) -> str:
    """The last part of a path of any system; empty of what is no text."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1] if isinstance(path, str) else ""


def _those(names: Iterable[str], is_one: Callable[[str], object], *folders: "re.Pattern[str]") -> tuple[str, ...]:
    return tuple(name for name in names if is_one(name) or any(folder.match(name) for folder in folders))

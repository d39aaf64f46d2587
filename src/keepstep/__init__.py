"""keepstep makes PyTorch training and inference jobs resume exactly where they stopped."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keepstep.errors import (
    CheckpointNotFoundError,
    ConfigError,
    CouldNotLookError,
    DamagedCheckpointError,
    DamagedOutputsError,
    DataError,
    ExportError,
    FaultError,
    GuardRefusedError,
    KeepstepError,
    MirrorError,
    NothingToChooseError,
    RankFailedError,
    RankLostError,
    ReplicaMismatchError,
    ResumeError,
    RunInUseError,
    SaveError,
    StateError,
    StateMismatchError,
    StopRequested,
    TwinCheckError,
    UnsupportedStateError,
)

if TYPE_CHECKING:
    from keepstep.checkpoint.checkpointer import Checkpointer
    from keepstep.config.checkpointing import CheckpointingConfig
    from keepstep.dcp.foreign import load_dcp
    from keepstep.export.adapter import check_adapter, export_adapter, load_adapter
    from keepstep.export.mapper import Mapper
    from keepstep.export.weights import export_weights
    from keepstep.ops.watch import watch
    from keepstep.provenance.record import RunFacts
    from keepstep.state.codec import declare
    from keepstep.state.job_state import JobState
    from keepstep.state.stateful import PerRank

# Loaded when first used: `import keepstep.plan`, `keepstep.ops` and `keepstep ls` must not pay for torch.
_LAZY = {
    "Checkpointer": "keepstep.checkpoint.checkpointer",
    "CheckpointingConfig": "keepstep.config.checkpointing",
    "JobState": "keepstep.state.job_state",
    "Mapper": "keepstep.export.mapper",
    "PerRank": "keepstep.state.stateful",
    "RunFacts": "keepstep.provenance.record",
    "check_adapter": "keepstep.export.adapter",
    "declare": "keepstep.state.codec",
    "export_adapter": "keepstep.export.adapter",
    "export_weights": "keepstep.export.weights",
    "load_adapter": "keepstep.export.adapter",
    "load_dcp": "keepstep.dcp.foreign",
    "watch": "keepstep.ops.watch",
}

__all__ = [
    "CheckpointNotFoundError",
    "Checkpointer",
    "CheckpointingConfig",
    "ConfigError",
    "CouldNotLookError",
    "DamagedCheckpointError",
    "DamagedOutputsError",
    "DataError",
    "ExportError",
    "FaultError",
    "GuardRefusedError",
    "JobState",
    "KeepstepError",
    "Mapper",
    "MirrorError",
    "NothingToChooseError",
    "PerRank",
    "RankFailedError",
    "RankLostError",
    "ReplicaMismatchError",
    "ResumeError",
    "RunFacts",
    "RunInUseError",
    "SaveError",
    "StateError",
    "StateMismatchError",
    "StopRequested",
    "TwinCheckError",
    "UnsupportedStateError",
    "check_adapter",
    "declare",
    "export_adapter",
    "export_weights",
    "load_adapter",
    "load_dcp",
    "watch",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

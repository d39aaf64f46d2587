"""Every error that keepstep raises on purpose. Each is also the built-in that a caller would expect.

`exit_code` is what the command line returns for the error.
"""

from functools import partial
from typing import Any


class KeepstepError(Exception):
    """The root of the tree: catch this to catch all of them."""

    exit_code = 1


class ConfigError(KeepstepError, ValueError):
    """A configuration, a provider or a command line that cannot work. Nothing was started."""

    exit_code = 2


class StateError(KeepstepError, ValueError):
    """Registered state that cannot be saved, or does not fit the checkpoint."""


class UnsupportedStateError(StateError, TypeError):
    """A Python value of a type that keepstep does not store. The message names its path."""


class StateMismatchError(StateError):
    """The checkpoint and the registered state do not hold the same things. Nothing was changed."""


class ReplicaMismatchError(StateError):
    """A value that is declared the same on all ranks differs. The message names key and ranks."""


class RankFailedError(KeepstepError, RuntimeError):
    """One rank failed in a phase that all ranks share; all of them raise this same error.

    Attributes:
        rank: the rank that failed first by number.
        phase: what it was doing.
    """

    def __init__(self, message: str, *, rank: int, phase: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.phase = phase

    def __reduce__(self) -> tuple[Any, ...]:
        # An error is handed from process to process, as launchers and pools do it.
        return partial(type(self), rank=self.rank, phase=self.phase), (str(self),), self.__dict__


class RankLostError(RankFailedError):
    """A rank, or the machine that it is on, does not answer any more. Each rank says itself whom it misses.

    Attributes:
        rank: the one that is missed; the first by number where several may be.
    """


class SaveError(RankFailedError):
    """A save failed. Nothing was committed; earlier checkpoints are untouched."""


class ResumeError(RankFailedError):
    """A resume failed on at least one rank."""


class CheckpointNotFoundError(KeepstepError, FileNotFoundError):
    """The checkpoint that was asked for does not exist."""


class NothingToChooseError(KeepstepError, ValueError):
    """No checkpoint can be chosen. The message says why each was left out."""


class DataError(KeepstepError, ValueError):
    """A file of the input, or a record in it, cannot be read. The message names the file and the record."""


class CouldNotLookError(KeepstepError, OSError):
    """The folder could not be listed or read. This is never taken for an empty folder."""


class DamagedCheckpointError(KeepstepError, ValueError):
    """Checkpoints exist, and none of them is complete and unchanged."""

    exit_code = 4


class DamagedOutputsError(KeepstepError, ValueError):
    """Outputs that were committed are gone or not what was written. They are never made again in silence."""

    exit_code = 4


class GuardRefusedError(KeepstepError, ValueError):
    """The run was begun with something that is another thing now. Nothing was loaded or written."""

    exit_code = 3


class RunInUseError(KeepstepError, RuntimeError):
    """Another job holds the run's folder, or has taken it over. The message names its host and process."""


class StopRequested(KeepstepError, RuntimeError):
    """A stop was requested and the state of this step is saved. Running the job again continues."""

    exit_code = 75


class MirrorError(KeepstepError, OSError):
    """Checkpoints could not all be copied to or from a mirror. The message says what is there and what is not."""


class ExportError(KeepstepError, OSError):
    """An export could not be written, or is not what was meant. No folder that loads was left."""


class FaultError(KeepstepError, RuntimeError):
    """A fault could not be made here (see `keepstep.testing.faults`): the message says what is missing."""


class TwinCheckError(KeepstepError, RuntimeError):
    """A twin check could not compare anything: the job failed, took too long, or told of no step."""

"""The position in the data stream, per data-parallel rank: `data.dp_<d>`."""

from collections.abc import Mapping
from typing import Any

from keepstep.dcp.entries import Entry, Scope, Stored
from keepstep.errors import StateMismatchError
from keepstep.state.component import LoadRequest, under
from keepstep.state.stateful import Stateful, collect_state, request_state, restore_state


class DataComponent:
    """A data loader's state.

    A loader whose class says `position_is_global = True` keeps one position for all ranks, so any rank's entry serves
    under any number of ranks. Any other loader gets back exactly its own rank's state, and another number of ranks is
    refused before anything is loaded.
    """

    name = "data"

    def __init__(self, loader: Stateful, dp_rank: int, dp_size: int) -> None:
        self._loader = loader
        self._dp_size = dp_size
        self._prefix = f"{self.name}.dp_{dp_rank}"
        self._source = self._prefix

    def collect(self) -> dict[str, Entry]:
        return collect_state(self._loader.state_dict(), self._prefix, Scope.EVERY_RANK)

    def request(self, stored: Mapping[str, Stored]) -> LoadRequest:
        all_keys = under(self.name, stored)
        saved = sorted({".".join(key.split(".")[:2]) for key in all_keys})
        self._source = self._prefix
        if len(saved) != self._dp_size and saved:
            if not getattr(self._loader, "position_is_global", False):
                raise StateMismatchError(
                    f"the checkpoint holds the data position of {len(saved)} data-parallel ranks, this job has "
                    f"{self._dp_size}. The state of a {type(self._loader).__name__} belongs to one rank and cannot be "
                    f"divided anew: resume with {len(saved)} data-parallel ranks"
                )
            self._source = saved[0]
        request = request_state(self._source, stored, self._loader)
        request.exempt = set(all_keys) - request.trees - set(request.tensors)
        return request

    def apply(self, values: Mapping[str, Any]) -> None:
        self._loader.load_state_dict(restore_state(self._source, values))

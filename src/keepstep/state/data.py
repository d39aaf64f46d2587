"""The position in the data stream, per data-parallel rank: `data.dp_<d>`."""

from collections.abc import Mapping
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

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
        self.loader = loader
        self._dp_size = dp_size
        self._prefix = f"{self.name}.dp_{dp_rank}"
        self._source = self._prefix

    def collect(self) -> dict[str, Entry]:
        return collect_state(self.loader.state_dict(), self._prefix, Scope.EVERY_RANK)

    def request(self, stored: Mapping[str, Stored]) -> LoadRequest:
        all_keys = under(self.name, stored)
        saved = sorted({".".join(key.split(".")[:2]) for key in all_keys})
        self._source = self._prefix
        if len(saved) != self._dp_size and saved:
            if not getattr(self.loader, "position_is_global", False):
                raise StateMismatchError(
                    f"the checkpoint holds the data position of {len(saved)} data-parallel ranks, this job has "
                    f"{self._dp_size}. The state of a {type(self.loader).__name__} belongs to one rank and cannot be "
                    f"divided anew: resume with {len(saved)} data-parallel ranks"
                )
            self._source = saved[0]
        request = request_state(self._source, stored, self.loader)
        request.exempt = set(all_keys) - request.trees - set(request.tensors)
        return request

    def check(self, trees: Mapping[str, Any]) -> None:
        look = getattr(self.loader, "check_state_dict", None)
        if look is not None:
            look(restore_state(self._source, trees))

    def apply(self, values: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(restore_state(self._source, values))
        if isinstance(self.loader, StatefulDataLoader):
            begin_iterator(self.loader)


def begin_iterator(loader: StatefulDataLoader[Any]) -> None:
    """Make the iterator of a StatefulDataLoader now, before random states are restored.

    Making it draws from the global random state; in the uninterrupted run that happened at the begin of the epoch. The
    next `iter(loader)` gives this iterator out. One that stands at the end of its epoch is run over that end, so that
    the next `iter(loader)` begins the next epoch and does not give an empty one.
    """
    loader.state_dict()
    iterator = loader._iterator
    try:
        at_end = iterator is not None and iterator._num_yielded >= len(loader) > 0
    except TypeError:  # an iterable data set without a length: its end cannot be told
        return
    if at_end and not iterator._finished:
        for _ in loader:
            raise StateMismatchError("the data loader gives more batches than its length says")

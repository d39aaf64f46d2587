"""The position in the data stream, per data-parallel rank: `data.dp_<d>`."""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

from keepstep.dcp.entries import Entry, Scope, Stored
from keepstep.errors import StateMismatchError
from keepstep.state.component import LoadRequest, under
from keepstep.state.foreign_loader import generator_of, inexact, position_of, resume_at_next_iter
from keepstep.state.stateful import Stateful, collect_state, request_state, restore_state

logger = logging.getLogger("keepstep")

_GENERATOR = "__generator__"


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
        self._unfilled: Mapping[str, torch.Tensor] = {}
        if dp_rank == 0 and isinstance(loader, StatefulDataLoader):
            for risk in inexact(loader):
                logger.warning("a resume of this data loader may not be exact: %s", risk)

    def collect(self) -> dict[str, Entry]:
        entries = collect_state(position_of(self.loader), self._prefix, Scope.EVERY_RANK)
        generator = generator_of(self.loader)
        if generator is not None:
            entries[f"{self._prefix}.{_GENERATOR}"] = Entry(generator.get_state().numpy().tobytes())
        return entries

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
        self._unfilled = request.tensors
        return request

    def check(self, trees: Mapping[str, Any]) -> None:
        # Tensors are not read yet: what is looked at here are counts and sizes.
        state = restore_state(self._source, {**trees, **self._unfilled})
        look = getattr(self.loader, "check_state_dict", None)
        if look is not None:
            look(state)
        elif isinstance(self.loader, StatefulDataLoader):
            check_workers(state, self.loader)

    def apply(self, values: Mapping[str, Any]) -> None:
        state = restore_state(self._source, values)
        if isinstance(self.loader, StatefulDataLoader):
            resume_at_next_iter(self.loader, state, values.get(f"{self._source}.{_GENERATOR}"))
        else:
            self.loader.load_state_dict(state)


def check_workers(state: Any, loader: StatefulDataLoader[Any]) -> None:
    """Refuse the state of another number of workers: a StatefulDataLoader cannot take it, and says so too late."""
    saved = 0
    if isinstance(state, Mapping) and "_snapshot" in state:
        saved = state["_snapshot"]["_main_snapshot"]["_num_workers"]
    if saved != loader.num_workers:
        raise StateMismatchError(
            f"the data position was saved with {saved} workers, this StatefulDataLoader has {loader.num_workers}. "
            f"Each worker has a position of its own: resume with num_workers={saved}"
        )

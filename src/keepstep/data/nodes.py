"""torchdata nodes as a data set: reset to a state, and read one item at a time."""

from collections.abc import Iterator
from typing import Any

from torchdata.nodes import BaseNode, Loader


class NodeDataset:
    """The root of a pipeline of nodes.

    `torchdata.nodes.Loader` reads one item ahead when it is restored, and begins anew if there is none: an epoch's end
    passes unseen. The root tells of it.
    """

    def __init__(self, root: BaseNode[Any]) -> None:
        self.root = root
        self._state: Any = None
        self._at_end = False

    def __iter__(self) -> Iterator[Any]:
        state, at_end = self._state, self._at_end
        self._state, self._at_end = None, False
        self.root.reset(state)
        if state is not None and at_end:
            for _ in self.root:  # nothing: but a sampler counts its epochs when it is reset at its end
                pass
            self.root.reset(None)
        return self._items()

    def _items(self) -> Iterator[Any]:
        yield from self.root
        self._at_end = True

    def state_dict(self) -> dict[str, Any]:
        """The root's own state, and whether it has come to its end."""
        return {"root": self.root.state_dict(), "at_end": self._at_end}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Used by the next `iter()`."""
        self._state, self._at_end = state["root"], state["at_end"]


def is_nodes(dataset: Any) -> bool:
    """Whether a data set is made of torchdata's nodes."""
    return isinstance(dataset, BaseNode | Loader)


def as_dataset(dataset: Any) -> Any:
    """A data set that is made of nodes in the form that a stream reads; any other as it is."""
    if not is_nodes(dataset):
        return dataset
    return NodeDataset(dataset.root if isinstance(dataset, Loader) else dataset)

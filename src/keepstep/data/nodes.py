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

    def __iter__(self) -> Iterator[Any]:
        state, self._state = self._state, None
        self.root.reset(state)
        return iter(self.root)

    def state_dict(self) -> Any:
        """The root's own state."""
        return self.root.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Used by the next `iter()`."""
        self._state = state


def is_nodes(dataset: Any) -> bool:
    """Whether a data set is made of torchdata's nodes."""
    return isinstance(dataset, BaseNode | Loader)


def as_dataset(dataset: Any) -> Any:
    """A data set that is made of nodes in the form that a stream reads; any other as it is."""
    if not is_nodes(dataset):
        return dataset
    return NodeDataset(dataset.root if isinstance(dataset, Loader) else dataset)

"""What a task's `predict` gives, as rows: one mapping for each sample, with its id."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def rows_of(results: Any, samples: int) -> Sequence[Row]:
    """The rows of the first `samples` samples of a micro-batch; what fills it up is left out.

    Args:
        results: a mapping for each sample, a mapping of columns, or an Arrow record batch or table.
        samples: how many samples count.

    Raises:
        TypeError, ValueError: it is none of these, or has fewer rows.
    """
    rows: list[Row]
    if hasattr(results, "to_pylist"):
        rows = list(results.slice(0, samples).to_pylist())
    elif isinstance(results, Mapping):
        cells = [_cells(values, samples) for values in results.values()]
        rows = [dict(zip(results, row, strict=True)) for row in zip(*cells, strict=True)]
    else:
        rows = list(results)[:samples]
        for row in rows:
            if type(row) is not dict and not isinstance(row, Mapping):
                kind = type(row).__name__
                raise TypeError(f"predict must give a mapping for each sample, where outputs are written, not a {kind}")
    if len(rows) != samples:
        raise ValueError(f"predict gave {len(rows)} rows for {samples} samples")
    return rows


def _cells(values: Any, samples: int) -> Sequence[Any]:
    cells: Any = values[:samples]
    if hasattr(cells, "detach"):
        cells = cells.detach().cpu()  # at once, and not for each row
    # Numbers of one-dimensional arrays become Python's: those go into any format.
    found: Sequence[Any] = cells.tolist() if getattr(cells, "ndim", 0) == 1 else cells
    return found

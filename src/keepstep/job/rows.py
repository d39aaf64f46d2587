"""What a task's `predict` gives, as rows: one mapping for each sample, with its id and its values on the CPU."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

Row = dict[str, Any]


def rows_of(results: Any, samples: int) -> list[Row]:
    """The rows of the first `samples` samples of a micro-batch; what fills it up is left out.

    Args:
        results: a mapping for each sample, a mapping of columns, or an Arrow record batch or table.
        samples: how many samples count.

    Raises:
        TypeError, ValueError: it is none of these, or has fewer rows.
    """
    if hasattr(results, "to_pylist"):
        rows = list(results.slice(0, samples).to_pylist())
    elif isinstance(results, Mapping):
        columns = {name: _on_cpu(values) for name, values in results.items()}
        cells = [_cells(values, samples) for values in columns.values()]
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)]
    else:
        rows = [_row(one) for one in list(results)[:samples]]
    if len(rows) != samples:
        raise ValueError(f"predict gave {len(rows)} rows for {samples} samples")
    return rows


def with_id(row: Row, id: Any) -> Row:
    """The row, with this id in front where it has none of its own."""
    return row if "id" in row else {"id": id, **row}


def _row(one: Any) -> Row:
    if not isinstance(one, Mapping):
        raise TypeError(f"predict must give a mapping for each sample, where outputs are written, not a {_name(one)}")
    for value in one.values():
        if isinstance(value, torch.Tensor):
            return {name: _on_cpu(value) for name, value in one.items()}
    return dict(one)


def _cells(values: Any, samples: int) -> Sequence[Any]:
    cells: Sequence[Any] = values[:samples]
    # Numbers of one-dimensional arrays become Python's: those go into any format.
    return cells.tolist() if getattr(cells, "ndim", 0) == 1 else cells  # type: ignore[attr-defined]


def _on_cpu(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.ndim == 0:
        return value.item()
    value = value.detach().cpu()
    # NumPy has no bfloat16.
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def _name(value: Any) -> str:
    return type(value).__name__

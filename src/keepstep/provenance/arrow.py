"""Digests Arrow tables by what they hold, not by the pieces that they lie in, or by how pyarrow packs them."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

_ROWS = 10_000

AddTag = Callable[..., None]
AddBytes = Callable[[Any], None]


class ArrowTypeError(ValueError):
    """A column of a type that is not known here."""


def add_table(table: Any, tag: AddTag, add: AddBytes) -> None:
    """Hand over what a pyarrow.Table holds.

    Args:
        table: the table.
        tag: takes names and counts.
        add: takes bytes.

    Raises:
        ArrowTypeError: a column's type is not known.
    """
    tag("table", table.num_rows)
    for name in table.column_names:
        column = table.column(name)
        tag("column", name, column.type)
        for begin in range(0, table.num_rows, _ROWS):
            piece = column.slice(begin, _ROWS).combine_chunks()
            # Older versions hand a chunked array back.
            for array in piece.chunks if hasattr(piece, "chunks") else [piece]:
                _add(array, tag, add)


def _add(array: Any, tag: AddTag, add: AddBytes) -> None:
    arrow = sys.modules["pyarrow"]
    types = arrow.types
    kind = array.type
    if types.is_dictionary(kind):
        _add(array.dictionary_decode(), tag, add)
        return
    if isinstance(kind, arrow.BaseExtensionType):
        _add(array.storage, tag, add)
        return
    tag("values", len(array), array.null_count)
    if array.null_count:
        add(_numbers(array.is_valid()))
    if types.is_null(kind):
        return
    if types.is_struct(kind):
        for part in array.flatten():
            _add(part, tag, add)
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        add(_lengths(array, "list_value_length"))
        _add(array.flatten(), tag, add)
    elif any(check(kind) for check in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary)):
        add(_lengths(array, "binary_length"))
        add(_text(array, kind, types))
    elif types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        add(_numbers(array.fill_null(False if types.is_boolean(kind) else 0)))
    elif types.is_temporal(kind) and not types.is_interval(kind):
        _add(array.view(arrow.int64() if kind.bit_width == 64 else arrow.int32()), tag, add)
    elif types.is_decimal(kind) or types.is_fixed_size_binary(kind) or "view" in str(kind):
        _add(array.cast(arrow.large_binary() if "binary" in str(kind) else arrow.large_string()), tag, add)
    else:
        raise ArrowTypeError(f"a column of {kind}")


def _numbers(array: Any) -> Any:
    return np.ascontiguousarray(array.to_numpy(zero_copy_only=False)).reshape(-1).view(np.uint8).data


def _lengths(array: Any, function: str) -> Any:
    lengths = sys.modules["pyarrow"].compute.call_function(function, [array])
    return np.ascontiguousarray(lengths.fill_null(0).to_numpy(zero_copy_only=False), np.int64).view(np.uint8).data


def _text(array: Any, kind: Any, types: Any) -> Any:
    """The bytes of all values, one after the other. Offsets say where, and need not begin at 0."""
    if array.null_count:
        array = array.drop_null()  # what lies behind a missing value may be anything
    if not len(array):
        return b""
    _, offsets, data = array.buffers()
    is_large = types.is_large_string(kind) or types.is_large_binary(kind)
    places = np.frombuffer(offsets, np.int64 if is_large else np.int32)[array.offset : array.offset + len(array) + 1]
    return b"" if data is None else memoryview(data)[int(places[0]) : int(places[-1])]

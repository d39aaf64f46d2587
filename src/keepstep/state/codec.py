"""Python state as plain trees: what can be stored, and how it comes back exactly.

A plain tree holds None, bool, int, float, str, bytes, list, tuple and dict only; other types of the listed ones are
tagged dicts. Tensors are taken out and stored under keys of their own. Such a tree needs no general unpickling.
"""

import datetime
import enum
import pathlib
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from keepstep.errors import UnsupportedStateError

_TAG = "__keepstep__"
_PLAIN = (type(None), bool, int, float, str, bytes)
_MAX_DEPTH = 200
_FACTORIES: dict[str, Any] = {
    "none": None,
    "int": int,
    "float": float,
    "list": list,
    "dict": dict,
    "set": set,
    "str": str,
}
_TIMES = {kind.__name__: kind for kind in (datetime.datetime, datetime.date, datetime.time)}

C = TypeVar("C", bound=type)
_declared: dict[str, type] = {}


def declare(kind: C) -> C:
    """Allow values of a dataclass, an enum or a named tuple of yours in saved state. Use it as a decorator.

    Raises:
        UnsupportedStateError: it is none of these.
    """
    if not (is_dataclass(kind) or issubclass(kind, enum.Enum) or _is_named_tuple(kind)):
        raise UnsupportedStateError(f"{kind.__qualname__} is no dataclass, enum or named tuple")
    _declared[_class_name(kind)] = kind
    return kind


def encode(value: Any, path: str, tensors: dict[str, torch.Tensor], depth: int = 0) -> Any:
    """Turn a value into a plain tree.

    Args:
        value: what to store.
        path: the key of the value; tensors inside get keys below it.
        tensors: receives the tensors that were found, by key.

    Raises:
        UnsupportedStateError: a value of another type, named by its path.
    """
    kind = type(value)
    if kind in _PLAIN:
        # Empty bytes are pickled as a call of the class, which the restricted reader does not let through.
        return value if kind is not bytes or value else {_TAG: "empty bytes"}
    if depth > _MAX_DEPTH:
        raise UnsupportedStateError(f"{path} is nested deeper than {_MAX_DEPTH} levels, or contains itself")
    if isinstance(value, torch.Tensor):
        if path in tensors:
            raise UnsupportedStateError(f"two tensors would be stored under the name {path}")
        tensors[path] = value
        return {_TAG: "tensor", "key": path}

    def inner(part: Any, name: object) -> Any:
        return encode(part, f"{path}.{name}", tensors, depth + 1)

    if kind in (list, tuple):
        return kind(inner(part, i) for i, part in enumerate(value))
    if kind is dict:
        return _encode_dict(value, path, inner)
    if kind in (OrderedDict, Counter):
        return {_TAG: kind.__name__, "items": _encode_pairs(value, path, inner)}
    if kind is defaultdict and value.default_factory in _FACTORIES.values():
        factory = next(name for name, made in _FACTORIES.items() if made is value.default_factory)
        return {_TAG: "defaultdict", "items": _encode_pairs(value, path, inner), "factory": factory}
    if kind in (set, frozenset):
        parts = [inner(part, "{}") for part in value]
        return {_TAG: kind.__name__, "items": sorted(parts, key=repr)}
    if kind is deque:
        return {_TAG: "deque", "items": [inner(part, i) for i, part in enumerate(value)], "maxlen": value.maxlen}
    if _class_name(kind) in _declared:
        return _encode_declared(value, kind, inner)
    scalar = _encode_scalar(value, kind)
    if scalar is None:
        raise UnsupportedStateError(
            f"{path} is a {_class_name(kind)}, which cannot be stored safely. Convert it in your state_dict(), or, "
            "for a dataclass, enum or named tuple of yours, declare it with @keepstep.declare"
        )
    return scalar


def _encode_dict(value: dict[Any, Any], path: str, inner: Any) -> Any:
    if _TAG in value or b"" in value or not all(type(key) in _PLAIN for key in value):
        return {_TAG: "dict", "items": _encode_pairs(value, path, inner)}
    return {key: inner(part, key) for key, part in value.items()}


def _encode_pairs(value: Mapping[Any, Any], path: str, inner: Any) -> list[Any]:
    return [[inner(key, f"key {i}"), inner(part, key)] for i, (key, part) in enumerate(value.items())]


def _encode_declared(value: Any, kind: Any, inner: Any) -> Any:
    name = _class_name(kind)
    if issubclass(kind, enum.Enum):
        return {_TAG: "enum", "class": name, "member": value.name}
    names = kind._fields if _is_named_tuple(kind) else [field.name for field in fields(kind)]
    return {_TAG: "declared", "class": name, "fields": {n: inner(getattr(value, n), n) for n in names}}


def _encode_bytes(data: bytes) -> Any:
    return encode(data, "", {})


def _encode_scalar(value: Any, kind: type) -> Any:
    if kind is complex:
        return {_TAG: "complex", "parts": (value.real, value.imag)}
    if kind is bytearray:
        return {_TAG: "bytearray", "data": _encode_bytes(bytes(value))}
    if kind is np.ndarray and not value.dtype.hasobject and value.dtype.names is None:
        data = np.ascontiguousarray(value)
        return {_TAG: "ndarray", "dtype": value.dtype.str, "shape": value.shape, "data": _encode_bytes(data.tobytes())}
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {_TAG: "numpy scalar", "dtype": value.dtype.str, "data": value.tobytes()}
    if isinstance(value, np.random.Generator):
        return _encode_generator(value)
    if kind is random.Random:
        return {_TAG: "random.Random", "state": value.getstate()}
    if kind is torch.Generator:
        return {_TAG: "torch generator", "device": str(value.device), "state": value.get_state().numpy().tobytes()}
    if kind.__name__ in _TIMES and kind is _TIMES[kind.__name__] and _has_plain_zone(value):
        return {_TAG: kind.__name__, "text": value.isoformat()}
    if kind is datetime.timedelta:
        return {_TAG: "timedelta", "parts": (value.days, value.seconds, value.microseconds)}
    if isinstance(value, pathlib.PurePath):
        return {_TAG: "path", "text": str(value)}
    if kind in (torch.dtype, torch.device, torch.Size):
        return {_TAG: f"torch {kind.__name__}", "value": tuple(value) if kind is torch.Size else str(value)}
    return None


def decode(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The value that `encode` was given. Raises UnsupportedStateError for a tag or class that is not known here."""
    if type(tree) in (list, tuple):
        return type(tree)(decode(part, tensors) for part in tree)
    if type(tree) is not dict:
        return tree
    if _TAG not in tree:
        return {key: decode(part, tensors) for key, part in tree.items()}
    match tree[_TAG]:
        case "tensor":
            return tensors[tree["key"]]
        case "dict":
            return dict(_decode_pairs(tree, tensors))
        case "OrderedDict":
            return OrderedDict(_decode_pairs(tree, tensors))
        case "Counter":
            return Counter(dict(_decode_pairs(tree, tensors)))
        case "defaultdict":
            return defaultdict(_FACTORIES[tree["factory"]], _decode_pairs(tree, tensors))
        case "set":
            return {decode(part, tensors) for part in tree["items"]}
        case "frozenset":
            return frozenset(decode(part, tensors) for part in tree["items"])
        case "deque":
            return deque((decode(part, tensors) for part in tree["items"]), tree["maxlen"])
        case "enum":
            return _class_of(tree["class"])[tree["member"]]
        case "declared":
            return _decode_declared(_class_of(tree["class"]), decode(tree["fields"], tensors))
        case _:
            return _decode_scalar(tree)


def _decode_pairs(tree: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> list[tuple[Any, Any]]:
    return [(decode(key, tensors), decode(value, tensors)) for key, value in tree["items"]]


def _decode_declared(kind: Any, values: dict[str, Any]) -> Any:
    if _is_named_tuple(kind):
        return kind(**values)
    value = object.__new__(kind)
    for name, part in values.items():
        object.__setattr__(value, name, part)
    return value


def _decode_scalar(tree: dict[str, Any]) -> Any:
    match tree[_TAG]:
        case "complex":
            return complex(*tree["parts"])
        case "empty bytes":
            return b""
        case "bytearray":
            return bytearray(decode(tree["data"], {}))
        case "ndarray":
            data = decode(tree["data"], {})
            return np.frombuffer(data, np.dtype(tree["dtype"])).reshape(tree["shape"]).copy()
        case "numpy scalar":
            return np.frombuffer(tree["data"], np.dtype(tree["dtype"]))[0]
        case "numpy generator":
            return _decode_generator(tree)
        case "random.Random":
            source = random.Random()
            source.setstate(tree["state"])
            return source
        case "torch generator":
            made = torch.Generator(tree["device"])
            made.set_state(torch.frombuffer(bytearray(tree["state"]), dtype=torch.uint8))
            return made
        case "datetime" | "date" | "time" as name:
            return _TIMES[name].fromisoformat(tree["text"])
        case "timedelta":
            return datetime.timedelta(*tree["parts"])
        case "path":
            return pathlib.Path(tree["text"])
        case "torch dtype":
            return getattr(torch, tree["value"].removeprefix("torch."))
        case "torch device":
            return torch.device(tree["value"])
        case "torch Size":
            return torch.Size(tree["value"])
        case other:
            raise UnsupportedStateError(f"the checkpoint holds a value of the unknown kind {other!r}")


def _has_plain_zone(value: Any) -> bool:
    """Whether a time has no zone, or a fixed offset, which its text form keeps."""
    zone = getattr(value, "tzinfo", None)
    return zone is None or type(zone) is datetime.timezone


def _encode_generator(value: np.random.Generator) -> Any:
    sequence: Any = value.bit_generator.seed_seq
    origin = None
    if isinstance(sequence, np.random.SeedSequence):  # what `spawn` makes children from
        origin = (sequence.entropy, sequence.spawn_key, sequence.pool_size, sequence.n_children_spawned)
    tree = {"state": dict(value.bit_generator.state), "origin": origin}
    return {_TAG: "numpy generator", **encode(tree, "state", {})}


def _decode_generator(tree: dict[str, Any]) -> np.random.Generator:
    state = decode(tree["state"], {})
    name, origin = state["bit_generator"], decode(tree["origin"], {})
    if name not in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"):
        raise UnsupportedStateError(f"the checkpoint holds an unknown NumPy bit generator {name!r}")
    seed = None
    if origin is not None:
        entropy, spawn_key, pool_size, spawned = origin
        seed = np.random.SeedSequence(entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=spawned)
    bits = getattr(np.random, name)(seed)
    bits.state = state
    return np.random.Generator(bits)


def tensor_keys(tree: Any) -> set[str]:
    """The keys of the tensors that a plain tree points to."""
    if type(tree) in (list, tuple):
        return {key for part in tree for key in tensor_keys(part)}
    if type(tree) is not dict:
        return set()
    if tree.get(_TAG) == "tensor":
        return {tree["key"]}
    return {key for part in tree.values() for key in tensor_keys(part)}


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _class_of(name: str) -> Any:
    if name not in _declared:
        raise UnsupportedStateError(f"the checkpoint holds a {name}; declare the class with @keepstep.declare")
    return _declared[name]

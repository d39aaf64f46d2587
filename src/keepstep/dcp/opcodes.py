"""What a pickle may ask of its reader: looked through before the C unpickler sees it, which trusts what it reads.

The unpickler makes its memo as long as an index in it says (64 GiB for five bytes), reserves what a bytearray says that
it takes, and hashes a tuple of tuples of tuples until the stack is full. Only opcodes get through that the writers of
checkpoints use: keepstep's, and those of `torch.save` and `torch.distributed.checkpoint.save`.
"""

import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any, NoReturn

# Tuples in tuples in tuples. Writers nest them about five deep; a stack of 8 MiB is full at some 50,000.
_MAX_NESTED = 4096

_INT = rb"(?:K.|M..|J....|\x8a(?:\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}))"
# An index of the memo above 2 ** 24 is refused: room for it would be made, and for all before it.
_MEMO = rb"(?:\x94|[qh].|[rj]...\x00)"
_NOTHING = rb"(?!)"
# A tuple of numbers, and the call with it that makes a `torch.Size`: these cannot be deep, whatever their number.
_FLAT = rb"(?:\)|\(" + _INT + rb"*+t|" + _INT + rb"(?:\x85|" + _INT + rb"(?:\x86|" + _INT + rb"\x87)))"
_FIXED = rb"[(0N\x88\x89Rabde\]}lsu\x81\x93]|G.{8}|\x80.|\x8a[\x00-\x03]|c[!-~]{1,200}\n[!-~]{1,200}\n"
_FRAME, _LONG1, _LONG4 = pickle.FRAME[0], pickle.LONG1[0], pickle.LONG4[0]
# Opcodes of strings and bytes: how many bytes their length takes.
_PREFIXED = {
    pickle.SHORT_BINUNICODE[0]: 1,
    pickle.BINUNICODE[0]: 4,
    pickle.BINUNICODE8[0]: 8,
    pickle.SHORT_BINBYTES[0]: 1,
    pickle.BINBYTES[0]: 4,
    pickle.BINBYTES8[0]: 8,
    _LONG1: 1,
    _LONG4: 4,
}
# Opcodes of tuples: how many strings before them make them flat.
_TUPLES = {pickle.TUPLE[0]: 1 << 62, pickle.TUPLE1[0]: 1, pickle.TUPLE2[0]: 2, pickle.TUPLE3[0]: 3}


def _run(memo: bytes, persistent: bytes) -> Callable[..., Any]:
    """Matches as many opcodes of a fixed length as there are: in one call, so that C does the work."""
    flat = _FLAT + rb"(?:" + memo + rb"?\x85" + memo + rb"?R)?+"
    return re.compile(rb"(?s:" + rb"|".join((flat, _INT, memo, persistent, _FIXED)) + rb")*+").match


_RUNS = {
    (memo, persistent): _run(_MEMO if memo else _NOTHING, b"Q" if persistent else _NOTHING)
    for memo in (False, True)
    for persistent in (False, True)
}


class Sealed(type):
    """The class of what a pickle may ask for: the pickle cannot set attributes of it, as it can of any other class."""

    def __setattr__(cls, name: str, value: Any) -> NoReturn:
        raise TypeError(f"{name} of a class is set")


def refuse_unsafe(data: bytes | bytearray | memoryview, *, memo: bool = True, persistent_ids: bool = False) -> None:
    """Look through a pickle up to its end, without making anything of it.

    Args:
        data: the pickle; what follows its last opcode counts for nothing.
        memo: whether it may refer to what it holds. Without, no value is in two places, or in itself.
        persistent_ids: whether it may refer to something outside it.

    Raises:
        pickle.UnpicklingError: it holds an opcode that no writer of checkpoints uses, one whose length reaches beyond
            the data, or tuples that are nested without end.
    """
    run, size, at, loose, strings = _RUNS[memo, persistent_ids], len(data), 0, 0, 0
    while True:
        end = run(data, at).end()
        # A string may be put into the memo, or be followed by nothing: the strings before a tuple.
        strings = strings if end == at or (memo and data[at] in b"\x94q" and end - at <= 2) else 0
        at = end
        if at >= size:
            raise pickle.UnpicklingError("it has no end")
        opcode = data[at]
        at += 1
        if opcode in _PREFIXED:
            width = _PREFIXED[opcode]
            length = int.from_bytes(data[at : at + width], "little")
            at += width + length
            if at > size:
                raise pickle.UnpicklingError(f"it has no end: {length} bytes should follow")
            strings = strings + 1 if opcode not in (_LONG1, _LONG4) else 0
        elif opcode in _TUPLES:
            loose += strings < _TUPLES[opcode]
            strings = 0
        elif opcode == _FRAME:
            at += 8
            if at + int.from_bytes(data[at - 8 : at], "little") > size:
                raise pickle.UnpicklingError("it has no end: a frame reaches beyond it")
        elif opcode == pickle.STOP[0]:
            break
        else:
            raise pickle.UnpicklingError(f"opcode {opcode:#x} at byte {at - 1}, which no checkpoint needs")
    if loose > _MAX_NESTED and _nested(bytes(data[:at])) > _MAX_NESTED:
        raise pickle.UnpicklingError("tuples are nested without end")


def _nested(data: bytes) -> int:
    """How deep tuples are nested in a pickle, counted on a stack as the unpickler's."""
    deepest = 0
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[Any, int] = {}
    counts = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
    try:
        for opcode, value, _ in pickletools.genops(data):
            name = opcode.name
            if name == "MARK":
                marks.append(len(stack))
            elif name in counts or name == "TUPLE":
                begin = marks.pop() if name == "TUPLE" else len(stack) - counts[name]
                if begin < 0:
                    raise IndexError
                stack[begin:] = [1 + max(stack[begin:], default=0)]
                deepest = max(deepest, stack[-1])
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name.endswith("BINPUT"):
                memo[value] = stack[-1]
            elif name.endswith("BINGET"):
                stack.append(memo[value])
            elif name in ("APPENDS", "SETITEMS", "DICT", "LIST"):
                del stack[marks.pop() :]
                if name in ("DICT", "LIST"):
                    stack.append(0)
            elif name == "BUILD":
                stack.pop()  # of an object that has no attributes it leaves what was there
            elif name == "POP" and marks and marks[-1] == len(stack):
                marks.pop()
            else:
                # Only a tuple of its own makes the next one deeper: no other object hashes what it holds.
                taken = len(opcode.stack_before)
                if taken > len(stack):
                    raise IndexError
                del stack[len(stack) - taken :]
                stack += [0] * len(opcode.stack_after)
    except (IndexError, KeyError, ValueError) as error:
        raise pickle.UnpicklingError("it takes from an empty stack") from error
    return deepest

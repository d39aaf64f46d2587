"""What a pickle may ask of its reader: looked through before the C unpickler sees it, which trusts what it reads.

The unpickler makes its memo as long as an index in it says (64 GiB for five bytes), reserves what a bytearray says that
it takes, hashes a tuple of tuples of tuples until the stack is full, and hashes one that holds itself twice, at each of
sixty levels, for ever. Only opcodes get through that the writers of checkpoints use: keepstep's, and those of
`torch.save` and `torch.distributed.checkpoint.save`.
"""

import pickle
import pickletools
import re
from collections.abc import Callable
from typing import Any, NoReturn

# What an unpickler raises of a pickle that is damaged or hostile, and what its values raise when they are looked at.
MALFORMED = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    RuntimeError,
    ArithmeticError,
    MemoryError,
)
# Tuples in tuples in tuples. Writers nest them about five deep; a stack of 8 MiB is full at some 50,000.
_MAX_NESTED = 4096
# Tuples that are taken out of the memo, and what they hold in all, counted as often as it is met.
_MAX_SHARED = 16
_MAX_HELD = 1 << 24

_INT = rb"(?:K.|M..|J....|\x8a(?:\x00|\x01.|\x02..|\x03...|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}))"
# An index of the memo above 2 ** 24 is refused: room for it would be made, and for all before it.
_PUT = rb"(?:\x94|q.|r...\x00)"
_GET = rb"(?:h.|j...\x00)"
_STRINGS = rb"[\x8cX\x8dCB\x8e]"
# A tuple must not get into the memo behind another opcode, which can leave it as it is: a PUT stands directly behind
# what makes its value. The one exception is how keepstep writes properties of tensors, whose state ends with a truth.
_NO_PUT = rb"(?![\x94qr])"


class _Grammar:
    """The opcodes of a fixed length, as expressions that match as many as there are: in one call, so that C works."""

    def __init__(self, memo: bool, persistent: bool) -> None:
        put, get = (_PUT, _GET + _NO_PUT) if memo else (rb"(?!)", rb"(?!)")
        scalar = rb"(?:" + _INT + rb"|[N\x88\x89]|" + get + rb")"
        # A tuple of such, and the call with it that makes a `torch.Size`, cannot be deep, whatever their number.
        short = scalar + rb"(?:\x85|" + scalar + rb"(?:\x86|" + scalar + rb"\x87))"
        flat = rb"(?:\)|\(" + scalar + rb"*+t|" + short + rb")"
        size = rb"(?:" + put + rb"?\x85" + put + rb"?R)?+"
        # A MARK before a string may begin a tuple with strings, which are not of a fixed length. What follows an empty
        # dict or list begins its items.
        mark = rb"\((?:(?<=[}\]]\()|(?<=[}\]]\x94\()|(?<=[}\]]q.\()|(?!" + scalar + rb"*+" + _STRINGS + rb"))"
        unput = rb"(?:[0abdesu]|\x80.)" + _NO_PUT
        fixed = rb"[R\]}l\x81\x93]|b(?<=R[\x88\x89]tb)|" + unput + rb"|G.{8}|c[!-~]{1,200}\n[!-~]{1,200}\n"
        others = [scalar, mark, fixed, rb"Q" if persistent else rb"(?!)"]
        # Up to the first tuple that is put into the memo, and from there on.
        no_tuple_put = rb"(?:" + flat + rb"(?:\x85R)?+" + _NO_PUT + rb")"
        self.run_without: Callable[..., Any] = _compiled([no_tuple_put, put, *others], rb"*+").match
        self.run: Callable[..., Any] = _compiled([flat + size, put, *others], rb"*+").match
        self.scalars = re.compile(rb"(?s:" + put + rb"?" + scalar + rb"*+)").fullmatch
        self.each_scalar = re.compile(rb"(?s:" + scalar + rb")").findall
        # Of the same opcodes only those that have to do with the memo: a PUT (with the tuple that it puts), or a GET.
        boring = rb"|".join([_INT, rb"[N\x88\x89()]", fixed, rb"Q", rb"[t\x85-\x87](?!" + _PUT + rb")"])
        memo_uses = rb"(?:" + boring + rb")*+([t\x85-\x87]?" + _PUT + rb"|" + _GET + rb")?"
        self.memo_uses = re.compile(rb"(?s:" + memo_uses + rb")").findall


def _compiled(choices: list[bytes], times: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"(?s:" + rb"|".join(choices) + rb")" + times)


_FRAME, _LONG1, _LONG4, _MARK = pickle.FRAME[0], pickle.LONG1[0], pickle.LONG4[0], pickle.MARK[0]
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
# Opcodes of tuples: how many they take.
_TUPLES = {pickle.TUPLE[0]: 0, pickle.TUPLE1[0]: 1, pickle.TUPLE2[0]: 2, pickle.TUPLE3[0]: 3}
_PUT_LENGTHS = {pickle.MEMOIZE[0]: 1, pickle.BINPUT[0]: 2, pickle.LONG_BINPUT[0]: 5}
_PUTS = (b"\x94", pickle.BINPUT, pickle.LONG_BINPUT)
_GRAMMARS = {(memo, persistent): _Grammar(memo, persistent) for memo in (False, True) for persistent in (False, True)}


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
            the data, or tuples that are nested or shared without end.
    """
    grammar, size, at, loose = _GRAMMARS[memo, persistent_ids], len(data), 0, 0
    # Whether a MARK stands before the strings and numbers before here, and how many these are: a tuple of them is flat.
    marked, scalars = False, 0
    run, runs = grammar.run_without, []
    begin = 0
    while True:
        end = run(data, at).end()
        # Of a string that stands there already the PUT alone changes nothing.
        if end > at and end - at != (put := _PUT_LENGTHS.get(data[at], 0)):
            if grammar.scalars(data, at, end):
                scalars += len(grammar.each_scalar(data, at + put, end))
            else:
                marked, scalars = False, 0
        runs.append((begin, end))
        at = begin = end
        if at >= size:
            raise pickle.UnpicklingError("it has no end")
        opcode = data[at]
        at += 1
        if opcode in _PREFIXED:
            width = _PREFIXED[opcode]
            length = int.from_bytes(data[at : at + width], "little")
            begin = at = at + width + length
            if at > size:
                raise pickle.UnpicklingError(f"it has no end: {length} bytes should follow")
            scalars += 1
        elif opcode == _MARK:
            marked, scalars, begin = True, 0, at
        elif opcode in _TUPLES:
            loose += not (scalars >= _TUPLES[opcode] if opcode != pickle.TUPLE[0] else marked)
            marked, scalars = False, 0
            if data[at : at + 1] in _PUTS:
                run = grammar.run
        elif opcode == _FRAME:
            begin = at = at + 8
            if at + int.from_bytes(data[at - 8 : at], "little") > size:
                raise pickle.UnpicklingError("it has no end: a frame reaches beyond it")
            if data[at : at + 1] in _PUTS:
                raise pickle.UnpicklingError("a frame stands between a value and its place in the memo")
        elif opcode == pickle.STOP[0]:
            break
        else:
            raise pickle.UnpicklingError(f"opcode {opcode:#x} at byte {at - 1}, which no checkpoint needs")
    is_shared = run is grammar.run and _shared(grammar, data, runs) > _MAX_SHARED
    if is_shared or loose > _MAX_NESTED:
        _refuse_endless(bytes(data[:at]))


def _shared(grammar: _Grammar, data: bytes | bytearray | memoryview, runs: list[tuple[int, int]]) -> int:
    """How often tuples are taken out of the memo."""
    tuples: set[int] = set()
    puts = shared = 0
    is_numbered = None
    for begin, end in runs:
        for use in grammar.memo_uses(data, begin, end):
            if not use:
                continue
            if use[0] in b"hj":
                shared += int.from_bytes(use[1:], "little") in tuples
                continue
            put = use[1:] if use[0] in _TUPLES else use
            if is_numbered is None:
                is_numbered = len(put) > 1
            elif is_numbered != (len(put) > 1):
                raise pickle.UnpicklingError("its memo is numbered in two ways")
            index = int.from_bytes(put[1:], "little") if is_numbered else puts
            (tuples.add if put is not use else tuples.discard)(index)
            puts += 1
    return shared


def _refuse_endless(data: bytes) -> None:
    """How deep tuples are nested and what they hold, counted on a stack as the unpickler's."""
    stack: list[tuple[int, int]] = []
    marks: list[int] = []
    memo: dict[Any, tuple[int, int]] = {}
    counts = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
    held = 0
    try:
        for opcode, value, _ in pickletools.genops(data):
            name = opcode.name
            if name == "MARK":
                marks.append(len(stack))
            elif name in counts or name == "TUPLE":
                begin = marks.pop() if name == "TUPLE" else len(stack) - counts[name]
                if begin < 0:
                    raise IndexError
                parts = stack[begin:]
                depth = 1 + max((one for one, _ in parts), default=0)
                stack[begin:] = [(depth, 1 + sum(one for _, one in parts))]
                if depth > _MAX_NESTED:
                    raise pickle.UnpicklingError("tuples are nested without end")
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name.endswith("BINPUT"):
                memo[value] = stack[-1]
            elif name.endswith("BINGET"):
                stack.append(memo[value])
                held += stack[-1][1] if stack[-1][0] else 0
                if held > _MAX_HELD:
                    raise pickle.UnpicklingError("tuples hold each other without end")
            elif name in ("APPENDS", "SETITEMS", "DICT", "LIST"):
                del stack[marks.pop() :]
                if name in ("DICT", "LIST"):
                    stack.append((0, 1))
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
                stack += [(0, 1)] * len(opcode.stack_after)
    except (IndexError, KeyError, ValueError) as error:
        raise pickle.UnpicklingError("it takes from an empty stack") from error

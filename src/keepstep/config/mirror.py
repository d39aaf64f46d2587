"""Where a second copy of the checkpoints goes."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from keepstep.config.address import parse_address
from keepstep.config.base import NoBool, Section


def _address(text: str) -> str:
    address = parse_address(text)
    if address.is_read_only:
        raise ValueError(f"{address}: addresses of {address.scheme} can only be read, and a mirror is written")
    return str(address)


class MirrorConfig(Section):
    """A mirror: committed checkpoints are copied there beside the job, and it resumes from there on an empty disk.

    Attributes:
        address: `s3://bucket/folder`, `gs://`, `az://`, `hf://user/repo` or `file:///mnt/drive`; a run's checkpoints go
            to `<address>/<run.name>/save-<step>`. Credentials come from the environment (docs/mirrors.md), never from
            here.
        period_steps: a checkpoint is copied when it is at least so many steps after the last one that was; None: each.
        num_to_keep: how many remain there; None keeps all.
        require: here a checkpoint counts for `checkpointing.num_to_keep` only when it is there.
        max_mib_per_second: the most that is sent.
        max_waiting: so many checkpoints that retention would delete wait for their upload at most; when more come due,
            the oldest of them is given up, and a warning says so. With `require` all wait while the disk has room.
        wait_seconds: how long the end of the job waits for uploads.
        fetch: how a resume gets a checkpoint that is only there: "download": whole, to save_dir, first; "ranges": each
            rank reads what it needs, and save_dir gets no copy; "never": only save_dir is looked at.
    """

    address: Annotated[str, AfterValidator(_address)]
    period_steps: Annotated[int | None, Field(ge=1), NoBool] = None
    num_to_keep: Annotated[int | None, Field(ge=1), NoBool] = None
    require: bool = False
    max_mib_per_second: Annotated[float | None, Field(gt=0), NoBool] = None
    max_waiting: Annotated[int, Field(ge=0), NoBool] = 2
    wait_seconds: Annotated[float, Field(ge=0), NoBool] = 300.0
    fetch: Literal["download", "ranges", "never"] = "download"


def _several(value: Any) -> Any:
    """One or several, each an address or a section."""
    if value is None:
        return ()
    many = value if isinstance(value, list | tuple) else (value,)
    return tuple(unprinted({"address": one} if isinstance(one, str) else one) for one in many)


class _Unprinted(str):
    """pydantic prints what it refuses. An address may be refused since it holds a password or a signature."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "..."


def unprinted(value: Any) -> Any:
    """The same with every text in it such that printing it shows nothing."""
    if isinstance(value, str):
        return _Unprinted(value)
    if isinstance(value, dict):
        return {key: one if key == "fetch" else unprinted(one) for key, one in value.items()}
    return [unprinted(one) for one in value] if isinstance(value, list | tuple) else value


def _distinct(mirrors: tuple[MirrorConfig, ...]) -> tuple[MirrorConfig, ...]:
    addresses = [one.address for one in mirrors]
    twice = next((one for one in addresses if addresses.count(one) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice")
    return mirrors


Mirrors = Annotated[tuple[MirrorConfig, ...], BeforeValidator(_several), AfterValidator(_distinct)]

"""Whether a folder holds all that a Trainer needs to go on, before anything of it is loaded."""

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from keepstep.errors import DamagedCheckpointError, StateMismatchError

_SHOWN = 3
_LONGEST_HEADER = 512 * 1024 * 1024


def components_of(names: Iterable[str]) -> tuple[str, ...]:
    """The parts of a job's state that a Trainer's checkpoint with these files holds."""
    files = list(names)
    found = {
        "model": any(name.endswith(".safetensors") or "pytorch_model" in name for name in files),
        "optimizer": any(name.split("/")[0].startswith("optimizer") or "global_step" in name for name in files),
        "lr_scheduler": "scheduler.pt" in files,
        "rng": any(name.startswith("rng_state") for name in files),
        "trainer": "trainer_state.json" in files,
        "scaler": "scaler.pt" in files,
        "tokenizer": any(name.startswith(("tokenizer", "processor", "preprocessor")) for name in files),
    }
    return tuple(name for name, is_there in found.items() if is_there)


def check_state(folder: Path, *, world_size: int, has_scaler: bool, takes_any_world: bool, engine: str) -> None:
    """Whether the parts beside the weights are there.

    Args:
        folder: the checkpoint.
        world_size: ranks of this job.
        has_scaler: whether this job scales its loss.
        takes_any_world: ranks whose random states are missing draw new ones.
        engine: "deepspeed" keeps optimizer and scheduler in folders of its own.

    Raises:
        StateMismatchError: one is missing; the message names it.
    """
    missing = [] if (folder / "trainer_state.json").is_file() else ["trainer_state.json (step, epoch, callbacks)"]
    has_optimizer = any(
        one.name.startswith("optimizer") or one.name.startswith("global_step") for one in folder.iterdir()
    )
    if not has_optimizer:
        missing.append("the optimizer (optimizer.pt)")
    if not (folder / "scheduler.pt").is_file() and engine != "deepspeed":
        missing.append("the learning-rate schedule (scheduler.pt)")
    ranks = [""] if world_size <= 1 else [f"_{rank}" for rank in range(world_size)]
    lacking = [f"rng_state{rank}.pth" for rank in ranks if not (folder / f"rng_state{rank}.pth").is_file()]
    if lacking and not (takes_any_world and any(folder.glob("rng_state*.pth"))):
        missing.append(f"random states of this job's ranks ({', '.join(lacking[:_SHOWN])})")
    if has_scaler and not (folder / "scaler.pt").is_file():
        missing.append("the loss scaler (scaler.pt)")
    if missing:
        raise StateMismatchError(
            f"{folder} cannot be resumed from: it lacks {'; '.join(missing)}. Nothing was loaded. A checkpoint of "
            "save_only_model, or one that was made by hand, holds weights only: load them into the model and train "
            "without resume_from_checkpoint"
        )


def check_weights(folder: Path, model: Any) -> None:
    """Whether the weights of a checkpoint are those of this model: every tensor, by name and shape.

    Raises:
        StateMismatchError: they are not; the message names tensors and both sizes.
        DamagedCheckpointError: a file of weights cannot be read.
    """
    if isinstance(getattr(model, "peft_config", None), Mapping):
        for adapter in model.peft_config:
            place = folder if adapter == "default" else folder / adapter
            _compare(place, _stored(place, "adapter_model"), _of_adapter(model, adapter), f"adapter {adapter!r}")
        return
    stored = _stored(folder, "model")
    if stored is not None:
        _compare(folder, stored, _of_model(model, stored), "model")


def _compare(
    folder: Path, stored: dict[str, tuple[int, ...]] | None, wanted: Mapping[str, tuple[int, ...]], what: str
) -> None:
    if stored is None:
        raise StateMismatchError(f"{folder} holds no weights of the {what}. Nothing was loaded")
    missing = [name for name in wanted if name not in stored]
    left = [name for name in stored if name not in wanted]
    wrong = [name for name in wanted if name in stored and tuple(stored[name]) != tuple(wanted[name])]
    problems = []
    if missing:
        problems.append(f"{len(missing)} of {len(wanted)} tensors are missing ({_some(missing)})")
    if left:
        problems.append(f"{len(left)} tensors are not of this model ({_some(left)})")
    if wrong:
        shown = [f"{name}: {list(stored[name])} there, {list(wanted[name])} here" for name in wrong[:_SHOWN]]
        problems.append(f"{len(wrong)} tensors have another size ({'; '.join(shown)})")
    if problems:
        hint = (
            ". Where tokens were added, call model.resize_token_embeddings(...) with the size that the checkpoint has "
            "before train()"
            if any("embed" in name or "wte" in name or "lm_head" in name for name in wrong)
            else ""
        )
        raise StateMismatchError(f"{folder} does not fit the {what}: {'; '.join(problems)}. Nothing was loaded{hint}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _stored(folder: Path, stem: str) -> dict[str, tuple[int, ...]] | None:
    """Names and shapes in safetensors files; None where there are none (other formats are left to the Trainer)."""
    one, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if one.is_file():
        return read_header(one)
    if not index.is_file():
        return None
    try:
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise DamagedCheckpointError(f"{index} cannot be read: {error}") from error
    found: dict[str, tuple[int, ...]] = {}
    for name in files:
        found |= read_header(folder / name)
    return found


def read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors in a safetensors file.

    Raises:
        DamagedCheckpointError: it is none, or is cut off.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size, _LONGEST_HEADER):
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        ends = [one["data_offsets"][1] for one in header.values()]
        if 8 + length + max(ends, default=0) != size:
            raise ValueError(f"it has {size:,} bytes, not {8 + length + max(ends, default=0):,}")
        return {name: tuple(one["shape"]) for name, one in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise DamagedCheckpointError(f"{path} is no whole safetensors file: {error}") from error


def _of_adapter(model: Any, adapter: str) -> dict[str, tuple[int, ...]]:
    from peft import get_peft_model_state_dict

    return {name: tuple(one.shape) for name, one in get_peft_model_state_dict(model, adapter_name=adapter).items()}


def _of_model(model: Any, stored: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """What the model needs: each tensor once, under the name that the file has for it where it has several."""
    state = {name: held for name, held in model.state_dict().items() if isinstance(held, torch.Tensor)}
    places: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) if tensor.numel() else (name,)
        places.setdefault(key, []).append(name)
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    wanted: dict[str, tuple[int, ...]] = {}
    for names in places.values():
        name = next((one for one in names if one in stored), names[0])
        if name not in ignored or name in stored:
            wanted |= {one: tuple(state[one].shape) for one in names if one in stored or one == name}
    return wanted

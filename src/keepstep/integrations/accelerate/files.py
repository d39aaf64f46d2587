"""Which files a checkpoint must hold, given what an Accelerator has prepared."""

from collections.abc import Iterable
from typing import Any

from keepstep.integrations.accelerate import loader_states, random_states


def needed_files(accelerator: Any, world_size: int) -> list[tuple[str, str]]:
    """Names, and what they hold. A name may be that of a folder; what only a plugin knows is left to it."""
    kind = accelerator.distributed_type.value
    names = [
        one
        for rank in range(world_size)
        for one in (
            (random_states.file_name(rank), f"the random states of rank {rank}"),
            (loader_states.file_name(rank), f"the loaders of rank {rank}"),
        )
    ]
    # Hooks may write weights in their own way, and take them from Accelerate.
    models = [] if accelerator._save_model_state_pre_hook else accelerator._models
    if kind == "FSDP":
        names += _of_fsdp(accelerator)
    elif kind == "DEEPSPEED":
        names += [(_numbered("pytorch_model{}", i), f"model {i}") for i in range(len(accelerator._models))]
    elif kind != "MEGATRON_LM":
        names += [(_numbered("model{}.safetensors|pytorch_model{}.bin", i), f"model {i}") for i in range(len(models))]
        names += [(_numbered("optimizer{}.bin", i), f"optimizer {i}") for i in range(len(accelerator._optimizers))]
    if kind not in ("DEEPSPEED", "MEGATRON_LM"):
        names += [(_numbered("scheduler{}.bin", i), f"scheduler {i}") for i in range(len(accelerator._schedulers))]
    names += [
        (_numbered("dl_state_dict{}.bin", i), f"loader {i}")
        for i, loader in enumerate(accelerator._dataloaders)
        if getattr(loader, "use_stateful_dataloader", False)
    ]
    if accelerator.scaler is not None:
        names.append(("scaler.pt", "the gradient scaler"))
    customs = enumerate(accelerator._custom_objects)
    return names + [(f"custom_checkpoint_{i}.pkl", f"the registered {type(one).__name__}") for i, one in customs]


def missing_files(needed: Iterable[tuple[str, str]], there: Iterable[str]) -> list[str]:
    """Of these the missing ones, in words. A folder is there when a file in it is; `a|b` when one of both is."""
    names = set(there)
    names |= {name.split("/")[0] for name in names}
    return [f"{name.replace('|', ' or ')} ({what})" for name, what in needed if not names & set(name.split("|"))]


def _of_fsdp(accelerator: Any) -> list[tuple[str, str]]:
    if "SHARDED" not in str(getattr(accelerator.state.fsdp_plugin, "state_dict_type", "")):
        return []
    models = [(f"pytorch_model_fsdp_{i}", f"model {i}") for i in range(len(accelerator._models))]
    return models + [(f"optimizer_{i}", f"optimizer {i}") for i in range(len(accelerator._optimizers))]


def _numbered(name: str, number: int) -> str:
    return name.replace("{}", f"_{number}" if number else "")

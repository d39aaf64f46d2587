"""What an Accelerator tells of its run, for run.json and the guards."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from keepstep.checkpoint.identity import with_dataset
from keepstep.integrations.accelerate.attached import Attached
from keepstep.provenance.record import RunFacts


def facts_of(accelerator: Any, beside: Attached, folder: Path, facts: RunFacts | None) -> RunFacts:
    """What is known; `facts` from the caller stand. Only the main process looks at the data.

    Data and batch are those of the first loader whose position is kept, else of the only loader that was prepared: of
    several others nobody says which one the run is trained on.
    """
    facts = facts or RunFacts(folder.name)
    mesh = getattr(accelerator, "torch_device_mesh", None)
    if not facts.mesh and mesh is not None and mesh.mesh_dim_names:
        facts = replace(facts, mesh=dict(zip(mesh.mesh_dim_names, map(int, mesh.shape), strict=True)))
    if facts.elastic is None:
        facts = replace(facts, elastic=False)  # every rank has its own random states, and its own part of each batch
    loader = _trained_on(accelerator, beside)
    if loader is None:
        return facts
    if facts.global_batch_size is None and isinstance(size := getattr(loader, "total_batch_size", None), int):
        facts = replace(facts, global_batch_size=size * int(accelerator.gradient_accumulation_steps))
    return facts if beside.world.rank else with_dataset(facts, loader.dataset)


def _trained_on(accelerator: Any, beside: Attached) -> Any:
    loaders = accelerator._dataloaders
    if beside.loaders:
        return loaders[min(beside.loaders)]
    return loaders[0] if len(loaders) == 1 else None

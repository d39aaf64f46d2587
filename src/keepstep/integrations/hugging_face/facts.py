"""What identifies a run of a Trainer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import xxhash

from keepstep.checkpoint.identity import RunIdentity, with_dataset
from keepstep.config.checkpointing import CheckpointingConfig
from keepstep.dist.agree import agreed
from keepstep.dist.world import World
from keepstep.errors import ResumeError
from keepstep.plan import layout
from keepstep.provenance.record import RunFacts
from keepstep.provenance.tokenizer import is_tokenizer, tokenizer_digest

# The attribute of a trainer that holds its data set, and the digests of that.
_DATA = "_keepstep_dataset"
# Where things lie, and what is logged, kept, evaluated or pushed: none of it changes what is trained.
_NEUTRAL = re.compile(
    r"output_dir|run_name|report_to|project|trackio_.*|logging_.*|log_.*|disable_tqdm|save_.*|push_to_hub.*|hub_.*|"
    r"resume_from_checkpoint|overwrite_output_dir|do_(train|eval|predict)|eval_.*|evaluation_strategy|"
    r"per_device_eval_batch_size|prediction_loss_only|load_best_model_at_end|local_rank|ddp_timeout|ddp_backend|"
    r"dataloader_(num_workers|pin_memory|prefetch_factor|persistent_workers|multiprocessing_context)|"
    r"enable_jit_checkpoint|restore_callback_states_from_checkpoint|include_.*|batch_eval_metrics|no_cuda|use_cpu|"
    r"seed|per_gpu_.*|mp_parameters|debug|dataset_num_proc|skip_memory_metrics|.*_token"
)


def identify(
    trainer: Any, folder: Path, world: World, config: CheckpointingConfig, accept: Sequence[str]
) -> RunIdentity:
    """Collect what identifies a run that is about to train. Collective.

    Raises:
        ConfigError: something is to be accepted that is not compared.
        ResumeError: data or tokenizer cannot be read.
    """
    with agreed(world, "identifying data, tokenizer and base weights", ResumeError):
        facts = facts_of(trainer)
        if world.rank == 0 and trainer.train_dataset is not None:
            facts = _with_dataset(trainer, facts)
    identity = RunIdentity(folder, world, facts, config, accept, naming=layout.TRAINER)
    identity.describe([trainer.model])
    identity.record()
    return identity


def _with_dataset(trainer: Any, facts: RunFacts) -> RunFacts:
    """What a data set was before it was read first: some keep what was read."""
    held, sha256, parts = vars(trainer).get(_DATA, (None, None, {}))
    if held is trainer.train_dataset:
        return replace(facts, dataset_sha256=sha256, dataset_parts=parts)
    facts = with_dataset(facts, trainer.train_dataset)
    setattr(trainer, _DATA, (trainer.train_dataset, facts.dataset_sha256, facts.dataset_parts))
    return facts


def facts_of(trainer: Any) -> RunFacts:
    """The facts of a trainer that is about to train. The data set is added by the caller, on the main process.

    Raises:
        OSError, ValueError: the tokenizer cannot be read.
    """
    args = trainer.args
    processor = trainer.processing_class if hasattr(trainer, "processing_class") else trainer.tokenizer
    tokenizer = getattr(processor, "tokenizer", processor)
    name = getattr(getattr(trainer.model, "config", None), "_name_or_path", None) or None
    commit = getattr(getattr(trainer.model, "config", None), "_commit_hash", None)
    world = max(1, int(args.world_size))
    return RunFacts(
        run_name=Path(args.output_dir).absolute().name,
        config={"training_arguments": _arguments(args)},
        seed=int(args.seed),
        base_model=name if isinstance(name, str) else None,
        base_revision=commit if isinstance(commit, str) else None,
        base_weights=frozen_digest(trainer.model),
        tokenizer_sha256=tokenizer_digest(tokenizer) if is_tokenizer(tokenizer) else None,
        global_batch_size=_global_batch(trainer, world),
        data_parallel=world,
        elastic=False,
    )


def frozen_digest(model: Any) -> str | None:
    """A digest of the weights that are not trained, of a model with an adapter: its checkpoints do not hold them.

    None for a model that is trained whole, and where weights are not in this process's memory.
    """
    if not isinstance(getattr(model, "peft_config", None), Mapping):
        return None
    total = xxhash.xxh3_128()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                continue
            data = parameter.detach()
            if data.is_meta or type(data) not in (torch.Tensor, torch.nn.Parameter):
                return None
            plain = data.cpu().contiguous().flatten().view(torch.uint8)
            total.update(f"{name} {tuple(data.shape)} {data.dtype}".encode())
            total.update(memoryview(plain.numpy()))
    return str(total.hexdigest())


def _global_batch(trainer: Any, world: int) -> int | None:
    args = trainer.args
    if bool(getattr(args, "auto_find_batch_size", False)):
        return None
    return int(args.train_batch_size) * int(args.gradient_accumulation_steps) * world


def _arguments(args: Any) -> dict[str, Any]:
    found = args.to_dict()
    return {name: _plain(found[name]) for name in sorted(found) if not _NEUTRAL.fullmatch(name)}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)

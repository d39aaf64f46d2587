"""What a changed value of the configuration means for a run that goes on."""

import re

# What has a field of its own in run.json, and is judged there; what lies where, and how much is kept and logged.
DECIDED_ELSEWHERE = tuple(
    re.compile(pattern)
    for pattern in (
        r"mesh(\..*)?",
        r"\w+\.determinism\.base_seed",
        r"\w+\.batching\.global_batch_size",
        r"\w+\.model_stage_factory\.source_(checkpoint|revision)",
        r"\w+\.checkpointing(\..*)?",
        r"\w+\.logging(\..*)?",
        r"\w+\.run(\..*)?",
        r"\w+\.(export_to|output_to)",
        r"\w+\.outputs\.(to|format|compression)",
        r"\w+\.data\.(num_workers|persistent_workers|ledger)",
        r"\w+\.num_workers",
    )
)
# Arguments of the Hugging Face Trainer and of those built on it.
_OF_TRAINERS = (
    (
        r"training_arguments\.(data_seed|train_sampling_strategy|group_by_length|length_column_name|dataloader_drop_last|"
        r"packing.*|max_length|max_seq_length|shuffle_dataset|num_generations|generation_batch_size|steps_per_generation|"
        r"num_iterations)",
        "refuse",
        "samples would come in another order, or in other batches",
    ),
    (
        r"training_arguments\.(max_steps|num_train_epochs)",
        "accept",
        "the run ends at another step; the learning-rate schedule moves with it",
    ),
    (
        r"training_arguments\.(learning_rate|lr_scheduler_.*|warmup_.*|weight_decay|adam_.*)",
        "accept",
        "the new value holds from the next step on",
    ),
    (
        r"training_arguments\.(per_device_train_batch_size|gradient_accumulation_steps)",
        "warn",
        "sums are made in another order: results differ in the last bits",
    ),
)
_RULES = (
    (r"\w+\.data\.shuffle", "refuse", "samples would come in another order"),
    (r"\w+\.shard(\..*)?", "refuse", "samples would be missed, or be in the output twice"),
    (r"\w+\.total_steps", "accept", "the run ends at another step; a rate in percent of the steps moves with it"),
    (r"\w+\.lr_scheduler(\..*)?", "accept", "the learning rate follows the new phases"),
    (
        r"\w+\.batching\.(microbatch_size|by_length(\..*)?)",
        "warn",
        "sums are made in another order: results differ in the last bits",
    ),
    (r"\w+\.pipeline(\..*)?", "warn", "sums are made in another order: results differ in the last bits"),
    (r"\w+\.outputs\.(on_error|tries)", "accept", "rows that fail from here on are treated as it says now"),
    (r"\w+\.optimizer\.lr", "accept", "the new rate holds from the next step on"),
    (r"\w+\.optimizer\..*", "warn", "the value that was saved with the optimizer stays in force"),
    (r"\w+\.max_gradient_norm", "warn", "the new value holds from the next step on"),
    (r"providers\.dataset\.paths(\..*)?", "accept", "data is told by its content, not by its place"),
    (r"providers\..*", "warn", "another function makes this part of the job"),
    *_OF_TRAINERS,
)
_OTHER = ("warn", "the job is configured in another way")


def rule_of(path: str) -> tuple[str, str]:
    """Policy ("refuse", "warn" or "accept") and effect of a changed value, by its dotted path."""
    for pattern, policy, effect in _RULES:
        if re.fullmatch(pattern, path):
            return policy, effect
    return _OTHER


def is_identity(path: str) -> bool:
    """Whether a value takes part in `config_sha256`: places, retention and logging do not."""
    return not any(rule.fullmatch(path) for rule in _NEUTRAL)


_NEUTRAL = tuple(rule for rule in DECIDED_ELSEWHERE if not re.search("mesh|determinism|batching", rule.pattern))

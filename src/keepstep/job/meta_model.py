"""What a model and its optimizer hold, without memory for either: torch's meta device has shapes and no values."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from keepstep.errors import ConfigError
from keepstep.ops.report.shown import shown
from keepstep.plan.model_size import HEAD, Weight

META = torch.device("meta")


def weights_by_transformers(config: Mapping[str, Any], where: str) -> tuple[Weight, ...]:
    """The parameters of the model that transformers builds of a configuration.

    Args:
        config: the fields of a `config.json`.
        where: it lies, for errors.

    Raises:
        ConfigError: transformers is not installed, or does not build such a model.
    """
    problem = f"{where}: the size of a model of type {config.get('model_type')!r} is not known here"
    try:
        import transformers
    except ImportError:
        raise ConfigError(f"{problem}; install transformers, which may know it, or give --parameters") from None
    try:
        with META:
            return tuple(_weights(_build(transformers, dict(config))))
    # Another library's code on a file that anybody may have written: whatever it raises means the same here.
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"{problem}, and transformers does not build it ({shown(cause)}); give --parameters"
        ) from error


def _build(transformers: Any, config: dict[str, Any]) -> nn.Module:
    """The class that the configuration names, and never code that lies beside it."""
    config.pop("auto_map", None)  # transformers would ask on the terminal whether to run it
    told = [getattr(transformers, str(name), None) for name in config.get("architectures") or ()]
    described = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    makers = [made for made in told if isinstance(made, type) and issubclass(made, transformers.PreTrainedModel)]
    model: nn.Module = (makers[0] if makers else transformers.AutoModelForCausalLM.from_config)(described)
    return model


def _weights(model: nn.Module) -> Iterable[Weight]:
    """Each parameter once, under the first of its names."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    seen: set[int] = set()
    for where, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                is_linear = name == "weight" and type(module).__name__ in ("Linear", "Conv1D")
                yield Weight(HEAD if module is head else where or name, tuple(parameter.shape), 1, is_linear)

"""In which form a Trainer's weights are written: the one in which it loads them again."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from keepstep.integrations.hugging_face.replaced import replaced


@contextmanager
def as_it_is_loaded(trainer: Any) -> Iterator[None]:
    """While the body saves, weights keep the names that the model has for them.

    transformers 5 converts the weights of some models (mixtures of experts, say) to the names of their first release,
    and its Trainer loads a checkpoint without converting them back: those weights would be left as they are, silently.
    `from_pretrained` reads both forms.
    """
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    save = getattr(model, "save_pretrained", None)
    if save is None or "save_original_format" not in inspect.signature(save).parameters:
        yield
        return
    with replaced(model, "save_pretrained", partial(save, save_original_format=False)):
        yield

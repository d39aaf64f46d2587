"""TRL writes a README into the run's folder before each save: one that cannot be written ends no training."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keepstep.integrations.hugging_face.replaced import replaced

logger = logging.getLogger("keepstep")


@contextmanager
def sparing_model_cards(trainer: Any) -> Iterator[None]:
    """While the body trains, a model card that cannot be written is a warning."""
    write = trainer.create_model_card

    def create_model_card(*args: Any, **kwargs: Any) -> None:
        try:
            write(*args, **kwargs)
        except OSError as error:
            logger.warning("could not write the model card: %s", error)

    with replaced(trainer, "create_model_card", create_model_card):
        yield

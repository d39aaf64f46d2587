"""What keepstep does at the Trainer's own events. It stands first among the callbacks."""

from typing import Any

from transformers import TrainerCallback


class KeepstepCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Hands events on to the session of a trainer."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.train_begins()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.epoch_begins()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.epoch_ends()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.step_ends(control)

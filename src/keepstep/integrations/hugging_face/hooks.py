"""Where keepstep takes part in a Trainer: methods of the base class, so that subclasses which call it are covered.

Each hook asks whether this trainer has a session; one that has none runs as if nothing was installed.
"""

import functools
from collections.abc import Callable
from typing import Any

from keepstep.errors import ConfigError
from keepstep.integrations.hugging_face.options import Options
from keepstep.integrations.hugging_face.pushes import without_own_files
from keepstep.integrations.hugging_face.session import SESSION, Session

_originals: dict[str, Callable[..., Any]] = {}
_for_all: list[Options] = []

# All of these are methods of the base class, and `Session` has a method of the same name without the underscores
# that is given the original. The last two are only in transformers 4.
_HOOKED = (
    "train",
    "_get_output_dir",
    "_save_checkpoint",
    "_push_from_checkpoint",
    "_finish_current_push",
    "_load_optimizer_and_scheduler",
    "_load_rng_state",
    "_load_callback_state",
    "_load_best_model",
    "evaluate",
    "_maybe_log_save_evaluate",
    "_finalize_training",
    "_sorted_checkpoints",
    "_rotate_checkpoints",
)


_SKIP = "skip_first_batches"
# How the Trainer reaches the Hub; before transformers 5 it called `upload_folder` by itself.
_UPLOADS = ("hf_api", "upload_folder")


def attach(trainer: Any, options: Options) -> Any:
    """Give one trainer a session. Returns the trainer. Raises ConfigError."""
    install()
    setattr(trainer, SESSION, Session(trainer, options))
    return trainer


def enable_all(options: Options) -> None:
    """Give every trainer one that has none when it begins to train. Raises ConfigError."""
    install()
    _for_all[:] = [options]


def uninstall() -> None:
    """Take all hooks out. Trainers that run are not touched."""
    _for_all.clear()
    if _originals:
        trainer_class = _trainer_class()
        for name, original in _originals.items():
            setattr(_trainer_module() if name in (_SKIP, *_UPLOADS) else trainer_class, name, original)
        _originals.clear()


def install() -> None:
    """Put the hooks in. A second call changes nothing.

    Raises:
        ConfigError: transformers is missing, or is a version that these hooks do not fit.
    """
    if _originals:
        return
    trainer_class = _trainer_class()
    for name in _HOOKED:
        original = trainer_class.__dict__.get(name)
        if original is not None:
            _originals[name] = original
            setattr(trainer_class, name, _hook(name, original))
    _install_skip()
    _install_uploads()
    missing = {"train", "_get_output_dir", "_save_checkpoint", "_load_rng_state"} - set(_originals)
    if missing:
        uninstall()
        import transformers

        raise ConfigError(
            f"keepstep does not know the Trainer of transformers {transformers.__version__}: it has no "
            f"{', '.join(sorted(missing))}. docs/hugging-face.md lists the versions that are supported"
        )


def _install_skip() -> None:
    """The Trainer counts what it skips in steps; of a stream only the order of the data knows the place."""
    module = _trainer_module()
    skip = _originals[_SKIP] = module.skip_first_batches

    @functools.wraps(skip)
    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        order = getattr(dataloader, "keepstep_order", None)
        if order is None:
            return skip(dataloader, num_batches)
        skipped = skip(dataloader, order.to_skip(num_batches))
        order.take_over_skipped(skipped)
        return skipped

    module.skip_first_batches = skip_first_batches


def _install_uploads() -> None:
    """`Trainer.push_to_hub` uploads the whole output folder, hidden files included: keepstep's own stay out."""
    module = _trainer_module()
    for name in _UPLOADS:
        original = module.__dict__.get(name)
        if original is not None:
            _originals[name] = original
            setattr(module, name, without_own_files(original) if name == "upload_folder" else _guarded(original))


def _guarded(hf_api: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(hf_api)
    def guarded() -> Any:
        return _Uploads(hf_api())

    return guarded


class _Uploads:
    """An `HfApi` whose `upload_folder` leaves out what is keepstep's."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.upload_folder = without_own_files(api.upload_folder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)


def _trainer_module() -> Any:
    import transformers.trainer

    return transformers.trainer


def _trainer_class() -> Any:
    try:
        from transformers import Trainer
    except ImportError as error:
        raise ConfigError(f"the Trainer cannot be imported ({error}): pip install 'keepstep[hf]'") from error
    return Trainer


def _hook(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    method = name.lstrip("_")

    @functools.wraps(original)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = self.__dict__.get(SESSION)
        if session is None and name == "train" and _for_all:
            session = Session(self, _for_all[0])
            setattr(self, SESSION, session)
        if session is None:
            return original(self, *args, **kwargs)
        return getattr(session, method)(functools.partial(original, self), *args, **kwargs)

    return hooked

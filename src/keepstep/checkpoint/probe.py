"""Observes a run for a twin check: what every step was given and what it left, as digests in a file.

It is switched on by the environment (`keepstep selftest`, `keepstep.testing.twin_check`) and no part of a usual run.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch
import xxhash
from torch import nn

from keepstep.checkpoint.seeding import SeedWatch, length_of
from keepstep.dcp.digests import digest_tensor, digest_tree
from keepstep.dist.world import World
from keepstep.plan.trace import LONGEST, Start, Step, choose_stops, to_line
from keepstep.state.component import Component
from keepstep.state.data import DataComponent
from keepstep.state.job_state import collect
from keepstep.state.model import ModelComponent
from keepstep.state.optimizer import OptimizerComponent
from keepstep.state.rng import read_states
from keepstep.storage import tracing

VARIABLE = "KEEPSTEP_PROBE"
_DEEPEST = 20

_active: "Probe | None" = None


@dataclass(frozen=True)
class ProbeSettings:
    """What an observed run does.

    Attributes:
        save_dir: where it saves, whatever its configuration says.
        trace: its trace's files, without `.rank_<r>`.
        stop: the step that it saves and dies at; None to go on to the last.
        last: the step that it dies at without a save; None to choose it when the first step is known.
    """

    save_dir: str
    trace: str
    stop: int | None = None
    last: int | None = None

    def to_environment(self) -> dict[str, str]:
        """The variable that switches the observation on."""
        return {VARIABLE: json.dumps(asdict(self))}


def settings_from_environment() -> ProbeSettings | None:
    """How this process is to be observed, None when it is not."""
    text = os.environ.get(VARIABLE)
    return ProbeSettings(**json.loads(text)) if text else None


def save_dir(configured: str) -> Path:
    """Where this process saves: where its configuration says, unless it is observed, or faults are tried on it."""
    settings = settings_from_environment() or tracing.settings_from_environment()
    return Path(settings.save_dir if settings else configured)


def note(name: str, value: Any) -> None:
    """Tell an observer a value of the step under way (its loss, its samples). Nothing happens when there is none.

    Args:
        name: what it is.
        value: a number, a string, a tensor, or a list of these.
    """
    if _active is not None:
        _active.note(name, value)


@dataclass
class _Passes:
    """The forward passes of one step: what each was given and gave, and how things stood at the first."""

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    random: Mapping[str, str] = field(default_factory=dict)
    entered: Mapping[str, str] = field(default_factory=dict)


class Probe:
    """Watches the registered models and optimizers, and writes a line for each step.

    Args:
        settings: what to do.
        components: the job's state.
        world: the ranks.
    """

    def __init__(self, settings: ProbeSettings, components: Sequence[Component], world: World) -> None:
        global _active
        _active = self
        self.settings = settings
        self._components = components
        self._last = settings.last
        self._total: int | None = None
        self._first: int | None = None
        self._done = 0
        path = Path(f"{settings.trace}.rank_{world.rank}")
        self._file: TextIO = path.open("w", encoding="utf-8")
        self._seeds = SeedWatch()
        self._begin()
        for component in components:
            if isinstance(component, ModelComponent):
                for stage in component.stages:
                    self._watch(stage)
            elif isinstance(component, OptimizerComponent):
                for optimizer in component.optimizers:
                    optimizer.register_step_pre_hook(self._on_optimizer)

    def started(self, step: int, total_steps: int | None) -> None:
        """After `resume()`: note all state as it was restored."""
        self._first, self._done, self._total = step + 1, step, total_steps
        self._write(Start(step, total_steps, self._state(), _random()))
        self._begin()
        self._seeds.start()

    def note(self, name: str, value: Any) -> None:
        self._notes[name] = _plain(value)

    def observe(self, step: int) -> None:
        """Write what a step did. A step that was observed is not written twice."""
        if step <= self._done:
            return
        passes = self._passes[True] if self._passes[True].inputs else self._passes[False]
        done = Step(
            step=step,
            inputs=tuple(passes.inputs),
            outputs=tuple(passes.outputs),
            random=passes.random,
            entered=passes.entered,
            rates=tuple(self._rates),
            seeded=self._seeds.places(),
            steps_in_epoch=self._steps_in_epoch(step, len(passes.inputs)),
            notes=dict(self._notes),
            state=self._state(),
            after=_random(),
        )
        self._write(done)
        self._done = step
        if self._last is None and (done.steps_in_epoch is not None or not self._may_tell_its_epoch()):
            self._last = choose_stops(done.steps_in_epoch, self._total).last
        if self._last is None and step >= LONGEST:
            self._last = step
        self._begin()

    def is_over(self, step: int) -> bool:
        """Whether the run ends here."""
        return step == self.settings.stop or (self._last is not None and step >= self._last)

    def leave(self) -> None:
        """End this process as a crash would: nothing of the job's own ending runs."""
        self._file.close()
        for child in multiprocessing.active_children():
            child.terminate()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _begin(self) -> None:
        # A look at the model in between, in eval mode, is no step's work; an inference job does nothing else.
        self._passes = {True: _Passes(), False: _Passes()}
        self._rates: list[tuple[float, ...]] = []
        self._notes: dict[str, Any] = {}

    def _watch(self, stage: nn.Module) -> None:
        if _is_compiled(stage):  # hooks would be compiled with the rest
            inner = stage.forward

            def observed(*args: Any, **kwargs: Any) -> Any:
                self._on_forward(stage, args, kwargs)
                output = inner(*args, **kwargs)
                self._on_output(stage, args, output)
                return output

            stage.forward = observed
            return
        stage.register_forward_pre_hook(self._on_forward, with_kwargs=True, prepend=True)
        stage.register_forward_hook(self._on_output)

    def _on_forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        passes = self._passes[module.training]
        if not passes.inputs:
            passes.random = _random()
            if self._first == self._done + 1:
                passes.entered = self._state()
        passes.inputs.append(_digest([args, kwargs]))

    def _on_output(self, module: nn.Module, args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            self._passes[module.training].outputs.append(_digest(output))

    def _on_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._rates.append(tuple(float(group["lr"]) for group in optimizer.param_groups))

    def _may_tell_its_epoch(self) -> bool:
        """Whether the length of an epoch will show when one is over."""
        return any(hasattr(loader, "epochs_ended") for loader in self._loaders())

    def _steps_in_epoch(self, step: int, passes: int) -> int | None:
        for loader in self._loaders():
            if hasattr(loader, "steps_in_epoch"):
                return int(loader.steps_in_epoch)
            if hasattr(loader, "epochs_ended"):
                return step if loader.epochs_ended else None
        lengths = [length for loader in self._loaders() if (length := length_of(loader)) is not None]
        batches = lengths[0] if lengths else self._seeds.epoch_batches
        return None if batches is None else -(-batches // max(1, passes))

    def _loaders(self) -> list[Any]:
        return [part.loader for part in self._components if isinstance(part, DataComponent)]

    def _state(self) -> dict[str, str]:
        return {
            key: digest_tensor(entry.value) if isinstance(entry.value, torch.Tensor) else digest_tree(entry.value)
            for key, entry in collect(self._components).items()
        }

    def _write(self, part: Start | Step) -> None:
        self._file.write(to_line(part))
        self._file.flush()


def _is_compiled(stage: nn.Module) -> bool:
    """Whether `torch.compile` has made it: its module takes a second to import, and is there where that was called."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(stage, dynamo.OptimizedModule)


def _random() -> dict[str, str]:
    states = read_states()
    digests = {kind: _digest(states[kind]) for kind in ("python", "numpy", "torch")}
    return digests | {f"cuda:{i}": _digest(state) for i, state in enumerate(states["cuda"])}


def _digest(value: Any) -> str:
    digest = xxhash.xxh3_64()
    for part in _parts(value):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any, depth: int = 0) -> Iterator[bytes]:
    """The bytes that make up a value. An object of an unknown kind counts by its attributes or its type alone.

    Objects may hold each other in a circle: deeper than `_DEEPEST` only the type counts.
    """
    if depth > _DEEPEST:
        yield type(value).__qualname__.encode()
        return
    if isinstance(value, torch.Tensor):
        yield digest_tensor(value).encode()
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield repr(key).encode()
            yield from _parts(part, depth + 1)
    elif isinstance(value, list | tuple):
        yield f"{len(value)}:".encode()
        for part in value:
            yield from _parts(part, depth + 1)
    elif isinstance(value, bool | int | float | str | bytes | None):
        yield repr(value).encode()
    elif hasattr(value, "tobytes"):
        yield value.tobytes()
    else:
        yield type(value).__qualname__.encode()
        if hasattr(value, "__dict__"):
            yield from _parts(vars(value), depth + 1)


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value

"""What a training holds for each parameter: the weight, the optimizer's moments, a copy in full precision."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from keepstep.plan.model_size import ModelSizeError, Weight, is_lump, lora, lump, parameters_of

DTYPES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
SAME = "same"
# Moments of the shape of their parameter.
_MOMENTS = {"adamw": 2, "lion": 1, "sgd-momentum": 1, "sgd": 0, "none": 0}
_FACTORED, _EIGHT_BIT = "adafactor", "adamw-8bit"
OPTIMIZERS = (*_MOMENTS, _FACTORED, _EIGHT_BIT)
# bitsandbytes, optim/optimizer.py (Optimizer2State.init_state): a scale for each block of so many numbers, two tables
# of 256 numbers, and smaller parameters in fp32.
_BLOCK, _TABLE, _SMALL = 256, 256, 4096


@dataclass(frozen=True)
class Held:
    """Tensors that a checkpoint holds, of one shape; `count` of them, with so many bytes an element."""

    part: str
    shape: tuple[int, ...]
    itemsize: int
    count: int = 1

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return math.prod(self.shape) * self.itemsize * self.count


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        dtype: of the weights.
        optimizer: one of OPTIMIZERS.
        optimizer_dtype: of its moments; "same": that of the weights, as torch's optimizers keep them.
        master_weights: a copy of the trained weights in fp32.
        rank: of LoRA adapters, which are trained in the model's place; None: there are none.
        targets: what they adapt, as of `keepstep.plan.model_size.lora`.
        adapter_dtype: of their weights.
        trainable: so many parameters are trained, the others are frozen; None: all.
        with_frozen: a checkpoint holds the frozen ones too.
    """

    dtype: str = "fp32"
    optimizer: str = "adamw"
    optimizer_dtype: str = "fp32"
    master_weights: bool = False
    rank: int | None = None
    targets: tuple[str, ...] = field(default=("all-linear",))
    adapter_dtype: str = "fp32"
    trainable: int | None = None
    with_frozen: bool = False


@dataclass(frozen=True)
class Content:
    """What a checkpoint of a training holds.

    Attributes:
        held: tensors, by part.
        parameters, trained: of the model and its adapters.
        tensors: how many parameters are trained, each with options of its own in the optimizer; 0: not known.
        digests: frozen weights of which it holds only digests.
    """

    held: tuple[Held, ...]
    parameters: int
    trained: int
    tensors: int
    digests: int = 0


def content_of(weights: Sequence[Weight], recipe: Recipe) -> Content:
    """What a checkpoint holds of a model that is trained like this.

    Raises:
        ModelSizeError: shapes are needed and not known, or the recipe contradicts itself.
    """
    trained, frozen, part, dtype = _divide(weights, recipe)
    itemsize = DTYPES[dtype]
    held = [Held(part, w.shape, itemsize, w.count) for w in trained]
    if recipe.with_frozen:
        if recipe.rank is None and recipe.trainable is None:
            raise ModelSizeError(
                "nothing is frozen that checkpoints could hold: say how many are trained, or a rank of adapters"
            )
        held += [Held("frozen weights", w.shape, DTYPES[recipe.dtype], w.count) for w in frozen]
    if recipe.master_weights:
        if itemsize >= DTYPES["fp32"]:
            raise ModelSizeError(f"the trained weights are {dtype}: they need no copy in fp32")
        held += [Held("master weights", w.shape, DTYPES["fp32"], w.count) for w in trained]
    moment = itemsize if recipe.optimizer_dtype == SAME else DTYPES[recipe.optimizer_dtype]
    held += [one for weight in trained for one in _moments(weight, recipe.optimizer, moment)]
    count = parameters_of(trained)
    tensors = 0 if is_lump(trained) else sum(weight.count for weight in trained)
    digests = 0 if recipe.with_frozen or is_lump(frozen) else sum(weight.count for weight in frozen)
    return Content(tuple(held), count + parameters_of(frozen), count, tensors, digests)


def assumptions(recipe: Recipe) -> tuple[str, ...]:
    """What an estimate by this recipe rests on, in words."""
    what = "adapters" if recipe.rank is not None else "weights"
    dtype = recipe.adapter_dtype if recipe.rank is not None else recipe.dtype
    if recipe.optimizer in (*_MOMENTS, _FACTORED) and recipe.optimizer not in ("none", "sgd"):
        moments = (
            f"{recipe.optimizer} with moments in {dtype if recipe.optimizer_dtype == SAME else recipe.optimizer_dtype}"
        )
    else:
        moments = "no optimizer" if recipe.optimizer == "none" else recipe.optimizer
    frozen = recipe.rank is not None or recipe.trainable is not None
    held = f"; frozen weights are {f'held in {recipe.dtype}' if recipe.with_frozen else 'not held'}" if frozen else ""
    return (f"{what} in {dtype}{', a copy in fp32' if recipe.master_weights else ''}, {moments}{held}",)


def _divide(weights: Sequence[Weight], recipe: Recipe) -> tuple[Sequence[Weight], Sequence[Weight], str, str]:
    """Trained and frozen parameters, and what the trained ones are called and stored as."""
    if recipe.rank is not None:
        if recipe.trainable is not None:
            raise ModelSizeError("an adapter's rank says how many parameters are trained: give one of the two")
        return lora(weights, recipe.rank, recipe.targets), weights, "adapter", recipe.adapter_dtype
    if recipe.trainable is None:
        return weights, (), "weights", recipe.dtype
    rest = parameters_of(weights) - recipe.trainable
    if rest < 0:
        raise ModelSizeError(f"{recipe.trainable:,} trained parameters of {parameters_of(weights):,}")
    return lump(recipe.trainable), lump(rest), "weights", recipe.dtype


def _moments(weight: Weight, optimizer: str, itemsize: int) -> Iterable[Held]:
    shape, count, part = weight.shape, weight.count, "optimizer"
    numbers = math.prod(shape)
    if optimizer == _FACTORED:
        # arXiv:1804.04235: of a matrix one moment for each row and one for each column.
        if is_lump([weight]):
            raise ModelSizeError("adafactor keeps rows and columns: give a config.json of the model for their lengths")
        if len(shape) < 2:
            return [Held(part, shape, itemsize, count)]
        return [Held(part, (*shape[:-1], 1), itemsize, count), Held(part, (*shape[:-2], 1, shape[-1]), itemsize, count)]
    if optimizer == _EIGHT_BIT:
        if numbers < _SMALL:
            return [Held(part, shape, 4, 2 * count)]
        scales, tables = Held(part, (-(-numbers // _BLOCK),), 4, 2 * count), Held(part, (_TABLE,), 4, 2 * count)
        return [Held(part, shape, 1, 2 * count), scales, tables]
    moments = _MOMENTS[optimizer]
    return [Held(part, shape, itemsize, moments * count)] if moments else []

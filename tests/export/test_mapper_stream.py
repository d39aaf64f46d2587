import gc
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keepstep.config.mapper import (
    Cast,
    Chunk,
    Composite,
    Concatenate,
    Drop,
    Keep,
    Leaf,
    Parallel,
    PermuteHeads,
    Rename,
    Split,
    Stack,
    Transpose,
    Unstack,
)
from keepstep.errors import ConfigError, StateMismatchError
from keepstep.export.mapper import Mapper, qwen3_moe, spec_of, stream
from keepstep.export.mapper.tensors import permute_heads
from keepstep.plan.mapping import TensorSpec

Tensors = dict[str, torch.Tensor]


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


A, B = numbered(4, 6), numbered(4, 6) + 100
ELEVEN = A[0] + torch.arange(11.0)[:, None]


@pytest.mark.parametrize(
    ("step", "tensors", "expected"),
    [
        (Rename(names={"{x}": "m.{x}"}), {"a": A}, {"m.a": A}),
        (Transpose(names=("a",)), {"a": A}, {"a": A.T}),
        (Cast(names=("a",), dtype="float64", source="float32"), {"a": A}, {"a": A.double()}),
        (Concatenate(take=("a", "b"), give="c", dim=1), {"a": A, "b": B}, {"c": torch.cat([A, B], 1)}),
        (Concatenate(take=("b", "a"), give="c", sizes=(4, 4)), {"a": A, "b": B}, {"c": torch.cat([B, A])}),
        (Split(take="a", give=("b", "c"), sizes=(1, 3)), {"a": A}, {"b": A[:1], "c": A[1:]}),
        (Chunk(take="a", give=("b", "c", "d"), dim=-1), {"a": A}, {"b": A[:, :2], "c": A[:, 2:4], "d": A[:, 4:]}),
        (Stack(take="a.{i}", give="a", dim=1), {"a.1": B, "a.0": A}, {"a": torch.stack([A, B], 1)}),
        (Stack(take="a.{i}", give="a"), {f"a.{i}": A[0] + i for i in (10, *range(10))}, {"a": ELEVEN}),
        (Unstack(take="a", give="a.{i}", dim=-2), {"a": A}, {f"a.{i}": A[i] for i in range(4)}),
    ],
)
def test_what_a_step_does_to_tensors_and_its_inverse_undoes(
    step: Leaf | Composite, tensors: Tensors, expected: Tensors
) -> None:
    made = Mapper((step,)).apply(tensors)
    assert_equal(made, expected)
    assert_equal(Mapper((step,)).invert().apply(made), tensors)


def assert_equal(made: Tensors, expected: Tensors) -> None:
    assert made.keys() == expected.keys()
    for name, tensor in made.items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name]), name


def test_heads_are_permuted_between_the_rotary_layouts() -> None:
    rows = torch.tensor([0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15])
    interleaved = [0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15]
    assert permute_heads(rows, 2, "interleaved").tolist() == interleaved
    assert permute_heads(torch.tensor(interleaved), 2, "half_split").tolist() == rows.tolist()
    columns = rows.expand(3, 12)
    assert permute_heads(columns, 2, "interleaved", -1).tolist() == [interleaved] * 3


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 1))
def test_rotating_heads_is_the_same_in_both_layouts(heads: int, half: int, dim: int) -> None:
    """(q rotated) . (k rotated) for the two ways in which pairs of rows turn together."""
    generator = torch.Generator().manual_seed(heads * 10 + half)
    q, k = (torch.randn(heads * half * 2, 3, generator=generator, dtype=torch.float64) for _ in "qk")
    angle = torch.rand(half, 1, generator=generator, dtype=torch.float64)

    def halves(x: torch.Tensor) -> torch.Tensor:
        a, b = x.view(heads, 2, half, 3).unbind(1)
        return torch.stack([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], 1).flatten(1, 2)

    def pairs(x: torch.Tensor) -> torch.Tensor:
        a, b = x.reshape(heads, half, 2, 3).unbind(2)
        return torch.stack([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], 2).flatten(1, 2)

    if dim == 0:
        p, r = (permute_heads(x, heads, "interleaved") for x in (q, k))
    else:
        p, r = (permute_heads(x.T, heads, "interleaved", 1).T for x in (q, k))
    torch.testing.assert_close((halves(q) * k.view(heads, -1, 3)).sum(1), (pairs(p) * r.reshape(heads, -1, 3)).sum(1))


def live_bytes() -> int:
    """Bytes of all tensors made since `gc.freeze()`, memory that several share counted once."""
    memory = {}
    for one in gc.get_objects():
        if type(one) is torch.Tensor:
            memory[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
    return sum(memory.values())


class Meter:
    """A reader that makes tensors of one size when they are asked for, and notes the most bytes that were alive."""

    def __init__(self, specs: dict[str, TensorSpec]) -> None:
        self._specs = specs
        self.read: list[str] = []
        self.most = 0

    def __call__(self, name: str) -> torch.Tensor:
        self.read.append(name)
        made = torch.zeros(self._specs[name].shape)
        self.look()
        return made

    def look(self) -> None:
        self.most = max(self.most, live_bytes())

    def drain(self, outputs: Iterator[tuple[str, torch.Tensor]]) -> list[str]:
        names = []
        for name, tensor in outputs:
            self.look()
            names.append(name)
            del tensor
        return names


ROWS = 1000
ONE = ROWS * 4


def metered(specs: dict[str, tuple[int, ...]], *steps: Leaf | Composite) -> tuple[Meter, list[str]]:
    given = {name: TensorSpec(shape, "float32") for name, shape in specs.items()}
    meter = Meter(given)
    gc.collect()
    gc.freeze()
    return meter, meter.drain(Mapper(steps).stream(given, meter))


def test_only_one_group_is_in_memory() -> None:
    names = {f"{i}.{part}": (ROWS,) for part in "qk" for i in range(20)}
    meter, made = metered(names, Concatenate(take=("{i}.q", "{i}.k"), give="{i}"))
    assert len(made) == 20
    assert meter.read == [f"{i}.{part}" for i in range(20) for part in "qk"]
    assert meter.most == 3 * ONE


def test_of_what_is_stacked_the_result_and_one_tensor_are_in_memory() -> None:
    meter, made = metered({f"a.{i}": (ROWS,) for i in range(20)}, Stack(take="a.{i}", give="a"))
    assert made == ["a"]
    assert meter.most == 21 * ONE


def test_of_what_is_taken_apart_the_whole_and_one_part_are_in_memory() -> None:
    split = Split(take="a.{i}", give=("b.{i}", "c.{i}"), sizes=(ROWS // 2, ROWS // 2))
    meter, made = metered({"a": (20, ROWS)}, Unstack(take="a", give="a.{i}"), split)
    assert len(made) == 40
    assert meter.most == 20 * ONE + ONE // 2


def test_of_stacked_experts_the_stack_and_one_expert_are_in_memory() -> None:
    experts, inner, hidden = 8, 30, 20
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (3, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (3, hidden),
    }
    for layer in range(3):
        own = {
            "mlp.gate.weight": (experts, hidden), "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,), "self_attn.q_norm.weight": (4,),
            "self_attn.k_norm.weight": (4,), **{f"self_attn.{one}_proj.weight": (4, hidden) for one in "qkv"},
            "self_attn.o_proj.weight": (hidden, 4),
            **{f"mlp.experts.{e}.{one}_proj.weight": (inner, hidden) for e in range(experts) for one in ("gate", "up")},
            **{f"mlp.experts.{e}.down_proj.weight": (hidden, inner) for e in range(experts)},
        }  # fmt: skip
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    mapper = qwen3_moe(layers=3, heads=1, kv_heads=1, head_dim=4, experts=experts)
    meter, made = metered(shapes, *mapper.steps)
    assert len(made) == 3 + 3 * 9
    matrix = inner * hidden * 4
    # The stack, what an expert's gate and up are joined in, and the one that was read last.
    assert meter.most == (2 * experts + 2 + 1) * matrix


def test_what_is_dropped_is_not_read() -> None:
    meter, made = metered({"a": (ROWS,), "b": (ROWS,)}, Keep(names=("b",)), Drop(names=("a",)))
    assert (made, meter.read) == (["b"], ["b"])


def test_a_tensor_that_two_outputs_come_from_is_read_once_and_not_shared() -> None:
    tensors = {"a": A.clone()}
    reads: list[str] = []

    def read(name: str) -> torch.Tensor:
        reads.append(name)
        return tensors[name]

    both = Parallel(steps=(Keep(names=("a",)), Rename(names={"a": "b"})))
    made = dict(Mapper((both,)).stream({"a": spec_of(A)}, read))
    assert reads == ["a"]
    made["a"].add_(1)
    assert torch.equal(made["b"], A)


@pytest.mark.parametrize(
    "step",
    [Transpose(names=("a",)), Split(take="a", give=("b", "c"), sizes=(1, 3)), Unstack(take="a", give="a.{i}")],
)
def test_outputs_are_contiguous_and_have_their_memory_to_themselves(step: Leaf) -> None:
    made = Mapper((step,)).apply({"a": A})
    assert all(one.is_contiguous() for one in made.values())
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in made.values())
    assert len({one.data_ptr() for one in made.values()}) == len(made)


def test_outputs_carry_no_gradient() -> None:
    made = Mapper((Rename(names={"a": "b"}),)).apply({"a": A.clone().requires_grad_()})
    assert not made["b"].requires_grad


def test_a_tensor_that_is_not_as_planned_is_refused() -> None:
    outputs = Mapper((Keep(names=("a",)),)).stream({"a": TensorSpec((4, 5), "float32")}, lambda name: A)
    with pytest.raises(StateMismatchError, match=r"a is float32\[4, 6\], planned was float32\[4, 5\]"):
        next(outputs)


def test_a_plan_that_does_not_hold_fails_before_anything_is_read() -> None:
    def never(name: str) -> torch.Tensor:
        raise AssertionError(name)

    with pytest.raises(ConfigError, match="b is missing"):
        Mapper((Keep(names=("a", "b")),)).stream({"a": spec_of(A)}, never)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_may_take_some_of_the_groups_each(world: int) -> None:
    tensors = {f"{i}.{part}": numbered(2, 2) + i for i in range(4) for part in "qk"}
    plan = Mapper((Concatenate(take=("{i}.q", "{i}.k"), give="{i}"),)).plan({n: spec_of(t) for n, t in tensors.items()})
    shares = [dict(stream(plan, tensors.__getitem__, plan.groups[rank::world])) for rank in range(world)]
    assert sum(map(len, shares)) == 4
    assert {name for share in shares for name in share} == set(plan.names)


shapes = st.tuples(st.integers(1, 3), st.sampled_from([8, 16]))


@given(shapes, st.integers(1, 3), st.permutations(["transpose", "permute", "cast", "stack", "chunk"]), st.data())
def test_a_chain_of_steps_and_its_inverse_give_the_same_bits(
    shape: tuple[int, int], count: int, order: list[str], data: st.DataObject
) -> None:
    name, last = "x.{i}", -1
    steps: list[Leaf | Composite] = []
    for kind in order[: data.draw(st.integers(1, len(order)))]:
        match kind:
            case "transpose":
                steps.append(Transpose(names=(name,), dims=(-1, -2)))
                last = -2
            case "permute":
                steps.append(PermuteHeads(names=(name,), heads=2, to="half_split", dim=last))
            case "cast":
                steps.append(Cast(names=(name,), dtype="float64", source="float32"))
            case "stack":
                steps.append(Stack(take=name, give=name.replace("x.{i}", "s")))
                name = name.replace("x.{i}", "s")
            case "chunk":
                steps.append(Chunk(take=name, give=(f"{name}.l", f"{name}.r"), dim=last))
                name = f"{name}.l"
    mapper = Mapper(tuple(steps))
    tensors = {f"x.{i}": torch.randn(shape) for i in range(count)}
    back = mapper.invert().apply(mapper.apply(tensors))
    assert_equal(back, tensors)

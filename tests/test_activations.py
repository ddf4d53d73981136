"""Activation levels: bit-equal gradients, nothing dead computed again, nothing that others can disturb."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from plafond.activations.blocks import PlannedBlock
from plafond.activations.levels import KEEP, RECOMPUTE, Level
from plafond.memory.kernels import Target
from plafond.memory.profiled import measure
from planned import (
    LEVELS,
    Operations,
    flux,
    inputs,
    learning,
    loss_of,
    pass_through,
    planned,
    same,
)

SETTINGS: dict[str, dict[str, Any]] = {
    "lora": {},
    "lora on every linear layer": {"ignore": ()},
    "dropout": {"dropout": 0.4},
    "full fine-tune": {"lora": False},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_every_level_gives_the_same_losses_and_gradients(
    settings: dict[str, Any], dtype: torch.dtype
) -> None:
    model = flux(dtype, **settings)
    plain = pass_through(model, dtype, micros=3)
    assert any(gradient.abs().max() > 0 for gradient in plain[1])
    blocks = planned(model)
    for level in LEVELS:
        for block in blocks:
            block.level = level
        assert same(pass_through(model, dtype, micros=3), plain), str(level)
    assert all(block.learnt is not None for block in blocks)
    for place, block in enumerate(blocks):
        block.level = LEVELS[-1 - place % len(LEVELS)]
    assert same(pass_through(model, dtype), pass_through(flux(dtype, **settings), dtype)), "mixed"


def test_levels_differ() -> None:
    """Otherwise the test above would compare one plan with itself."""
    model = flux()
    blocks = planned(model)
    pass_through(model, torch.float32)
    for block in (blocks[0], blocks[-1]):
        assert block.learnt is not None
        chosen = [block.learnt.choice(level) for level in LEVELS]
        sizes = [choice.size for choice in chosen[:5]]
        assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) >= 4
        assert len({choice.kept for choice in chosen}) >= 5
        assert chosen[0].cost == 0 < chosen[5].cost < chosen[6].cost


def runs_of(model: nn.Module, *, level: Level) -> dict[str, int]:
    """How often each block's linear layers are computed in one step, by the layer's name."""
    for block in planned(model):
        block.level = level
    names = {
        parameter.untyped_storage().data_ptr(): name
        for name, parameter in model.named_parameters()
        if name.endswith("base.weight")
    }
    with Operations() as operations:
        loss_of(model, inputs(torch.float32)).backward()
    counts: dict[str, int] = dict.fromkeys(names.values(), 0)
    for func, args, _ in operations.seen:
        if func is torch.ops.plafond.linear.default:
            name = names.get(args[1][0].untyped_storage().data_ptr())
            if name is not None:
                counts[name] += 1
    return counts


LAST = ("proj_out", "ff.net.2", "ff_context.net.2")


@pytest.mark.parametrize("level", [RECOMPUTE, Level(kind="attention"), Level(kind="offload")], ids=str)
def test_the_last_projections_run_once(level: Level) -> None:
    counts = runs_of(flux(), level=level)
    blocks = {name: count for name, count in counts.items() if "transformer_blocks" in name}
    dead = {name: count for name, count in blocks.items() if any(f".{part}." in name for part in LAST)}
    assert len(dead) == 2 + 2 and set(dead.values()) == {1}
    assert {count for name, count in blocks.items() if "to_q" in name} == {2}


def test_what_a_learning_gate_reads_runs_twice() -> None:
    """With a LoRA on the modulation the gates' gradients need what the gates multiply."""
    counts = runs_of(flux(ignore=()), level=RECOMPUTE)
    assert {count for name, count in counts.items() if any(f".{part}." in name for part in LAST)} == {2}


def first_calls(model: nn.Module, blocks: list[PlannedBlock]) -> dict[int, tuple[Any, dict[str, Any]]]:
    """What each block is called with."""
    calls: dict[int, tuple[Any, dict[str, Any]]] = {}
    for place, block in enumerate(blocks):

        def noting(*args: Any, place: int = place, block: PlannedBlock = block, **kwargs: Any) -> Any:
            calls[place] = args, kwargs
            return block.original(*args, **kwargs)

        block.block.forward = noting
    loss_of(model, inputs(torch.float32))
    for block in blocks:
        block.block.forward = block
    return calls


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_what_is_not_kept_is_not_read(level: Level) -> None:
    """NaN in every result of the forward pass that a block does not keep: gradients stay bit-equal."""
    model = flux()
    blocks = planned(model)
    for place, (args, kwargs) in first_calls(model, blocks).items():
        block = blocks[place]
        block.level = level
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        wanted = [*learning(block.block), *(tensor for tensor in given if tensor.requires_grad)]

        def gradients(poison: bool, block: Any = block, args: Any = args, kwargs: Any = kwargs) -> list[Any]:
            with Operations() as operations:
                out = block(*args, **kwargs)
            outs = out if isinstance(out, tuple) else (out,)
            tangents = [torch.full_like(result, 0.5) for result in outs]
            if poison:
                node = outs[0].grad_fn
                alive = [tensor for tensor, _ in (*node.kept.values(), *node.inputs.values())]
                alive += [*args, *kwargs.values(), *block.block.parameters()]
                spared = {value.untyped_storage().data_ptr() for value in alive if isinstance(value, Tensor)}
                poisoned = 0
                for result in operations.results():
                    if result.untyped_storage().data_ptr() not in spared and result.is_floating_point():
                        # not through the tensor itself: its version is nobody's business here
                        result.detach().numpy().fill(float("nan"))
                        poisoned += 1
                assert poisoned > 10
            return list(torch.autograd.grad(outs, wanted, tangents))  # noqa: B023

        for one, two in zip(gradients(False), gradients(True), strict=True):
            assert torch.equal(one, two)


def stepped(model: nn.Module, given: dict[str, Any]) -> Callable[[], None]:
    def step() -> None:
        loss_of(model, given).backward()
        model.zero_grad(set_to_none=True)

    return step


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_recomputing_takes_no_more_memory_than_checkpointing(dtype: torch.dtype) -> None:
    given = inputs(dtype, side=12)
    model = flux(dtype, num_single_layers=4)
    for block in [*model.transformer_blocks, *model.single_transformer_blocks]:
        forward = block.forward

        def again(*args: Any, forward: Any = forward, **kwargs: Any) -> Any:
            return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

        block.forward = again
    theirs = stepped(model, given)
    theirs()
    other = flux(dtype, num_single_layers=4)
    for planned_block in planned(other):
        planned_block.level = RECOMPUTE
    ours = stepped(other, given)
    ours()
    assert measure(ours).tensors <= measure(theirs).tensors


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_previews_and_threads_do_not_disturb(level: Level) -> None:
    model = flux()
    plain = pass_through(model, torch.float32)
    blocks = planned(model)
    for block in blocks:
        block.level = level
    torch.manual_seed(7)
    loss = loss_of(model, inputs(torch.float32, batch=1))
    with torch.no_grad():
        loss_of(model, inputs(torch.float32, side=6))
    found: list[tuple[Tensor, ...]] = []

    def other() -> None:
        for block in blocks:
            block.level = KEEP
        found.append(
            torch.autograd.grad(loss_of(model, inputs(torch.float32, side=6, batch=1)), learning(model))
        )

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    loss.backward()
    gradients = [parameter.grad for parameter in learning(model) if parameter.grad is not None]
    assert same(([loss.item()], gradients), plain)
    assert len(found) == 1


class Peculiar(nn.Module):
    """Does what depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).sin() * (2.0 if x.sum().item() > 0 else 3.0)


class Stack(nn.Module):
    """Blocks in a row."""

    def __init__(self, kind: type[nn.Module], count: int = 3):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(kind() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_a_block_that_cannot_be_captured_trains_all_the_same(level: Level) -> None:
    model = Stack(Peculiar)
    x = torch.randn(4, 8)
    plain = torch.autograd.grad(model(x).square().sum(), learning(model))
    for block in planned(model):
        block.level = level
    again = torch.autograd.grad(model(x).square().sum(), learning(model))
    assert all(torch.equal(one, two) for one, two in zip(plain, again, strict=True))


class Plain(nn.Module):
    """What any block is, more or less."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.two(self.one(x).tanh())).tanh()


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_backward_twice_is_refused(level: Level) -> None:
    model = Stack(Plain)
    for block in planned(model):
        block.level = level
    loss = model(torch.randn(4, 8)).square().sum()
    loss.backward(retain_graph=True)
    with pytest.raises(
        RuntimeError, match="what this block kept has been used: it can go backward once only"
    ):
        loss.backward()


@pytest.mark.parametrize("level", LEVELS[:-1], ids=str)
def test_an_input_changed_in_place_is_noticed(level: Level) -> None:
    model = Stack(Plain, 1)
    (block,) = planned(model)
    block.level = level
    x = torch.randn(4, 8)
    loss = model(x).square().sum()
    x.add_(1)
    with pytest.raises(RuntimeError, match="changed in place before its backward pass"):
        loss.backward()


def test_a_kept_result_changed_in_place_is_noticed() -> None:
    model = Stack(Plain, 1)
    planned(model)
    result = model(torch.randn(4, 8))
    loss = (result * 2).sum()
    with torch.no_grad():
        result.add_(1)  # tanh's backward pass reads its own result
    with pytest.raises(RuntimeError, match="changed in place before its backward pass"):
        loss.backward()


def test_a_level_is_read_when_a_pass_begins() -> None:
    """Buckets may have plans of their own, in turn."""
    model = flux()
    blocks = planned(model)
    plain = pass_through(model, torch.float32)
    torch.manual_seed(7)
    for block in blocks:
        block.level = RECOMPUTE
    loss = loss_of(model, inputs(torch.float32, batch=1))
    for block in blocks:
        block.level = KEEP
    loss.backward()
    gradients = [parameter.grad for parameter in learning(model) if parameter.grad is not None]
    assert same(([loss.item()], gradients), plain)


def test_what_was_learnt_ends_with_its_model_or_is_among_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    look = PlannedBlock._look

    def counted(self: PlannedBlock, leaves: Any, *rest: Any) -> Any:
        looked.append(leaves[0].shape[0])
        return look(self, leaves, *rest)

    def model() -> PlannedBlock:
        return PlannedBlock(nn.Sequential(nn.Linear(8, 8), nn.GELU()), Target("cpu"))

    monkeypatch.setattr(PlannedBlock, "_look", counted)
    shared: OrderedDict[Any, Any] = OrderedDict()
    monkeypatch.setattr("plafond.activations.blocks._learnt", shared)
    monkeypatch.setattr("plafond.activations.blocks.REMEMBERED", 3)
    first, sizes = model(), [1, 2, 3, 4, 5]
    for size in sizes * 2:
        first(torch.ones(size, 8)).sum().backward()
    assert looked == sizes, "a model knows all that it has met"
    assert len(shared) == 3
    second = model()
    for size in (3, 4, 5, 1):
        second(torch.ones(size, 8)).sum().backward()
    assert looked == [*sizes, 1], "the last three are shared with the next model"
    alive = weakref.ref(next(iter(first._met.values())))
    del first
    gc.collect()
    assert alive() is None

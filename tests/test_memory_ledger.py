"""The ledger counts what is alive, and a shallow trace says what a deep model would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import return_and_correct_aliasing

from micro_flux import make_transformer
from plafond.memory.depth import NotUniform, deepen
from plafond.memory.kernels import Target, chosen_kernels
from plafond.memory.ledger import Ledger
from plafond.memory.meta import MetaLedger
from plafond.memory.residence import counting, host_memory
from plafond.memory.trace import Block, Event, Trace
from plafond.model.lora import Targets, inject

CUDA, CPU = Target("cuda"), Target("cpu")


def test_views_are_free_and_frees_are_seen_at_once() -> None:
    with counting(Ledger("cpu")) as ledger:
        tensor = torch.empty(1000)
        assert ledger.live == 4096
        views = [tensor.view(10, 100), tensor[3:], tensor.t(), tensor.detach()]
        assert ledger.live == 4096
        del tensor
        assert ledger.live == 4096, "views keep the storage"
        views.clear()
        assert ledger.live == 0


def test_what_only_the_autograd_graph_holds_is_alive() -> None:
    with counting(Ledger("cpu")) as ledger:
        x = torch.ones(128, requires_grad=True)
        middle = x * 2
        result = (middle * middle).sum()
        alive = ledger.live
        del middle
        assert ledger.live == alive, "the product keeps its factor"
        result.backward()
        assert x.grad is not None
        del result
        assert ledger.live == 512 * 2, "x and its gradient"


def test_sizes_are_rounded_up_to_512_and_nothing_is_counted_for_nothing() -> None:
    with counting(Ledger("cpu")) as ledger:
        kept = [torch.empty(0), torch.empty(1), torch.empty(128), torch.empty(129)]
        assert ledger.live == 0 + 512 + 512 + 1024
        assert len(kept) == 4


def test_in_place_operations_and_outputs_that_are_inputs_allocate_nothing() -> None:
    outside = torch.ones(4096)
    with counting(Ledger("cpu")) as ledger:
        outside.add_(1)
        kept = outside.view(64, 64)
        assert ledger.live == 0
        del kept


def test_main_memory_is_not_counted() -> None:
    with counting(Ledger("cpu")) as ledger:
        with host_memory():
            host = torch.empty(4096)
        kept = host[:100].view(10, 10)
        assert ledger.live == 0
        assert (host + 1).numel() == 4096
        assert ledger.trace.peak().bytes == 4096 * 4
        del kept


class Pair(torch.Tensor):
    """A tensor subclass that holds two."""

    @staticmethod
    def __new__(cls, one: torch.Tensor, two: torch.Tensor) -> Pair:
        return torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype, device=one.device)  # type: ignore[attr-defined,no-any-return]

    def __init__(self, one: torch.Tensor, two: torch.Tensor):
        self.one, self.two = one, two

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["one", "two"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):  # type: ignore[no-untyped-def]
        return Pair(inner["one"], inner["two"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = cls(*(func(getattr(args[0], part), *args[1:], **(kwargs or {})) for part in ("one", "two")))
        return return_and_correct_aliasing(func, args, kwargs or {}, out)


def test_tensor_subclasses_are_what_is_inside_them() -> None:
    pair = Pair(torch.ones(1000), torch.zeros(1000))
    with counting(Ledger("cpu")) as ledger:
        ledger.adopt([pair], "weights")
        assert ledger.live == 2 * 4096
        doubled = torch.clone(pair)
        assert ledger.live == 4 * 4096
        del doubled
        assert ledger.live == 2 * 4096


def test_a_module_is_counted_once_however_often_it_comes() -> None:
    layer = nn.Linear(64, 64)
    with counting(Ledger("cpu")) as ledger:
        ledger.adopt_module(layer)
        ledger.adopt_module(layer)
        assert ledger.live == 64 * 64 * 4 + 512
        ledger.release_module(layer)
        assert ledger.live == 0
        layer.weight.data = torch.ones(64, 64)
        assert ledger.live == 64 * 64 * 4


# ---------------------------------------------------------------------------------------------------- meta


def test_the_dry_run_answers_what_code_asks_of_its_tensors() -> None:
    with counting(MetaLedger(CUDA)) as ledger:
        x = torch.randn(7, 3, device="meta")
        assert float(x.sum()) == 1.0
        assert (x > 0).any()
        assert len((x == 0).nonzero()) == 1
        copy = x.to("cpu", torch.float16)
        assert copy.shape == (7, 3) and not copy.any()
        assert ledger.live == 512


@pytest.mark.parametrize("target", [CUDA, CPU], ids=["cuda", "cpu"])
def test_attention_is_one_kernel_and_never_the_matrix_of_scores(target: Target) -> None:
    tokens = 4096
    query = torch.empty(1, 2, tokens, 64, device="meta", dtype=torch.bfloat16, requires_grad=True)
    with chosen_kernels(target), counting(MetaLedger(target)) as ledger:
        torch.nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
        assert ledger.trace.peak().bytes < tokens * tokens


# ---------------------------------------------------------------------------------------------------- depth


def trace(doubles: int, singles: int, target: Target, *, checkpointing: bool, steps: int = 2) -> Trace:
    with torch.device("meta"):
        model = make_transformer(num_layers=doubles, num_single_layers=singles)
    if checkpointing:
        model.enable_gradient_checkpointing()
    network = inject(model, Targets(blocks=("transformer_blocks",)), rank=4, alpha=4)
    model.train()
    parameters = list(network.parameters())
    optimizer = torch.optim.AdamW(parameters, foreach=target.is_cuda)
    with chosen_kernels(target), counting(MetaLedger(target)) as ledger:
        ledger.adopt_module(model)
        ledger.label(parameters, "lora")
        ledger.watch(model)
        ledger.watch_gradients(parameters)
        ledger.mark()
        for _ in range(steps):
            loss(model, tokens=16, text=8).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return ledger.trace


def loss(model: nn.Module, *, tokens: int, text: int) -> torch.Tensor:
    out = model(
        hidden_states=torch.randn(2, tokens, 64, device="meta"),
        timestep=torch.rand(2, device="meta"),
        guidance=torch.rand(2, device="meta"),
        pooled_projections=torch.randn(2, 32, device="meta"),
        encoder_hidden_states=torch.randn(2, text, 32, device="meta"),
        txt_ids=torch.zeros(text, 3, device="meta"),
        img_ids=torch.zeros(tokens, 3, device="meta"),
        return_dict=False,
    )[0]
    return out.square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize("target", [CUDA, CPU], ids=["cuda", "cpu"])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_a_deepened_trace_is_the_trace_of_the_deep_model(target: Target, checkpointing: bool) -> None:
    shallow = trace(4, 4, target, checkpointing=checkpointing)
    full = trace(6, 9, target, checkpointing=checkpointing)
    deep = deepen(shallow, {"transformer_blocks": 6, "single_transformer_blocks": 9})
    assert replace(deep.peak(), at=0) == replace(full.peak(), at=0)
    assert deep.total_flops == full.total_flops
    assert len(deep.events) == len(full.events)
    # one tensor holds the norms of all gradients: the only size that grows with the model, by one granule here
    assert max(abs(a - b) for a, b in zip(deep.live(), full.live(), strict=True)) <= 1024
    assert [event.moment for event in deep.events] == [event.moment for event in full.events]


def test_the_second_step_peaks_with_the_optimizers_state() -> None:
    one = trace(4, 4, CUDA, checkpointing=True, steps=1).peak()
    two = trace(4, 4, CUDA, checkpointing=True, steps=2).peak()
    assert two.bytes >= one.bytes


def test_kinds_and_moment_of_the_peak() -> None:
    peak = trace(4, 4, CPU, checkpointing=False).peak()
    assert sum(peak.kinds.values()) == peak.bytes
    assert peak.kinds["weights"] > 0 and peak.kinds["lora"] > 0 and peak.kinds["activations"] > 0
    assert peak.moment.split(" of ")[0] in ("forward", "backward", "update")


def test_blocks_that_differ_are_not_extended() -> None:
    def events() -> Iterator[Event]:
        for index in range(4):
            yield Event(index, True, "forward", Block("blocks", index))

    uneven = Trace(sizes=[1, 2, 3, 4], kinds=["activations"] * 4, owners=[None] * 4, events=list(events()))
    with pytest.raises(NotUniform):
        deepen(uneven, {"blocks": 9})
    even = Trace(sizes=[1, 2, 2, 4], kinds=["activations"] * 4, owners=[None] * 4, events=list(events()))
    assert deepen(even, {"blocks": 9}).peak().bytes == 1 + 7 * 2 + 4

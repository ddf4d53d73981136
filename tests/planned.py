"""A micro FLUX whose blocks follow an activation level, and the gradients that it gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from micro_flux import TEXT_WIDTH, make_transformer
from plafond.activations.blocks import PlannedBlock, plan_blocks
from plafond.activations.levels import KEEP, RECOMPUTE, Level
from plafond.memory.kernels import Target
from plafond.model.lora import Targets, inject

LEVELS = [
    KEEP,
    *(Level(kind="selective", price=price, balance=5.0) for price in (10.0, 60.0, 300.0, 3000.0)),
    Level(kind="attention"),
    RECOMPUTE,
    Level(kind="offload"),
]

MODULATION = ("norm",)


def flux(
    dtype: torch.dtype = torch.float32,
    *,
    lora: bool = True,
    ignore: tuple[str, ...] = MODULATION,
    dropout: float = 0.0,
    **changes: object,
) -> nn.Module:
    """A transformer to be trained; its LoRA, if it has one, is not at zero."""
    torch.manual_seed(0)
    model = make_transformer(**changes).to(dtype).train()
    if lora:
        targets = Targets(blocks=("transformer_blocks",), ignore=ignore)
        network = inject(model, targets, rank=4, alpha=4.0, dropout=dropout)
        for layer in network.layers.values():
            nn.init.normal_(layer.lora_B, std=0.1)
    return model


def planned(model: nn.Module) -> list[PlannedBlock]:
    """Plan the blocks of a model."""
    return [block for group in plan_blocks(model, Target("cpu")).values() for block in group]


def inputs(dtype: torch.dtype, side: int = 4, batch: int = 2, text: int = 5) -> dict[str, Any]:
    """What the transformer is called with: side × side image tokens."""
    draw = torch.Generator().manual_seed(1)
    count = side * side
    places = torch.zeros(count, 3)
    places[:, 1], places[:, 2] = torch.arange(count) // side, torch.arange(count) % side

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(dtype)

    return {
        "hidden_states": normal(batch, count, 64),
        "encoder_hidden_states": normal(batch, text, TEXT_WIDTH),
        "pooled_projections": normal(batch, TEXT_WIDTH),
        "timestep": torch.rand(batch, generator=draw),
        "guidance": torch.ones(batch),
        "txt_ids": torch.zeros(text, 3),
        "img_ids": places,
        "return_dict": False,
    }


def loss_of(model: nn.Module, given: dict[str, Any]) -> Tensor:
    return model(**given)[0].float().square().mean()


def learning(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def pass_through(model: nn.Module, dtype: torch.dtype, micros: int = 1) -> tuple[list[float], list[Tensor]]:
    """Losses and gradients of a step of some micro-batches, from one seed."""
    torch.manual_seed(7)
    losses = []
    for micro in range(micros):
        loss = loss_of(model, inputs(dtype, batch=1 + micro % 2))
        loss.backward()
        losses.append(loss.item())
    gradients = [parameter.grad for parameter in learning(model) if parameter.grad is not None]
    model.zero_grad(set_to_none=True)
    return losses, gradients


def same(one: tuple[list[float], list[Tensor]], two: tuple[list[float], list[Tensor]]) -> bool:
    """Bit-equal."""
    return one[0] == two[0] and all(torch.equal(a, b) for a, b in zip(one[1], two[1], strict=True))


class Operations(TorchDispatchMode):
    """Sees every operation of this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, tuple[Any, ...], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen.append((func, args, out))
        return out

    def results(self) -> Iterator[Tensor]:
        for _, _, out in self.seen:
            for value in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(value, Tensor):
                    yield value

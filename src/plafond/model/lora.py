"""LoRA on frozen linear layers, written so that every saved byte is known.

A LoRA adds a low-rank product to a frozen layer: ``y = W x + b + (alpha / rank) * B A x``. Only ``A`` (rank × in)
and ``B`` (out × rank) are trained. Two things make the usual implementation expensive, and both are avoided here:

* adapters kept in float32 on a bfloat16 base make every adapted layer save a float32 copy of its input. Here the
  small matrices are cast to the compute dtype instead, so the input is saved once, as it is, and the query, key and
  value projections share that one tensor;
* the two branches are computed apart and then added, which costs a full-size temporary and an extra pass over it.
  Here the low-rank product is accumulated into the base layer's output (and into its input gradient) in place.

Shapes: ``N`` tokens (all leading dimensions flattened), ``in``/``out`` features, ``r`` rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from plafond.errors import JobError
from plafond.model import linear as _operations  # noqa: F401 - defines torch.ops.plafond
from plafond.model.adapter import Adapter, LowRank, kaiming
from plafond.model.conv import LoraConv
from plafond.model.quantized import QuantizedLinear, weight_of

_BASES = (nn.Linear, QuantizedLinear)


class _LoraLinearFunction(torch.autograd.Function):
    """``F.linear`` plus the low-rank product; saves the input once and the two small matrices."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: list[Tensor],
        layout: str,
        bias: Tensor | None,
        lora_a: Tensor,
        lora_b: Tensor,
        scale: float,
        keep: Tensor | None,
    ) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        down = flat @ lora_a.to(x.dtype).t()
        if keep is not None:
            down = down * keep
        out: Tensor = torch.ops.plafond.linear(flat, weight, layout, bias, down, lora_b, scale)
        ctx.save_for_backward(x, lora_a, lora_b, down, keep, *weight)
        ctx.layout, ctx.scale = layout, scale
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, lora_a, lora_b, down, keep, *weight = ctx.saved_tensors
        flat = x.reshape(-1, x.shape[-1])
        grad_out = grad.reshape(-1, grad.shape[-1])
        grad_down, grad_a, grad_b = torch.ops.plafond.lora_gradients(
            grad_out, flat, down, lora_a, lora_b, keep, ctx.scale
        )
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.ops.plafond.linear_input_gradient(grad_out, weight, ctx.layout, grad_down, lora_a)
            grad_x = grad_x.view(x.shape)
        return grad_x, None, None, None, grad_a, grad_b, None, None


class LoraLinear(LowRank):
    """A frozen linear layer with a trainable low-rank addition.

    Args:
        base: the frozen layer; its weight and bias no longer require gradients.
        rank: rank of the addition.
        alpha: numerator of the scale; the addition is multiplied by ``alpha / rank``.
        dropout: probability of dropping an entry of ``A x`` while training (AI Toolkit's "neuron dropout").
        dtype: dtype of the trainable matrices; products are computed in the dtype of the input.
    """

    def __init__(
        self,
        base: nn.Linear | QuantizedLinear,
        rank: int,
        alpha: float,
        *,
        dropout: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(base)
        self.rank, self.alpha, self.dropout = rank, alpha, dropout
        device = base.weight.device
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features, device=device, dtype=dtype))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, device=device, dtype=dtype))

    def reset(self, generator: torch.Generator) -> None:
        """Draw ``A`` as Kaiming-uniform with a = √5 (bound 1/√in) and set ``B`` to zero: the addition starts at 0."""
        with torch.no_grad():
            self.lora_A.copy_(kaiming(self.lora_A.shape, generator))
            self.lora_B.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        if self.multiplier == 0.0:
            return self.base(x)  # type: ignore[no-any-return]
        return self.added(x)

    def added(self, x: Tensor, *, bias: bool = True) -> Tensor:
        """The base layer, with or without its bias, and the addition."""
        scale = self.multiplier * self.alpha / self.rank
        keep = None
        if self.training and self.dropout > 0.0:
            rows = x.numel() // x.shape[-1]
            chance = torch.full((rows, self.rank), 1 - self.dropout, device=x.device, dtype=x.dtype)
            keep = torch.bernoulli(chance) / (1 - self.dropout)
        return _LoraLinearFunction.apply(  # type: ignore[no-any-return,no-untyped-call]
            x,
            *weight_of(self.base),
            self.base.bias if bias else None,
            self.lora_A,
            self.lora_B,
            scale,
            keep,
        )


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Which layers of a model get a LoRA.

    A linear layer is taken when its dotted name contains one of `blocks`, contains one of `only` (if any are given)
    and contains none of `ignore`: AI Toolkit's substring rule.
    """

    blocks: tuple[str, ...]
    only: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def match(self, name: str) -> bool:
        """Whether the layer with this dotted name is taken."""
        if not any(block in name for block in self.blocks):
            return False
        if self.only and not any(part in name for part in self.only):
            return False
        return not any(part in name for part in self.ignore)


@dataclass(frozen=True, kw_only=True)
class Convolutions:
    """What convolutions get: those of single pixels as linear layers do, wider ones `rank`, or nothing without one."""

    rank: int | None
    alpha: float


class LoraNetwork:
    """The adapters of one model, in the model's own order.

    They live inside the model (each replaces the linear layer it wraps); this object only names them.
    """

    def __init__(self, layers: dict[str, Adapter]):
        self.layers = layers

    def tensors(self) -> dict[str, nn.Parameter]:
        """The trained tensors: the dotted name of the layer, then that of the tensor in files (of a LoRA PEFT's:
        ``<path>.lora_A.weight`` (r, in) and ``<path>.lora_B.weight`` (out, r))."""
        return {
            f"{path}.{name}": tensor
            for path, layer in self.layers.items()
            for name, tensor in layer.tensors().items()
        }

    def blank(self) -> list[nn.Parameter]:
        """Those that are zero at the start."""
        return [layer.tensors()[layer.blank()] for layer in self.layers.values()]

    def parameters(self) -> Iterator[nn.Parameter]:
        """The trained tensors, layer by layer."""
        yield from self.tensors().values()

    def state_dict(self) -> dict[str, Tensor]:
        """What the trained tensors hold, by name."""
        return {name: tensor.detach() for name, tensor in self.tensors().items()}

    def file_tensors(self) -> dict[str, Tensor]:
        """What a file holds: `state_dict`, and what some programs want in another form."""
        more = {
            f"{path}.{name}": tensor
            for path, layer in self.layers.items()
            for name, tensor in layer.derived().items()
        }
        return {**self.state_dict(), **more}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy weights named as in `state_dict`; every layer must be there, with the same shapes."""
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(state[name])

    @contextmanager
    def strength(self, multiplier: float) -> Iterator[None]:
        """Multiply every addition by `multiplier` inside the ``with`` block; 0 gives the base model."""
        before = [layer.multiplier for layer in self.layers.values()]
        for layer in self.layers.values():
            layer.multiplier = multiplier
        try:
            yield
        finally:
            for layer, value in zip(self.layers.values(), before, strict=True):
                layer.multiplier = value


def inject(
    model: nn.Module,
    targets: Targets,
    *,
    rank: int,
    alpha: float,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    kind: Callable[..., Adapter] = LoraLinear,
    convolutions: Convolutions | None = None,
) -> LoraNetwork:
    """Freeze `model` and put an adapter on each of its linear layers that `targets` takes.

    The starting values are a function of `seed` alone, whatever the device. `kind` makes an adapter of the layer, the
    rank and the alpha; `convolutions` says what convolutions get, if they get any.

    Raises:
        JobError: nothing in the model matches.
    """
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    layers: dict[str, Adapter] = {}
    bases = _BASES if convolutions is None else (*_BASES, nn.Conv2d)
    found = [name for name, module in model.named_modules() if isinstance(module, bases)]
    for name in found:
        if not targets.match(name):
            continue
        base: Any = model.get_submodule(name)
        made, own = kind, (rank, alpha)
        if isinstance(base, nn.Conv2d) and convolutions is not None:
            made = LoraConv
            if set(base.kernel_size) != {1}:
                if convolutions.rank is None:
                    continue
                own = convolutions.rank, convolutions.alpha
        layer = made(base, *own, dropout=dropout, dtype=dtype)
        if not any(tensor.is_meta for tensor in layer.tensors().values()):
            layer.reset(generator)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer)
        layers[name] = layer
    if not layers:
        raise JobError(_nothing_matches(targets, found), key="network.network_kwargs")
    return LoraNetwork(layers)


def _nothing_matches(targets: Targets, found: Sequence[str]) -> str:
    inside: Iterable[str] = (name for name in found if any(block in name for block in targets.blocks))
    example = next(iter(inside), found[0] if found else "none")
    return (
        f"no layer matches only_if_contains {list(targets.only)} and ignore_if_contains {list(targets.ignore)};"
        f" layer names look like {example}"
    )

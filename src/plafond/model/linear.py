"""A frozen linear layer with an optional low-rank addition, as one operation forward and one backward.

``y = W x + b + scale * B down`` with ``down = A x``. Being one operation each way, a product is kept or computed again
as a whole, its parts are accumulated in place, and a packed weight is unpacked inside it and nowhere else: nothing
that lives on refers to the unpacked copy. The parts are spelt as what a ledger counts: ``mm``, not ``@``.

Shapes: ``N`` tokens, ``in``/``out`` features, ``r`` rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from plafond.model.packing import dense

_library: Any = torch.library.Library("plafond", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "linear(Tensor x, Tensor[] weight, str layout, Tensor? bias, Tensor? down, Tensor? lora_b, float scale) -> Tensor"
)
_library.define(
    "linear_input_gradient(Tensor grad, Tensor[] weight, str layout, Tensor? grad_down, Tensor? lora_a) -> Tensor"
)
_library.define(
    "lora_gradients(Tensor grad, Tensor x, Tensor down, Tensor lora_a, Tensor lora_b, Tensor? keep, float scale)"
    " -> (Tensor, Tensor, Tensor)"
)


def linear(
    x: Tensor,
    weight: list[Tensor],
    layout: str,
    bias: Tensor | None,
    down: Tensor | None,
    lora_b: Tensor | None,
    scale: float,
) -> Tensor:
    """(N, in) to (N, out); `down` (N, r) and `lora_b` (out, r) are the low-rank addition."""
    transposed = dense(weight, layout, x.dtype).t()
    out = torch.mm(x, transposed) if bias is None else torch.addmm(bias, x, transposed)
    if down is not None and lora_b is not None:
        out.addmm_(down, lora_b.to(x.dtype).t(), alpha=scale)
    return out


def linear_input_gradient(
    grad: Tensor, weight: list[Tensor], layout: str, grad_down: Tensor | None, lora_a: Tensor | None
) -> Tensor:
    """Gradient (N, in) of the input; `grad_down` (N, r) is that of ``A x``."""
    out = torch.mm(grad, dense(weight, layout, grad.dtype))
    if grad_down is not None and lora_a is not None:
        out.addmm_(grad_down, lora_a.to(grad.dtype))
    return out


def lora_gradients(
    grad: Tensor, x: Tensor, down: Tensor, lora_a: Tensor, lora_b: Tensor, keep: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``A x`` (N, r), of ``A`` (r, in) and of ``B`` (out, r)."""
    grad_down = torch.mm(grad, lora_b.to(grad.dtype)).mul_(scale)
    grad_b = torch.mm(grad.t(), down).to(lora_b.dtype).mul_(scale)
    if keep is not None:
        grad_down.mul_(keep)
    grad_a = torch.mm(grad_down.t(), x).to(lora_a.dtype)
    return grad_down, grad_a, grad_b


OPERATIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.plafond.linear.default: linear,
    torch.ops.plafond.linear_input_gradient.default: linear_input_gradient,
    torch.ops.plafond.lora_gradients.default: lora_gradients,
}
"""What each operation is made of: a ledger looks inside."""

for _operation, _function in OPERATIONS.items():
    _name = _operation._schema.name
    _library.impl(_name.partition("::")[2], _function, "CompositeExplicitAutograd")
    torch.library.register_fake(_name, _function, lib=_library)


@register_flop_formula(torch.ops.plafond.linear, get_raw=True)
def _linear_flops(
    x: Tensor, weight: Any, layout: str, bias: Any, down: Any, *_: Any, out_val: Tensor, **__: Any
) -> int:
    rank = 0 if down is None else int(down.shape[-1])
    return 2 * out_val.numel() * (int(x.shape[-1]) + rank)


@register_flop_formula(torch.ops.plafond.linear_input_gradient, get_raw=True)
def _input_gradient_flops(
    grad: Tensor, weight: Any, layout: str, grad_down: Any, *_: Any, out_val: Tensor, **__: Any
) -> int:
    rank = 0 if grad_down is None else int(grad_down.shape[-1])
    return 2 * out_val.numel() * (int(grad.shape[-1]) + rank)


@register_flop_formula(torch.ops.plafond.lora_gradients, get_raw=True)
def _lora_flops(grad: Tensor, x: Tensor, down: Tensor, *_: Any, **__: Any) -> int:
    return int(2 * down.numel() * (2 * grad.shape[-1] + x.shape[-1]))

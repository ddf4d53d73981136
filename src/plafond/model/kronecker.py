"""A frozen linear layer with a Kronecker product added, as one operation forward and two backward.

``y = W x + b + scale * (w1 ⊗ w2) x``. The product is never written out: of an input's ``b d`` features, seen as ``b``
rows of ``d``, each row goes through ``w2`` and the rows are then mixed by ``w1``.

Shapes: ``N`` tokens, ``in = b d`` and ``out = a c`` features, ``w1`` (a, b), ``w2`` (c, d).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from plafond.model.linear import linear, linear_input_gradient

_library: Any = torch.library.Library("plafond", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "kron_linear(Tensor x, Tensor[] weight, str layout, Tensor? bias, Tensor w1, Tensor w2, float scale) -> Tensor"
)
_library.define(
    "kron_gradients(Tensor grad, Tensor x, Tensor w1, Tensor w2, float scale) -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "kron_input_gradient(Tensor grad, Tensor[] weight, str layout, Tensor grad_rows, Tensor w2) -> Tensor"
)


def _rows(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
    """``w2`` applied to each row of each token: (N, b, c)."""
    rows, inside = w1.shape[1], w2.shape[1]
    return torch.mm(x.reshape(-1, inside), w2.to(x.dtype).t()).view(-1, rows, w2.shape[0])


def _every(w1: Tensor, like: Tensor, *, transposed: bool = False) -> Tensor:
    """``w1`` for each token."""
    cast = w1.to(like.dtype)
    return (cast.t() if transposed else cast).expand(like.shape[0], -1, -1)


def kron_linear(
    x: Tensor, weight: list[Tensor], layout: str, bias: Tensor | None, w1: Tensor, w2: Tensor, scale: float
) -> Tensor:
    """(N, in) to (N, out)."""
    out = linear(x, weight, layout, bias, None, None, 1.0)
    rows = _rows(x, w1, w2)
    out.view(-1, w1.shape[0], w2.shape[0]).baddbmm_(_every(w1, rows), rows, alpha=scale)
    return out


def kron_gradients(
    grad: Tensor, x: Tensor, w1: Tensor, w2: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the rows behind ``w2`` (N, b, c), of ``w1`` and of ``w2``."""
    grad_out = grad.reshape(-1, w1.shape[0], w2.shape[0])
    each = torch.bmm(grad_out, _rows(x, w1, w2).transpose(1, 2))
    grad_w1 = each.sum(dim=0, dtype=w1.dtype).mul_(scale)
    del each
    grad_rows = torch.bmm(_every(w1, grad_out, transposed=True), grad_out).mul_(scale)
    flat = grad_rows.view(-1, w2.shape[0])
    return grad_rows, grad_w1, torch.mm(flat.t(), x.reshape(-1, w2.shape[1])).to(w2.dtype)


def kron_input_gradient(
    grad: Tensor, weight: list[Tensor], layout: str, grad_rows: Tensor, w2: Tensor
) -> Tensor:
    """Gradient (N, in) of the input."""
    out = linear_input_gradient(grad, weight, layout, None, None)
    out.view(-1, w2.shape[1]).addmm_(grad_rows.view(-1, w2.shape[0]), w2.to(grad.dtype))
    return out


OPERATIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.plafond.kron_linear.default: kron_linear,
    torch.ops.plafond.kron_gradients.default: kron_gradients,
    torch.ops.plafond.kron_input_gradient.default: kron_input_gradient,
}
"""What each operation is made of: a ledger looks inside."""

for _operation, _function in OPERATIONS.items():
    _name = _operation._schema.name
    _library.impl(_name.partition("::")[2], _function, "CompositeExplicitAutograd")
    torch.library.register_fake(_name, _function, lib=_library)


def _through_w2(tokens: int, w1: Tensor, w2: Tensor) -> int:
    return 2 * tokens * int(w1.shape[1]) * w2.numel()


def _through_w1(tokens: int, w1: Tensor, w2: Tensor) -> int:
    return 2 * tokens * w1.numel() * int(w2.shape[0])


@register_flop_formula(torch.ops.plafond.kron_linear, get_raw=True)
def _linear_flops(
    x: Tensor,
    weight: Any,
    layout: str,
    bias: Any,
    w1: Tensor,
    w2: Tensor,
    *_: Any,
    out_val: Tensor,
    **__: Any,
) -> int:
    tokens = int(x.shape[0])
    own = 2 * out_val.numel() * int(x.shape[-1])
    return own + _through_w2(tokens, w1, w2) + _through_w1(tokens, w1, w2)


@register_flop_formula(torch.ops.plafond.kron_gradients, get_raw=True)
def _gradient_flops(grad: Tensor, x: Tensor, w1: Tensor, w2: Tensor, *_: Any, **__: Any) -> int:
    tokens = int(grad.shape[0])
    return 2 * _through_w2(tokens, w1, w2) + 2 * _through_w1(tokens, w1, w2)


@register_flop_formula(torch.ops.plafond.kron_input_gradient, get_raw=True)
def _input_gradient_flops(
    grad: Tensor, weight: Any, layout: str, grad_rows: Tensor, w2: Tensor, *_: Any, out_val: Tensor, **__: Any
) -> int:
    return 2 * out_val.numel() * int(grad.shape[-1]) + 2 * grad_rows.numel() * int(w2.shape[1])

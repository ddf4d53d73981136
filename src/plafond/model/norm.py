"""RMSNorm in one operation each way, where the GPU has a kernel for it.

On CUDA these are torch's own fused kernels; without data, on ``meta``, they only say what those return and keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_library: Any = torch.library.Library("plafond", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("rms_norm(Tensor x, Tensor? weight, float? eps) -> (Tensor, Tensor)")
_library.define(
    "rms_norm_backward(Tensor grad, Tensor x, Tensor rows, Tensor? weight, bool[2] wanted) -> (Tensor, Tensor)"
)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    """The result, like `x`, and one float32 number per row for the backward pass."""
    if not x.is_meta:
        out: tuple[Tensor, Tensor] = torch.ops.aten._fused_rms_norm(x, [x.shape[-1]], weight, eps)
        return out
    rows = torch.empty(*x.shape[:-1], 1, device=x.device, dtype=torch.float32)
    return torch.empty_like(x, memory_format=torch.contiguous_format), rows


def rms_norm_backward(
    grad: Tensor, x: Tensor, rows: Tensor, weight: Tensor | None, wanted: list[bool]
) -> tuple[Tensor, Tensor]:
    """Gradients of `x` and of `weight`; what is not `wanted` is empty."""
    if not x.is_meta:
        found = torch.ops.aten._fused_rms_norm_backward(grad, x, [x.shape[-1]], rows, weight, wanted)
        made = [x.new_empty(0) if tensor is None else tensor for tensor in found]
        return made[0], made[1]
    grad_x = torch.empty_like(x) if wanted[0] else x.new_empty(0)
    grad_weight = torch.empty_like(weight) if wanted[1] and weight is not None else x.new_empty(0)
    return grad_x, grad_weight


OPERATIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.plafond.rms_norm.default: rms_norm,
    torch.ops.plafond.rms_norm_backward.default: rms_norm_backward,
}
"""What each operation is made of."""

for _operation, _function in OPERATIONS.items():
    _library.impl(_operation._schema.name.partition("::")[2], _function, "CompositeExplicitAutograd")


class FusedRmsNorm(torch.autograd.Function):
    """Keeps its input, its weight and one float32 number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float | None) -> Tensor:
        """`x` normalised over its last dimension."""
        x = x.contiguous()
        out, rows = torch.ops.plafond.rms_norm(x, weight, eps)
        ctx.save_for_backward(x, weight, rows)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Gradients of `x` and `weight`."""
        x, weight, rows = ctx.saved_tensors
        wanted = [bool(needed) for needed in ctx.needs_input_grad[:2]]
        grad_x, grad_weight = torch.ops.plafond.rms_norm_backward(grad.contiguous(), x, rows, weight, wanted)
        return grad_x if wanted[0] else None, grad_weight if wanted[1] else None, None

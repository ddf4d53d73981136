"""LoKr: a Kronecker product of two small matrices beside a frozen linear layer (LyCORIS's, with AI Toolkit's defaults).

``y = W x + b + multiplier * scale * (w1 ⊗ w2) x``, where ``w2`` is a matrix or a product of rank `rank`. LyCORIS and
PEFT write the product out, which takes as much as the layer's weight, in each pass of each layer; here it is applied
without (see `plafond.model.kronecker`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from plafond.model import kronecker as _operations  # noqa: F401 - defines torch.ops.plafond
from plafond.model.adapter import Adapter, kaiming
from plafond.model.quantized import QuantizedLinear, weight_of


class _KronLinearFunction(torch.autograd.Function):
    """Saves the input once and the two small matrices."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: list[Tensor],
        layout: str,
        bias: Tensor | None,
        w1: Tensor,
        w2: Tensor,
        scale: float,
    ) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        out: Tensor = torch.ops.plafond.kron_linear(flat, weight, layout, bias, w1, w2, scale)
        ctx.save_for_backward(x, w1, w2, *weight)
        ctx.layout, ctx.scale = layout, scale
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, w1, w2, *weight = ctx.saved_tensors
        grad_out = grad.reshape(-1, grad.shape[-1])
        grad_rows, grad_w1, grad_w2 = torch.ops.plafond.kron_gradients(
            grad_out, x.reshape(-1, x.shape[-1]), w1, w2, ctx.scale
        )
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.ops.plafond.kron_input_gradient(grad_out, weight, ctx.layout, grad_rows, w2)
            grad_x = grad_x.view(x.shape)
        return grad_x, None, None, None, grad_w1, grad_w2, None


def factors(size: int, factor: int) -> tuple[int, int]:
    """LyCORIS's rule for cutting a number of features in two factors, the smaller one first.

    Args:
        size: the number.
        factor: the first factor where it divides the number, else the most that the smaller one may be; -1 for the
            two that are closest to each other.
    """
    if factor > 0 and size % factor == 0:
        return factor, size // factor
    most = size if factor == -1 else factor
    low = max(one for one in range(1, min(most, int(size**0.5)) + 1) if size % one == 0)
    return low, size // low


class LokrLinear(Adapter):
    """A frozen linear layer with a trainable Kronecker product.

    Args:
        base: the frozen layer.
        rank: rank of the second factor; where that is no smaller than a matrix, it is a matrix.
        alpha: numerator of the scale ``alpha / rank``, which is 1 where both factors are matrices.
        dropout: not used, as in LyCORIS.
        factor: see `factors`.
        full: the second factor is a matrix whatever the rank.
        dtype: dtype of the trained matrices; products are computed in the dtype of the input.
    """

    def __init__(
        self,
        base: nn.Linear | QuantizedLinear,
        rank: int,
        alpha: float,
        *,
        dropout: float = 0.0,
        factor: int = -1,
        full: bool = True,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(base)
        (a, c), (b, d) = factors(base.out_features, factor), factors(base.in_features, factor)
        self.rank, self.dropout = rank, 0.0
        self.full = full or rank >= max(c, d) / 2
        self.alpha = float(rank) if self.full else alpha

        def matrix(rows: int, columns: int, *, zero: bool = False) -> nn.Parameter:
            make = torch.zeros if zero else torch.empty
            return nn.Parameter(make(rows, columns, device=base.weight.device, dtype=dtype))

        self.lokr_w1 = matrix(a, b)
        if self.full:
            self.lokr_w2 = matrix(c, d, zero=True)
        else:
            self.lokr_w2_a, self.lokr_w2_b = matrix(c, rank), matrix(rank, d, zero=True)

    def tensors(self) -> dict[str, nn.Parameter]:
        """LyCORIS's names."""
        return dict(self.named_parameters(recurse=False))

    def blank(self) -> str:
        """``w2``, or its second factor."""
        return "lokr_w2" if self.full else "lokr_w2_b"

    def reset(self, generator: torch.Generator) -> None:
        """Draw everything Kaiming-uniform, but for zeros in the second factor."""
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(torch.zeros(()) if name == self.blank() else kaiming(tensor.shape, generator))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        scale = self.multiplier * self.alpha / self.rank
        if scale == 0.0:
            return self.base(x)  # type: ignore[no-any-return]
        w2 = self.lokr_w2 if self.full else torch.mm(self.lokr_w2_a, self.lokr_w2_b)
        return _KronLinearFunction.apply(  # type: ignore[no-any-return,no-untyped-call]
            x, *weight_of(self.base), self.base.bias, self.lokr_w1, w2, scale
        )

"""A frozen linear layer whose weight is packed, and putting it in the place of a model's own layers.

The weight is unpacked inside an operation, in the forward pass and again in the backward pass. Autograd's graph refers
to the packed tensors alone: no dense copy outlives its product, and no input is kept, since a frozen weight has no
gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from plafond.memory.residence import put, retire, within
from plafond.model import linear as _operations  # noqa: F401 - defines torch.ops.plafond
from plafond.model.packing import PLAIN, pack


class _FrozenLinearFunction(torch.autograd.Function):
    """``F.linear`` with a weight that gets no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: list[Tensor], layout: str, bias: Tensor | None) -> Tensor:
        out: Tensor = torch.ops.plafond.linear(
            x.reshape(-1, x.shape[-1]), weight, layout, bias, None, None, 1.0
        )
        ctx.save_for_backward(*weight)
        ctx.layout = layout
        return out.view(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        flat = grad.reshape(-1, grad.shape[-1])
        grad_x = torch.ops.plafond.linear_input_gradient(
            flat, list(ctx.saved_tensors), ctx.layout, None, None
        )
        return grad_x.view(*grad.shape[:-1], grad_x.shape[-1]), None, None, None


class QuantizedLinear(nn.Module):
    """A frozen linear layer with a packed weight.

    Args:
        linear: the layer whose place it takes; its bias stays as it is and where it is.
        name: number format of the weight, see `plafond.model.packing.FORMATS`.
        device: where the weight is packed and stays. Only this one weight is there unpacked, and only meanwhile.
        home: the packed weight returns to main memory.

    Attributes:
        layout: how the weight is packed.
        weight: an empty tensor; other code reads the dtype and the device of a layer's ``weight``.
    """

    weight: Tensor

    def __init__(self, linear: nn.Linear, name: str, device: torch.device, *, home: bool = False):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        with torch.no_grad():
            packed, self.layout = pack(put(linear.weight.detach(), device), name)
            if home:
                packed = [retire(tensor) for tensor in packed]
        for place, tensor in enumerate(packed):
            self.register_buffer(f"packed_{place}", tensor)
        self._parts = len(packed)
        self.register_buffer("weight", torch.empty(0, dtype=linear.weight.dtype, device=packed[0].device))
        self.bias = linear.bias
        self.requires_grad_(False)

    def packed(self) -> list[Tensor]:
        """The tensors that hold the weight."""
        return [self.get_buffer(f"packed_{place}") for place in range(self._parts)]

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return _FrozenLinearFunction.apply(x, self.packed(), self.layout, self.bias)  # type: ignore[no-any-return,no-untyped-call]

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"{self.in_features}, {self.out_features}, {self.layout}, bias={self.bias is not None}"


def weight_of(layer: nn.Linear | QuantizedLinear) -> tuple[list[Tensor], str]:
    """The tensors that hold a layer's weight, and their layout."""
    if isinstance(layer, QuantizedLinear):
        return layer.packed(), layer.layout
    return [layer.weight], PLAIN


def quantize(
    model: nn.Module,
    name: str,
    device: torch.device,
    *,
    exclude: Sequence[str] = (),
    only: Callable[[str], bool],
    home: bool = False,
) -> list[str]:
    """Pack the weights of a model's linear layers, one after the other.

    The model lies in main memory. Each weight is carried to the device, packed there, and its dense copy dropped before
    the next one comes, so the device never holds more than the packed weights and one layer. What is not packed
    stays where it is.

    Args:
        model: its linear layers are replaced.
        name: number format.
        device: the device that will run the model.
        exclude: patterns of shell style of the dotted names of layers that are left alone.
        only: says of a dotted name whether the layer is to be packed.
        home: the packed weights return to main memory, from where blocks are streamed.

    Returns:
        The names of the layers that were packed.
    """
    # subclasses stay: whoever made them reads their weight
    found = [path for path, module in model.named_modules() if type(module) is nn.Linear and only(path)]
    chosen = [path for path in found if not any(fnmatch(path, pattern) for pattern in exclude)]
    for path in chosen:
        parent, _, child = path.rpartition(".")
        holder = model.get_submodule(parent)
        with within(path):
            setattr(holder, child, QuantizedLinear(getattr(holder, child), name, device, home=home))
    return chosen


def in_layers(model: nn.Module) -> Callable[[str], bool]:
    """Whether a dotted name lies in one of the model's repeated layers, not in its embeddings, head or projections."""
    lists = tuple(f"{path}." for path, module in model.named_modules() if isinstance(module, nn.ModuleList))
    return lambda path: path.startswith(lists)

"""What linear layers of other libraries keep for a backward pass where plafond's do not: for predicting their users.

Both are read from the libraries' own code and are not fitted to any figure:

- **RamTorch** (1.11.0, ``modules/linear.py``) fetches a layer's weight for each product, again in the backward pass,
  and saves the layer's input, also where the weight is frozen.
- **torchao** (0.18.0, ``quantization/quantize_/workflows/float8/float8_tensor.py``) unpacks a float8 weight and calls
  ``torch.matmul``, for which autograd saves the unpacked weight. Its layers that make the input float8, too, cannot be
  run without a GPU; they are predicted as those that do not.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plafond.memory.dryrun import Rehearsal
from plafond.model.packing import dense
from plafond.model.quantized import QuantizedLinear
from plafond.training.trainee import Trainee


class OthersRehearsal(Rehearsal):
    """A dry run of another trainer's step.

    Args:
        library: ``ramtorch`` or ``torchao``, whose layers the trainer uses; None for torch's own.
        arguments: of `Rehearsal`.
    """

    def __init__(self, *arguments: Any, library: str | None, **options: Any):
        super().__init__(*arguments, **options)
        self._library = library

    def disguise(self, trainee: Trainee) -> None:
        """Let its layers keep what the library's keep."""
        super().disguise(trainee)
        for blocks in trainee.blocks.values():
            for module in (module for planned in blocks for module in planned.block.modules()):
                if (
                    self._library == "ramtorch"
                    and type(module) is nn.Linear
                    and not module.weight.requires_grad
                ):
                    module.forward = partial(_fetched, module)  # type: ignore[method-assign]
                if self._library == "torchao" and isinstance(module, QuantizedLinear):
                    module.forward = partial(_unpacked, module)  # type: ignore[method-assign]


class _FetchedFunction(torch.autograd.Function):
    """``F.linear`` with a weight that is fetched anew for the backward pass, and an input that is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.fetch = partial(torch.empty, weight.shape, dtype=weight.dtype, device=weight.device)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad @ ctx.fetch(), None, None


def _fetched(layer: nn.Linear, x: Tensor) -> Tensor:
    return _FetchedFunction.apply(x, layer.weight, layer.bias)  # type: ignore[no-any-return,no-untyped-call]


def _unpacked(layer: QuantizedLinear, x: Tensor) -> Tensor:
    return F.linear(x, dense(layer.packed(), layer.layout, x.dtype), layer.bias)

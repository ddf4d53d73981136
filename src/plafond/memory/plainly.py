"""What AI Toolkit's code does where the trainer's own does better: for predicting that one's memory, not for running.

Blocks are not taken apart: with checkpointing each is torch's own checkpoint, which computes everything again, and
without it autograd keeps what it will. A LoRA casts its input to float32, keeps that copy, and casts its product back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor

from plafond.activations.capture import NotCapturable
from plafond.model.lora import LoraLinear

if TYPE_CHECKING:
    from plafond.training.trainee import Trainee

REASON = "another trainer is predicted"


def plainly(trainee: Trainee) -> None:
    """Let a trainee in a dry run do as AI Toolkit does."""
    for blocks in trainee.blocks.values():
        for block in blocks:
            block.learn = _nothing  # type: ignore[method-assign,assignment]
    for module in trainee.transformer.modules():
        if isinstance(module, LoraLinear):
            module.forward = partial(_in_float32, module)  # type: ignore[method-assign]


def _nothing(*_: Any) -> NotCapturable:
    return NotCapturable(REASON)


def _in_float32(layer: LoraLinear, x: Tensor) -> Tensor:
    product = F.linear(F.linear(x.float(), layer.lora_A), layer.lora_B)
    added: Tensor = layer.base(x) + (product * (layer.alpha / layer.rank)).to(x.dtype)
    return added

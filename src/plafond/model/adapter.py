"""What all kinds of adapters have in common: a frozen linear layer with something trained beside it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from plafond.model.quantized import QuantizedLinear


class Adapter(nn.Module, ABC):
    """A frozen linear layer with a trainable addition; the base class of each kind.

    Args:
        base: the frozen layer; its weight and bias no longer require gradients.

    Attributes:
        multiplier: strength of the addition; 0 gives the base layer.
        rank: rank of the addition.
        alpha: numerator of its scale ``alpha / rank``.
        dropout: probability of dropping an entry inside the addition while training.
    """

    rank: int
    alpha: float
    dropout: float

    def __init__(self, base: nn.Linear | nn.Conv2d | QuantizedLinear):
        super().__init__()
        base.requires_grad_(False)
        self.base: Any = base
        self.multiplier = 1.0

    @property
    def in_features(self) -> int:
        """Features of the input, as of the base layer."""
        return int(self.base.in_features)

    @property
    def out_features(self) -> int:
        """Features of the output, as of the base layer."""
        return int(self.base.out_features)

    @property
    def weight(self) -> Tensor:
        """Weight of the base layer: diffusers reads ``.weight.dtype`` of some projections."""
        weight: Tensor = self.base.weight
        return weight

    def constants(self) -> tuple[float, ...]:
        """Numbers that its forward uses and that change while a model is trained."""
        return (self.multiplier, self.dropout if self.training else 0.0)

    @abstractmethod
    def tensors(self) -> dict[str, nn.Parameter]:
        """The trained tensors by their names in files, behind the layer's own."""

    def derived(self) -> dict[str, Tensor]:
        """What files hold beside the trained tensors, for programs that want it in another form."""
        return {}

    derived_names: tuple[str, ...] = ()
    """The names of what `derived` gives."""

    @abstractmethod
    def blank(self) -> str:
        """The name of the trained tensor that is zero at the start."""

    @abstractmethod
    def reset(self, generator: torch.Generator) -> None:
        """Draw starting values, with which the addition is zero."""


class LowRank(Adapter):
    """An adapter whose addition goes through `rank` features: ``B A``, of which ``B`` starts at zero."""

    lora_A: nn.Parameter
    lora_B: nn.Parameter

    def tensors(self) -> dict[str, nn.Parameter]:
        """PEFT's names."""
        return {"lora_A.weight": self.lora_A, "lora_B.weight": self.lora_B}

    def blank(self) -> str:
        """``B``."""
        return "lora_B.weight"


def kaiming(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Kaiming-uniform numbers with a = √5, float32: within 1/√(columns) of zero."""
    bound = 1 / math.sqrt(shape[-1])
    return torch.rand(shape, generator=generator, dtype=torch.float32) * (2 * bound) - bound

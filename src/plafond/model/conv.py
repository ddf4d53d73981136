"""LoRA on a frozen convolution: a convolution to `rank` channels, and one of single pixels back."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from plafond.model.adapter import LowRank, kaiming


class LoraConv(LowRank):
    """A frozen convolution with a trainable addition.

    Args:
        base: the frozen layer.
        rank: channels between the two convolutions.
        alpha: numerator of the scale; the addition is multiplied by ``alpha / rank``.
        dropout: probability of dropping an entry between the two while training.
        dtype: dtype of the trained kernels; products are computed in the dtype of the input.
    """

    base: nn.Conv2d

    def __init__(
        self,
        base: nn.Conv2d,
        rank: int,
        alpha: float,
        *,
        dropout: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(base)
        self.rank, self.alpha, self.dropout = rank, alpha, dropout
        device = base.weight.device
        kernel = (base.in_channels // base.groups, *base.kernel_size)
        self.lora_A = nn.Parameter(torch.empty(rank, *kernel, device=device, dtype=dtype))
        self.lora_B = nn.Parameter(torch.zeros(base.out_channels, rank, 1, 1, device=device, dtype=dtype))

    @property
    def in_features(self) -> int:
        """Channels of the input, as of the base layer."""
        return self.base.in_channels

    @property
    def out_features(self) -> int:
        """Channels of the output, as of the base layer."""
        return self.base.out_channels

    def reset(self, generator: torch.Generator) -> None:
        """Draw ``A`` as Kaiming-uniform with a = √5 and set ``B`` to zero: the addition starts at 0."""
        with torch.no_grad():
            flat = kaiming(self.lora_A.flatten(1).shape, generator)
            self.lora_A.copy_(flat.view_as(self.lora_A))
            self.lora_B.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, in, h, w) to (B, out, h', w')."""
        if self.multiplier == 0.0:
            return self.base(x)  # type: ignore[no-any-return]
        base = self.base
        down = conv2d(
            x,
            self.lora_A.to(x.dtype),
            None,
            base.stride,
            base.padding,
            base.dilation,
        )
        if self.training and self.dropout > 0.0:
            chance = torch.full_like(down, 1 - self.dropout)
            down = down * torch.bernoulli(chance) / (1 - self.dropout)
        scale = self.multiplier * self.alpha / self.rank
        added: Tensor = base(x) + scale * conv2d(down, self.lora_B.to(x.dtype))
        return added

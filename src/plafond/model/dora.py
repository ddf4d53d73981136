"""DoRA: a LoRA whose rows are brought to trained lengths (Liu et al. 2024).

``y = m / ‖W + s B A‖ * (W x + s B A x) + b`` row by row, where the length ``m`` is trained and the norm counts as a
constant for the gradient. The norm needs no copy of the weight: with ``‖W‖²`` known from the start it is

    ‖W + s B A‖² = ‖W‖² + 2 s Σ B ⊙ (W Aᵀ) + s² Σ B ⊙ (B A Aᵀ)

per row, whose products are no wider than the rank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from plafond.model.lora import LoraLinear
from plafond.model.packing import dense
from plafond.model.quantized import QuantizedLinear, weight_of

ROWS = 1024
"""So many rows of a weight are in float32 at a time while their lengths are taken."""


class DoraLinear(LoraLinear):
    """A LoRA with a trained length for each row; its arguments are those of `LoraLinear`."""

    squares: Tensor
    derived_names = ("dora_scale",)

    def __init__(
        self,
        base: nn.Linear | QuantizedLinear,
        rank: int,
        alpha: float,
        *,
        dropout: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(base, rank, alpha, dropout=dropout, dtype=dtype)
        with torch.no_grad():
            weight = dense(*weight_of(base), base.weight.dtype)
            squares = torch.cat([rows.float().square().sum(dim=1) for rows in torch.split(weight, ROWS)])
        self.register_buffer("squares", squares)
        self.magnitude = nn.Parameter(squares.sqrt().to(dtype))

    def tensors(self) -> dict[str, nn.Parameter]:
        """PEFT's names."""
        return {**super().tensors(), "lora_magnitude_vector.weight": self.magnitude}

    def derived(self) -> dict[str, Tensor]:
        """The lengths as ComfyUI wants them, (out, 1): it divides by the base weight's, not by the sum's."""
        with torch.no_grad():
            lengths = self.magnitude.to(self.squares) * self.squares.sqrt() / self.norm(torch.float32)
        return {"dora_scale": lengths.unsqueeze(1)}

    def reset(self, generator: torch.Generator) -> None:
        """As a LoRA, with the rows at the lengths that they have."""
        super().reset(generator)
        with torch.no_grad():
            self.magnitude.copy_(self.squares.sqrt())

    def norm(self, dtype: torch.dtype) -> Tensor:
        """‖W + s B A‖ of each row, float32 (out,), without a gradient; products are computed in `dtype`."""
        scale = self.alpha / self.rank
        with torch.no_grad():
            weight, layout = weight_of(self.base)
            device = self.squares.device  # main memory, when a streamed layer is saved
            a, b = self.lora_A.to(device, dtype), self.lora_B.to(device, dtype)
            crossed: Tensor = torch.ops.plafond.linear(a, weight, layout, None, None, None, 1.0)
            mixed = (b * crossed.t()).sum(dim=1, dtype=torch.float32)
            own = (torch.mm(b, torch.mm(a, a.t())) * b).sum(dim=1, dtype=torch.float32)
            return (self.squares + 2 * scale * mixed + scale**2 * own).clamp_(min=0).sqrt_()

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out); a multiplier below 1 brings both addition and lengths nearer to the base's."""
        if self.multiplier == 0.0:
            return self.base(x)  # type: ignore[no-any-return]
        gain = self.magnitude / self.norm(x.dtype)
        if self.multiplier != 1.0:
            gain = 1 + self.multiplier * (gain - 1)
        out = self.added(x, bias=False) * gain.to(x.dtype)
        return out if self.base.bias is None else out + self.base.bias

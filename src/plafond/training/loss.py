"""The flow-matching objective.

With clean latents ``x``, noise ``n`` and noise level ``s`` the model sees ``(1 - s) x + s n`` and is asked for the
velocity ``n - x``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def noisy_latents(latents: Tensor, noise: Tensor, sigmas: Tensor) -> Tensor:
    """Mix (B, C, h, w) float32 latents and noise at levels (B,)."""
    level = sigmas.view(-1, *([1] * (latents.dim() - 1)))
    return (1 - level) * latents + level * noise


def sample_losses(
    prediction: Tensor, target: Tensor, loss_type: str, weights: Tensor | None = None
) -> Tensor:
    """Mean loss of each sample, (B,) float32, whatever the dtype of the prediction.

    Args:
        prediction: (B, C, h, w), or (B, C, frames, h, w) of clips.
        target: of the same shape.
        loss_type: ``mse`` or ``mae``.
        weights: of each place, (B, 1, h, w).
    """
    difference = prediction.float() - target.float()
    each = difference.abs() if loss_type == "mae" else difference.square()
    if weights is not None:
        each = each * (weights if each.dim() == weights.dim() else weights.unsqueeze(2))
    return torch.flatten(each, 1).mean(1)


def even(weights: Tensor) -> Tensor:
    """Weights (B, 1, h, w) with a mean of 1 in each sample, unless they are all 0."""
    mean = weights.mean(dim=(1, 2, 3), keepdim=True)
    return weights / mean.clamp(min=torch.finfo(weights.dtype).tiny)

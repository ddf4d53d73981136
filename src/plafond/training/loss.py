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


def sample_losses(prediction: Tensor, target: Tensor, loss_type: str) -> Tensor:
    """Mean loss of each sample, (B,) float32, whatever the dtype of the prediction."""
    difference = prediction.float() - target.float()
    each = difference.abs() if loss_type == "mae" else difference.square()
    return torch.flatten(each, 1).mean(1)

"""Which noise levels are trained, and how much each counts.

A noise level ``sigma`` runs from 1 (pure noise) to 0 (clean). AI Toolkit lays 1,000 levels on a grid that depends on
``train.timestep_type`` and draws an index into it; the same distribution is drawn here from the grid's quantile
function, so that no grid has to be redrawn each step. The position ``u`` in [0, 1) counts from the noisy end.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plafond.errors import JobError
from plafond.job.train import TrainConfig
from plafond.language.said import N_

GRID = 1000
WHOLE = (0.0, 1.0)


def draw_sigmas(
    count: int,
    settings: TrainConfig,
    shift: float,
    generator: torch.Generator,
    span: tuple[float, float] = WHOLE,
) -> Tensor:
    """Draw noise levels.

    Args:
        count: how many.
        settings: ``timestep_type``, ``content_or_style``, ``min_denoising_steps``, ``max_denoising_steps``.
        shift: the family's ``mu`` for the batch's resolution; used by ``timestep_type: shift``.
        generator: source of randomness.
        span: noise levels are drawn from this part of the grid, as if the others were not there.

    Returns:
        float32 (count,), each in (0, 1].

    Raises:
        JobError: ``min_denoising_steps`` and ``max_denoising_steps`` leave nothing of the span.
    """
    uniform, low, high = draw_places(count, settings, generator)
    grid = _lognormal_grid(generator) if settings.timestep_type == "lognorm_blend" else None
    if span != WHOLE:
        places = torch.arange(GRID, dtype=torch.float64) / GRID
        levels = _quantile(places, settings.timestep_type, shift) if grid is None else grid
        low = max(low, int((levels > span[1]).sum()) / GRID)
        high = min(high, int((levels > span[0]).sum()) / GRID)
        if low >= high:
            raise JobError(
                N_("leaves no noise level between {low} and {high}, which one of the experts denoises"),
                low=str(span[0]),
                high=str(span[1]),
                key="train.min_denoising_steps",
            )
    position = low + uniform * (high - low)
    if grid is not None:
        return grid[(position * GRID).long().clamp(max=GRID - 1)].float()
    # between two places of the grid the curve may leave the span
    return _quantile(position, settings.timestep_type, shift).float().clamp(*span)


def draw_places(count: int, settings: TrainConfig, generator: torch.Generator) -> tuple[Tensor, float, float]:
    """Numbers in [0, 1) by ``content_or_style``, and the part of the grid that they are to be laid on."""
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    if settings.content_or_style == "content":
        uniform = uniform**3
    elif settings.content_or_style == "style":
        uniform = 1 - (1 - uniform) ** 3
    low = settings.min_denoising_steps / GRID
    return uniform, low, min(1.0, (settings.max_denoising_steps + 1) / GRID)


def _lognormal_grid(generator: torch.Generator) -> Tensor:
    """Three quarters log-normal levels, the longest tail reaching the clean end, and one quarter even ones."""
    count = GRID * 3 // 4
    draws = torch.exp(0.333 * torch.randn(count, generator=generator, dtype=torch.float64))
    even = torch.linspace(1, 1 / GRID, GRID - count, dtype=torch.float64)
    grid = torch.cat([1 - draws / draws.max(), even])
    return grid.clamp(min=1 / GRID).sort(descending=True).values


def _quantile(position: Tensor, timestep_type: str, shift: float) -> Tensor:
    # Stay half a grid cell away from both ends: the sigmoid's quantile is infinite there.
    inner = position.clamp(0.5 / GRID, 1 - 0.5 / GRID)
    if timestep_type == "sigmoid":
        return torch.sigmoid(torch.special.ndtri(1 - inner))
    straight = 1 - position * (1 - 1 / GRID)
    if timestep_type == "shift":
        return math.exp(shift) / (math.exp(shift) + (1 / straight - 1))
    return straight


def loss_weights(sigmas: Tensor, timestep_type: str) -> Tensor:
    """Weight of each noise level in the loss: a bell with mean 1 for ``weighted``, 1 for all other types.

    The bell is ``exp(-2 ((x - 500) / 1000)²)`` over the 1,000 levels, lowered so that its ends touch 0.
    """
    if timestep_type != "weighted":
        return torch.ones_like(sigmas)
    levels = torch.arange(GRID, dtype=torch.float64)
    bell = torch.exp(-2 * ((levels - GRID / 2) / GRID) ** 2)
    bell = bell - bell.min()
    bell = bell / bell.mean()
    index = ((1 - sigmas.double()) * (GRID - 1)).round().long().clamp(0, GRID - 1)
    return bell[index.cpu()].to(sigmas)

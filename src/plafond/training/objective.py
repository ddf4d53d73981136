"""What a model is trained to answer: a velocity on straight lines, or the noise of a diffusion schedule.

A noise level runs from 1 (noise) to 0 (the picture). On straight lines it is the share of noise; of a schedule it is
the timestep divided by 1,000.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from plafond.families._contract import Family
from plafond.job.model import ModelConfig
from plafond.job.train import TrainConfig
from plafond.memory.residence import host_memory, put
from plafond.training.loss import noisy_latents
from plafond.training.timesteps import GRID, draw_places, draw_sigmas, loss_weights


class Objective(Protocol):
    """Levels (B,) are float32; latents and noise are (B, C, h, w)."""

    def draw(
        self,
        count: int,
        settings: TrainConfig,
        shift: float,
        generator: torch.Generator,
        span: tuple[float, float],
    ) -> Tensor:
        """Noise levels, in main memory; see `draw_sigmas`."""

    def mix(self, latents: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        """What the model is shown."""

    def target(self, latents: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        """What it should answer."""

    def weights(self, levels: Tensor, settings: TrainConfig) -> Tensor:
        """How much each level counts."""


class FlowMatching:
    """From the picture to the noise on a straight line, whose direction is asked for."""

    def draw(
        self,
        count: int,
        settings: TrainConfig,
        shift: float,
        generator: torch.Generator,
        span: tuple[float, float],
    ) -> Tensor:
        """By ``train.timestep_type``."""
        return draw_sigmas(count, settings, shift, generator, span)

    def mix(self, latents: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        """The point on the line."""
        return noisy_latents(latents, noise, levels)

    def target(self, latents: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        """The velocity."""
        return noise - latents

    def weights(self, levels: Tensor, settings: TrainConfig) -> Tensor:
        """By ``train.timestep_type``."""
        return loss_weights(levels, settings.timestep_type)


class Diffusion:
    """A schedule of 1,000 steps, each with its share of signal.

    Args:
        signal: what is left of the picture's variance at each step (1000,); the noise has the rest.
        prediction: ``epsilon`` or ``v_prediction``.
    """

    def __init__(self, signal: Tensor, prediction: str):
        with host_memory():
            self.signal = signal.detach().double().cpu()
            self._roots = torch.stack([self.signal.sqrt(), (1 - self.signal).sqrt()]).float()
        self.velocity = prediction == "v_prediction"

    def draw(
        self,
        count: int,
        settings: TrainConfig,
        shift: float,
        generator: torch.Generator,
        span: tuple[float, float],
    ) -> Tensor:
        """Whole steps, each as likely as the next unless ``train.content_or_style`` says otherwise."""
        places, low, high = draw_places(count, settings, generator)
        index = ((low + places * (high - low)) * GRID).long().clamp(max=GRID - 1)
        return (GRID - 1 - index).float() / GRID

    def mix(self, latents: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        """Picture and noise, whose squared shares add up to 1."""
        signal, rest = self._shares(levels, latents.dim())
        return signal * latents + rest * noise

    def target(self, latents: Tensor, noise: Tensor, levels: Tensor) -> Tensor:
        """The noise, or v."""
        if not self.velocity:
            return noise
        signal, rest = self._shares(levels, latents.dim())
        return signal * noise - rest * latents

    def weights(self, levels: Tensor, settings: TrainConfig) -> Tensor:
        """Min-SNR (Hang et al. 2023), so that steps with little noise do not count most."""
        if settings.min_snr_gamma is None:
            return torch.ones_like(levels)
        with host_memory():
            ratio = self.signal / (1 - self.signal)
            divisor = ratio + 1 if self.velocity else ratio.clamp(min=1e-12)
            table = (ratio.clamp(max=settings.min_snr_gamma) / divisor).float()
        return put(table, levels.device)[_steps(levels)]

    def _shares(self, levels: Tensor, dims: int) -> tuple[Tensor, Tensor]:
        both = put(self._roots, levels.device)[:, _steps(levels)]
        signal, rest = both.view(2, -1, *([1] * (dims - 1)))
        return signal, rest


def _steps(levels: Tensor) -> Tensor:
    return (levels * GRID).round().long()


def objective_of(family: Family, model: ModelConfig) -> Objective:
    """What the job's model is trained to answer."""
    if family.flow:
        return FlowMatching()
    from diffusers import DDPMScheduler

    config = family.schedule(family.locate(model))
    with host_memory():
        signal = DDPMScheduler.from_config(dict(config)).alphas_cumprod
    return Diffusion(signal, str(config.get("prediction_type", "epsilon")))

"""Noise levels have the distribution that the job file's names mean."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from plafond.job.train import TrainConfig
from plafond.training.loss import noisy_latents, sample_losses
from plafond.training.randomness import derived_seed, generator
from plafond.training.timesteps import draw_sigmas, loss_weights

COUNT = 100_000


def draw(shift: float = 1.15, **settings: object) -> Tensor:
    return draw_sigmas(COUNT, TrainConfig(**settings), shift, generator(0, "test"))


def quantiles(values: Tensor) -> list[float]:
    return torch.quantile(values.double(), torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)).tolist()


def test_sigmoid_is_the_logistic_of_a_normal() -> None:
    expected = [1 / (1 + math.exp(-z)) for z in (-1.2816, 0, 1.2816)]
    assert quantiles(draw(timestep_type="sigmoid")) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("kind", ["linear", "weighted"])
def test_linear_is_even(kind: str) -> None:
    assert quantiles(draw(timestep_type=kind)) == pytest.approx([0.1, 0.5, 0.9], abs=0.01)


@pytest.mark.parametrize("kind", ["shift", "flux_shift", "lumina2_shift"])
def test_shift_moves_even_levels_up_by_the_resolution(kind: str) -> None:
    def shifted(level: float, mu: float) -> float:
        return math.exp(mu) / (math.exp(mu) + 1 / level - 1)

    for mu in (0.5, 1.15):
        expected = [shifted(level, mu) for level in (0.1, 0.5, 0.9)]
        assert quantiles(draw(shift=mu, timestep_type=kind)) == pytest.approx(expected, abs=0.01)


def test_lognorm_blend_prefers_noisy_levels_and_reaches_both_ends() -> None:
    levels = draw(timestep_type="lognorm_blend")
    assert float(levels.mean()) > 0.55
    assert float(levels.min()) < 0.05 and float(levels.max()) > 0.95


def test_content_prefers_noise_and_style_prefers_detail() -> None:
    # u³ and 1 - (1 - u)³ of an even u have the means 1/4 and 3/4
    content = draw(timestep_type="linear", content_or_style="content")
    style = draw(timestep_type="linear", content_or_style="style")
    assert float(content.mean()) == pytest.approx(0.75, abs=0.01)
    assert float(style.mean()) == pytest.approx(0.25, abs=0.01)


def test_denoising_steps_limit_the_range() -> None:
    levels = draw(timestep_type="linear", min_denoising_steps=0, max_denoising_steps=499)
    assert float(levels.min()) == pytest.approx(0.5, abs=0.01) and float(levels.max()) > 0.99


@given(
    st.sampled_from(["sigmoid", "linear", "weighted", "shift", "lognorm_blend"]),
    st.sampled_from(["balanced", "content", "style"]),
    st.integers(0, 999),
    st.floats(0.2, 3.0),
    st.integers(0, 2**32),
)
def test_levels_are_always_in_range(kind: str, bias: str, low: int, shift: float, seed: int) -> None:
    settings = TrainConfig(timestep_type=kind, content_or_style=bias, min_denoising_steps=low)
    levels = draw_sigmas(64, settings, shift, torch.Generator().manual_seed(seed))
    assert levels.dtype == torch.float32
    assert bool(((levels > 0) & (levels <= 1)).all())


def test_only_weighted_weighs_and_its_mean_is_one() -> None:
    levels = torch.linspace(1, 0, 1001)
    assert torch.equal(loss_weights(levels, "linear"), torch.ones(1001))
    weights = loss_weights(levels, "weighted")
    assert float(weights.mean()) == pytest.approx(1, abs=0.01)
    assert float(weights[500]) == float(weights.max())
    assert float(weights[0]) == pytest.approx(0, abs=1e-6)


def test_flow_matching_ends_at_data_and_noise() -> None:
    clean, noise = torch.randn(2, 4, 3, 3), torch.randn(2, 4, 3, 3)
    mixed = noisy_latents(clean, noise, torch.tensor([0.0, 1.0]))
    assert torch.equal(mixed[0], clean[0]) and torch.equal(mixed[1], noise[1])


def test_losses_are_float32_means_per_sample() -> None:
    prediction, target = torch.full((2, 3, 2, 2), 2.0, dtype=torch.bfloat16), torch.zeros(2, 3, 2, 2)
    target[1] = 5
    assert sample_losses(prediction, target, "mse").tolist() == [4.0, 9.0]
    assert sample_losses(prediction, target, "mae").tolist() == [2.0, 3.0]


def test_draws_depend_on_where_they_are_used_only() -> None:
    seeds = {derived_seed(1, purpose, step, micro) for purpose in "ab" for step in (1, 2) for micro in (0, 1)}
    assert len(seeds) == 8
    assert derived_seed(1, "a", 12, 3) != derived_seed(1, "a", 1, 23)
    assert torch.equal(
        torch.rand(3, generator=generator(7, "x", 1)), torch.rand(3, generator=generator(7, "x", 1))
    )

"""A few of `bench/truth_cpu.py`: predictions against torch's profiler of the CPU allocator."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from truth_cpu import Case, measured, predicted

CASES = [
    Case(checkpointing=True, batch=2),
    Case(checkpointing=False, batch=2, accumulation=2, ema=True),
    Case(checkpointing=False, dtype="bfloat16", batch=2),
    Case(phase="encode_text"),
    Case(phase="cache_latents", side=(192, 256)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_predictions_match_the_allocators_profile(case: Case) -> None:
    peak = predicted(case).peak()
    truth = measured(case)
    assert abs(peak.bytes - truth) <= 0.005 * truth
    activations = truth - (peak.bytes - peak.activations)
    assert abs(peak.activations - activations) <= 0.01 * activations

"""A few of `bench/truth_cpu.py`: predictions against torch's profiler of the CPU allocator."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from plafond.memory.profiled import measure
from truth_cpu import Case, compare

CASES = [
    Case(checkpointing=True, batch=2),
    Case(checkpointing=False, batch=2, accumulation=2, ema=True),
    Case(checkpointing=False, dtype="bfloat16", batch=2),
    Case(phase="encode_text"),
    Case(phase="cache_latents", side=(192, 256)),
    Case(levels="offload", streamed=0.5, qtype="int8", batch=2),
    Case(phase="preview", streamed=1.0, tiled=True, side=(128, 96)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_predictions_match_the_allocators_profile(case: Case) -> None:
    row = compare(case)
    assert abs(row.error) <= 0.002
    assert abs(row.activations_error) <= 0.004
    assert row.truth.everything >= row.truth.tensors


def test_what_a_kernel_takes_inside_itself_is_told_apart() -> None:
    def run() -> None:
        kept = [torch.ones(64, 64)]
        kept.append(F.scaled_dot_product_attention(*(torch.ones(1, 2, 64, 32) for _ in range(3))))

    truth = measure(run)
    tensors = 4 * (64 * 64 + 4 * 2 * 64 * 32)
    assert tensors <= truth.tensors <= tensors + 1024  # and the logarithms of the sums
    assert truth.everything >= truth.tensors + 4 * 32 * 64  # at least one tile of scores

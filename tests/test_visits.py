"""Text encoders whose layers visit the device: the same answers, and nothing of them left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from plafond.memory.virtual import virtual_gpu
from plafond.model.visits import move_in_part

CPU = torch.device("cpu")
LAYER = 4 * 64 * 64 + 512
"""Bytes of one layer; the bias fills one unit of the allocator."""


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(64, 64)])
        self.check: Callable[[], None] = lambda: None

    def forward(self, x: Tensor) -> Tensor:
        self.check()
        return torch.tanh(self.inner[0](x))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 64)
        self.layers = nn.ModuleList([Layer() for _ in range(5)])

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def encoder() -> nn.Module:
    torch.manual_seed(0)
    return Encoder().requires_grad_(False)


@pytest.mark.parametrize(("share", "stay"), [(1.0, 0), (0.4, 3), (0.0, 5)])
def test_layers_leave_nothing_behind(encoder: Encoder, share: float, stay: int) -> None:
    ids = torch.arange(8)
    expected = encoder(ids)
    with virtual_gpu(2**30) as gpu:
        move_in_part(encoder, CPU, share)
        resident = gpu.live
        assert resident == stay * LAYER + 4 * 8 * 64, "embeddings stay"
        for _ in range(2):
            gpu.reset_peak()
            found = encoder(ids)
            assert torch.equal(found, expected)
            del found
            assert gpu.live == resident
            visiting = min(2, 5 - stay) * LAYER
            assert 0 <= gpu.reset_peak() - resident - visiting <= 4 * 8 * 64 * 4


def test_after_a_failure_all_of_it_is_gone(encoder: Encoder) -> None:
    ids = torch.arange(8)
    expected = encoder(ids)
    with virtual_gpu(2**30) as gpu:
        move_in_part(encoder, CPU, 1.0)
        resident = gpu.live

        def fail() -> None:
            raise torch.OutOfMemoryError("no room")

        encoder.layers[3].check = fail
        with pytest.raises(torch.OutOfMemoryError):
            encoder(ids)
        assert gpu.live == resident
        encoder.layers[3].check = lambda: None
        assert torch.equal(encoder(ids), expected)

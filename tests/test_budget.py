"""The limit of a run on CUDA: what torch is asked for, without a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.cuda._utils import _get_device_index

from plafond.memory.gpus import GIB
from plafond.training.budget import Budget, spending
from plafond.training.start import choose_device


class Allocator:
    """torch's limit of one card, which counts 24 GiB; like torch it insists on an index."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fraction: float = 1.0):
        self.fraction = fraction
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", self.get)
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", self.set)
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device: type("_", (), {"total_memory": 24 * GIB})
        )

    def get(self, device: torch.device) -> float:
        _get_device_index(device)
        return self.fraction

    def set(self, fraction: float, device: torch.device) -> None:
        _get_device_index(device)
        assert isinstance(fraction, float) and 0 <= fraction <= 1
        self.fraction = fraction


@pytest.mark.parametrize(("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_a_gpu_is_chosen_with_its_index(monkeypatch: pytest.MonkeyPatch, name: str, index: int) -> None:
    Allocator(monkeypatch)
    assert choose_device(name) == torch.device("cuda", index)


@pytest.mark.parametrize(
    ("ceiling", "before", "inside"),
    [(6 * GIB, 1.0, 0.25), (30 * GIB, 1.0, 1.0), (None, 1.0, 1.0), (18 * GIB, 0.5, 0.5)],
)
def test_the_limit_holds_inside_and_is_lifted_afterwards(
    monkeypatch: pytest.MonkeyPatch, ceiling: int | None, before: float, inside: float
) -> None:
    allocator = Allocator(monkeypatch, before)
    with spending(Budget(ceiling=ceiling), choose_device("auto")) as gauge:
        assert allocator.fraction == inside
        assert gauge.counts
    assert allocator.fraction == before
    with pytest.raises(KeyError), spending(Budget(ceiling=GIB), choose_device("cuda:1")):
        raise KeyError
    assert allocator.fraction == before

"""What a run may take on its device, what its plan expects, and what it really takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from plafond.memory.virtual import VirtualGpu, virtual_gpu


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The memory side of a run.

    Args:
        ceiling: most bytes: live bytes on the virtual GPU of the CPU, reserved bytes on CUDA; None for no limit.
        predicted: the plan's peak of allocated bytes for training on each bucket, as ``1024x768``.
    """

    ceiling: int | None = None
    predicted: Mapping[str, int] = field(default_factory=dict)


class Gauge:
    """The most bytes allocated since it was last asked; None where nobody counts."""

    def __init__(self, device: torch.device, gpu: VirtualGpu | None = None):
        self.device, self.gpu = device, gpu

    def read(self) -> int | None:
        """The peak, which then starts anew."""
        if self.gpu is not None:
            return self.gpu.reset_peak()
        if self.device.type != "cuda":
            return None
        peak = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak


@contextmanager
def spending(budget: Budget, device: torch.device) -> Iterator[Gauge]:
    """Hold `device` to the budget inside the ``with`` block.

    On CUDA the allocator itself keeps the limit, so that an allocation above it fails at once instead of spilling to
    main memory, as some drivers let it.
    """
    if device.type == "cpu":
        with virtual_gpu(budget.ceiling) as gpu:
            yield Gauge(device, gpu)
        return
    if budget.ceiling is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget.ceiling / total), device)
    yield Gauge(device)

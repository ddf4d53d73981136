"""What a run may take on its device, what its plan expects, and what it really takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from plafond.activations.plan import Activations
from plafond.memory.virtual import VirtualGpu, virtual_gpu


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The memory side of a run.

    Args:
        ceiling: most bytes: live bytes on the virtual GPU of the CPU, reserved bytes on CUDA; None for no limit.
        predicted: the plan's peak of allocated bytes for training on each bucket, as ``1024x768``.
        activations: what blocks keep on each bucket; what the job asks for when not given.
        recover: after an out-of-memory go on in a leaner way; False lets it end the run, to see what was predicted.
        tour: begin with the fullest batch of every bucket, to see whether each fits; then the run's order.
    """

    ceiling: int | None = None
    predicted: Mapping[str, int] = field(default_factory=dict)
    activations: Activations | None = None
    recover: bool = True
    tour: bool = False


class Gauge:
    """The most bytes allocated since it was last asked; None where nobody counts."""

    def __init__(self, device: torch.device, gpu: VirtualGpu | None = None):
        self.device, self.gpu = device, gpu

    @property
    def counts(self) -> bool:
        """Whether anybody counts, and so may refuse an allocation."""
        return self.gpu is not None or self.device.type == "cuda"

    def room(self) -> int | None:
        """Bytes that this process may have in all, as things are now; None where nobody counts.

        On a GPU less is left of it when another process takes more.
        """
        if self.gpu is not None:
            return self.gpu.ceiling
        if self.device.type != "cuda":
            return None
        free, total = torch.cuda.mem_get_info(self.device)
        limit = int(torch.cuda.get_per_process_memory_fraction(self.device) * total)
        return min(limit, free + torch.cuda.memory_reserved(self.device))

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
    # The allocator compares what it has reserved with this fraction of the card's whole memory. A fraction that was
    # set already, by the user's PYTORCH_ALLOC_CONF for instance, stays the upper limit and comes back afterwards.
    before = torch.cuda.get_per_process_memory_fraction(device)
    if budget.ceiling is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(before, budget.ceiling / total), device)
    try:
        yield Gauge(device)
    finally:
        torch.cuda.set_per_process_memory_fraction(before, device)

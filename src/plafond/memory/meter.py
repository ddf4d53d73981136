"""What a process really takes on a GPU: by torch's allocator, and by the driver, which sees the context, too."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml
import torch


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Peak bytes; `device` is None where the driver does not tell."""

    allocated: int
    reserved: int
    device: int | None


class Meter:
    """Measures on one GPU.

    Args:
        device: with its index. Nothing of this process may be on it yet: where the driver does not tell processes
            apart (in most containers, on Windows), what it shows now is taken off what it shows later.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.before = self._whole()

    def measure(self, run: Callable[[], object]) -> Taken:
        """Run something on an empty device; the peak is sought from the start, or from `mark` on if it is called."""
        torch.cuda.synchronize(self.device)
        gc.collect()
        # cuBLAS keeps its workspaces for good, and each phase is predicted with its own
        torch._C._cuda_clearCublasWorkspaces()
        self.mark()
        run()
        torch.cuda.synchronize(self.device)
        reserved = torch.cuda.max_memory_reserved(self.device)
        overhead = self.overhead()
        return Taken(
            allocated=torch.cuda.max_memory_allocated(self.device),
            reserved=reserved,
            device=None if overhead is None else reserved + overhead,
        )

    def mark(self) -> None:
        """The peak is sought from here on."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def overhead(self) -> int | None:
        """Bytes of this process beside its allocator at the moment: context and loaded kernels."""
        reserved = torch.cuda.memory_reserved(self.device)
        whole = self._whole()
        others = None if whole is None or self.before is None else whole - self.before
        # a container's own process number may be another process's on the host
        found = [size for size in (self._own(), others) if size is not None and size >= reserved]
        return found[0] - reserved if found else None

    def _own(self) -> int | None:
        """Bytes of this process by the driver's list of processes."""
        running = self._asked(pynvml.nvmlDeviceGetComputeRunningProcesses) or []
        return next((one.usedGpuMemory for one in running if one.pid == os.getpid()), None)

    def _whole(self) -> int | None:
        """Bytes of all processes together."""
        memory = self._asked(pynvml.nvmlDeviceGetMemoryInfo)
        return None if memory is None else int(memory.used)

    def _asked(self, question: Callable[[Any], Any]) -> Any:
        """What the driver answers about the device; None where it does not."""
        try:
            pynvml.nvmlInit()
            # torch's own way from its numbering, which CUDA_VISIBLE_DEVICES changes, to NVML's; makes no context
            index = torch.cuda._get_nvml_device_index(self.device)
            return question(pynvml.nvmlDeviceGetHandleByIndex(index))
        except (pynvml.NVMLError, RuntimeError):
            return None

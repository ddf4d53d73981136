"""The ceiling of a job of the queue, without touching the device: a plan must not take memory from what is planned."""

from __future__ import annotations

from plafond.jobs.queue import Where
from plafond.memory.calibration import with_overhead
from plafond.memory.gpus import Ceiling, catalogued, context_overhead
from plafond.plan.terminal import ceiling_of, free_on, no_ceiling


def is_virtual(where: Where) -> bool:
    """Whether a plan is for a virtual GPU: on the CPU, unless a card is named."""
    return where.device == "cpu" and where.gpu is None


def ceiling_at(where: Where) -> Ceiling:
    """What a job may take: what is asked for, else what the driver says is free, else without limit on the CPU.

    Raises:
        UsageError: the ceiling cannot be read.
    """
    virtual = is_virtual(where)
    if where.vram or where.gpu:
        return ceiling_of(where.vram, where.gpu, virtual=virtual)
    if virtual:
        return no_ceiling(virtual=True)
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(where.device.partition(":")[2] or 0))
        name = str(pynvml.nvmlDeviceGetName(handle))
        free = int(pynvml.nvmlDeviceGetMemoryInfo(handle).free)
    finally:
        pynvml.nvmlShutdown()
    found = Ceiling(free, context_overhead(), free_on(name, free), catalogued(name))
    return with_overhead(found, name)


def fixed_ceiling(where: Where) -> int | None:
    """Bytes of a ceiling that is asked for; None where the device's own memory is all there is to say."""
    if where.vram is None and where.gpu is None:
        return None
    return ceiling_of(where.vram, where.gpu, virtual=is_virtual(where)).bytes

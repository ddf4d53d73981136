"""Which jobs a card holds at once: those whose ceilings fit beside each other.

A ceiling is a promise that needs no watching. A job whose plan does not fit into it is refused before it loads a
weight; while it runs, the allocator keeps it; and it counts what the process takes beside the allocator. Nothing here
needs torch or touches a card.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from plafond.errors import UsageError
from plafond.jobs.devices import CPU
from plafond.jobs.store import ACTIVE, QUEUED, TRAIN, Entry
from plafond.memory.gpus import ceiling_for

Held = tuple[int | None, int]
"""A running job: number of its process, where it is known, and the most bytes that it may take."""


def share(entry: Entry) -> int | None:
    """Bytes of its card that a job never passes; None where it needs the card for itself.

    That is a job without a ceiling of its own, one that is forced past its plan, an experiment, and one that was
    killed without having got further: beside another it may have been too much for main memory.
    """
    asked = entry.vram or entry.gpu
    if not asked or entry.kind != TRAIN or entry.force or entry.fruitless:
        return None
    try:
        return ceiling_for(entry.vram, entry.gpu).bytes
    except UsageError:
        return None  # written by another version's catalogue; the run says so


class Wait(NamedTuple):
    """What a job waits for: so many bytes of a card, or None for all of it."""

    device: str
    bytes: int | None


def waits(entries: Sequence[Entry]) -> dict[int, Wait]:
    """What the next job of each card that is at work waits for, by its number.

    Args:
        entries: all jobs, in the order of `Store.jobs`.
    """
    busy = {entry.device for entry in entries if entry.state in ACTIVE} - {CPU}
    found: dict[int, Wait] = {}
    for entry in entries:
        if entry.state == QUEUED and entry.device in busy:
            found[entry.id] = Wait(entry.device, share(entry))
            busy.remove(entry.device)
    return found


class Card:
    """The memory of a card of NVIDIA's that the queue's jobs may share.

    Args:
        device: ``cuda:N``, as torch counts under ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
    """

    def __init__(self, device: str):
        self._number = int(device.partition(":")[2])
        self._before: int | None = None
        """Bytes in use when last no job ran."""

    def capacity(self, held: Sequence[Held]) -> int:
        """Bytes that jobs may take together: all but what others take. 0 where several cannot share the card.

        Where the driver does not tell processes apart (in containers, on Windows), others take what was in use when
        no job ran, or more; where nobody looked then, all that is in use counts as theirs.

        Args:
            held: the jobs that run.
        """
        found = self._look()
        if found is None:
            return 0
        total, used, listed = found
        if not held:
            self._before = used
        pairs = [(None if number is None else listed.get(number), most) for number, most in held]
        if self._before is not None and any(size is None for size, _ in pairs):
            own = sum(most if size is None else min(size, most) for size, most in pairs)
            return total - max(used - own, self._before)
        own = sum(min(size or 0, most) for size, most in pairs)
        return total - max(0, used - own)

    def _look(self) -> tuple[int, int, dict[int, int]] | None:
        """Bytes in all, bytes in use, and bytes by process as far as the driver lists them; None where it does not."""
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        try:
            handle = self._handle()
            if handle is None or not _is_shared(handle):
                return None
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            processes = []
            with suppress(pynvml.NVMLError):
                processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except pynvml.NVMLError:
            return None
        finally:
            pynvml.nvmlShutdown()
        listed = {int(one.pid): int(one.usedGpuMemory) for one in processes if one.usedGpuMemory}
        # what the driver keeps for itself is neither used nor free by its own account
        return int(memory.total), int(memory.total) - int(memory.free), listed

    def _handle(self) -> Any:
        """NVML's handle; None for a number that the environment hides from CUDA."""
        import pynvml

        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return pynvml.nvmlDeviceGetHandleByIndex(self._number)
        names = [name.strip() for name in visible.split(",")]
        if self._number >= len(names):
            return None
        name = names[self._number]
        if name.isdecimal():
            return pynvml.nvmlDeviceGetHandleByIndex(int(name))
        return pynvml.nvmlDeviceGetHandleByUUID(name)


def _is_shared(handle: Any) -> bool:
    """Whether several processes may work on a card, and see all of its memory."""
    import pynvml

    if pynvml.nvmlDeviceGetComputeMode(handle) != pynvml.NVML_COMPUTEMODE_DEFAULT:
        return False
    try:
        in_slices, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return True  # a card that cannot be cut into slices
    return not in_slices

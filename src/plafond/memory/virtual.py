"""A GPU of any size on the CPU: a ledger that refuses to go above a ceiling.

Inside `virtual_gpu` everything that would lie on a GPU is counted, and an allocation that would pass the ceiling
raises ``torch.OutOfMemoryError`` with CUDA's own sentences, so that logs look alike and what reads them works on both.
There is no context and no caching: the ceiling is on live bytes, exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from contextlib import contextmanager

import torch

from plafond.memory.ledger import Ledger
from plafond.memory.residence import counting
from plafond.memory.trace import GRANULE, Block, Event

_UNITS = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


class VirtualGpu(Ledger):  # type: ignore[no-untyped-call]
    """Counts the CPU tensors of this thread and stops at `ceiling` bytes.

    Args:
        ceiling: most live bytes.
        granule: sizes are rounded up to multiples of it.
        faults: numbers of allocations, counted from 0, that are refused whatever the ceiling.

    Attributes:
        ceiling: may change while it counts.
        peak: the most live bytes since `reset_peak`.
        allocations: so many were asked for.
    """

    def __init__(self, ceiling: int, *, granule: int = GRANULE, faults: Container[int] = ()):
        super().__init__("cpu", granule=granule)
        self.ceiling, self.faults = ceiling, faults
        self.allocations = 0
        self.peak = 0
        self._made = 0
        # A run has millions of allocations: only those that live are kept, and the newest events.
        self.trace.sizes, self.trace.kinds, self.trace.owners = {}, {}, {}  # type: ignore[assignment]
        self.trace.events = deque(maxlen=16)  # type: ignore[assignment]

    def grown(self, size: int) -> None:
        """Refuse an allocation above the ceiling; it has been made and dies with the exception."""
        number, self.allocations = self.allocations, self.allocations + 1
        if self.live > self.ceiling or number in self.faults:
            raise torch.OutOfMemoryError(self._message(size))
        self.peak = max(self.peak, self.live)

    def _note(self, size: int, kind: str, owner: Block | None) -> int:
        number = self._made
        self._made += 1
        self.trace.sizes[number], self.trace.kinds[number], self.trace.owners[number] = size, kind, owner
        return number

    def _free(self, key: int) -> None:
        number = self._numbers[key]
        super()._free(key)
        del self.trace.sizes[number], self.trace.kinds[number], self.trace.owners[number]

    def reset_peak(self) -> int:
        """The peak so far, and begin anew."""
        peak, self.peak = self.peak, self.live
        return peak

    def _message(self, size: int) -> str:
        used = self.live - size
        event = self.trace.events[-1]
        return (
            f"CUDA out of memory. Tried to allocate {shown(size)}. GPU 0 has a total capacity of"
            f" {shown(self.ceiling)} of which {shown(self.ceiling - used)} is free. Process has {shown(used)} memory"
            f" in use. Of the allocated memory {shown(used)} is allocated by PyTorch, and 0 bytes is reserved by"
            f" PyTorch but unallocated. (virtual GPU on the CPU; {_moment(event)})"
        )


def _moment(event: Event) -> str:
    return f"in {event.moment}"


def shown(size: int) -> str:
    """Bytes as CUDA writes them: ``20.00 MiB``."""
    for unit, factor in _UNITS:
        if size >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size} bytes"


@contextmanager
def virtual_gpu(ceiling: int | None) -> Iterator[VirtualGpu | None]:
    """A virtual GPU of `ceiling` bytes inside the ``with`` block; none without a ceiling."""
    if ceiling is None:
        yield None
        return
    with counting(VirtualGpu(ceiling)) as gpu:
        assert isinstance(gpu, VirtualGpu)
        yield gpu

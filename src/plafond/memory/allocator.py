"""What PyTorch's CUDA caching allocator would reserve for a list of allocations.

A replay of the rules in torch 2.13 (``c10/core/AllocatorConfig.h`` for the constants,
``c10/cuda/CUDACachingAllocator.cpp`` for the logic), for one device and one stream:

- sizes are rounded up to 512 bytes; up to 1 MiB is the small pool, the rest the large pool;
- the smallest free block that is large enough serves a request, the one of the lowest address among equals;
- in **default** mode a request that no free block serves asks the driver for a segment: 2 MiB for small ones, 20 MiB
  below 10 MiB, a multiple of 2 MiB from there on;
- a block is split when the rest is 512 bytes or more (small pool, expandable segments) or more than 1 MiB (large
  pool, default mode); otherwise the whole block counts as allocated;
- a freed block merges with its free neighbours of the same segment and stays reserved;
- in **expandable** mode each pool is one virtual range, to which pages of 2 MiB (small) or 20 MiB (large) are mapped
  at the lowest address where the request fits;
- before it gives up, the allocator returns what it can (unsplit free segments; whole free pages) and tries again.

Not modelled, because plafond does not use them: several streams, CUDA graphs, ``max_split_size_mb``,
``roundup_power2_divisions`` and ``garbage_collection_threshold``. Where the driver puts a segment is not knowable;
segments are taken to have rising addresses, which only decides between free blocks of equal size.

All sizes are bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

MIB = 1024**2

MIN_BLOCK = 512
SMALL_SIZE = 1 * MIB
"""Largest request of the small pool."""
SMALL_SEGMENT = 2 * MIB
"""Segment, and page, of the small pool."""
LARGE_SEGMENT = 20 * MIB
"""Segment for requests below `MIN_LARGE`, and page of the large pool."""
MIN_LARGE = 10 * MIB
"""From here on a request has a segment of its own size."""
ROUND_LARGE = 2 * MIB

Mode = Literal["default", "expandable"]

Event = tuple[int, int]
"""``(id, bytes)``: positive bytes allocate under that id, negative ones free it; zero bytes do nothing."""

EMPTY_CACHE: Event = (-1, 0)
"""The event of a call to ``torch.cuda.empty_cache()``."""

# Whole pages of both sizes. Never short, where torch opens a second range when 9/8 of the card are used up.
_RANGE = LARGE_SEGMENT * 2**34


def round_size(size: int) -> int:
    """Bytes that a request of `size` bytes takes at least."""
    return max(MIN_BLOCK, (size + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK)


def segment_size(rounded: int) -> int:
    """Bytes asked of the driver for a request of `rounded` bytes that no free block serves (default mode)."""
    if rounded <= SMALL_SIZE:
        return SMALL_SEGMENT
    if rounded < MIN_LARGE:
        return LARGE_SEGMENT
    return (rounded + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE


@dataclass(frozen=True, slots=True)
class Reserved:
    """The outcome of a replay; bytes, and indices into the list of events.

    Attributes:
        allocated_peak: highest sum of the blocks in use, as ``torch.cuda.max_memory_allocated`` counts it.
        reserved_peak: highest sum of what was held from the driver, as ``torch.cuda.max_memory_reserved`` counts it.
        oom_at: the event that could not be served under the ceiling, where the replay stopped.
        live_peak: highest sum of the requests, each rounded to 512 bytes.
        allocated_peak_at: the event that reached `allocated_peak` first.
        reserved_peak_at: the event that reached `reserved_peak` first.
        allocated: in use at the end.
        reserved: held at the end.
        retries: how often the cache was given back to serve a request; each costs a stop of the device.
    """

    allocated_peak: int
    reserved_peak: int
    oom_at: int | None
    live_peak: int
    allocated_peak_at: int | None
    reserved_peak_at: int | None
    allocated: int
    reserved: int
    retries: int


def replay(events: Iterable[Event], mode: Mode = "default", ceiling: int | None = None) -> Reserved:
    """Replay `events` on an empty device.

    Args:
        events: allocations and frees in order, see `Event`; `EMPTY_CACHE` gives the cache back.
        mode: ``expandable`` for ``PYTORCH_ALLOC_CONF=expandable_segments:True``.
        ceiling: most bytes that may be reserved; None for no limit.

    Raises:
        ValueError: an id is allocated twice, or freed without being allocated.
    """
    allocator = CachingAllocator(mode, ceiling)
    allocated_at = reserved_at = oom_at = None
    allocated_peak = reserved_peak = 0
    for index, event in enumerate(events):
        key, size = event
        if size > 0:
            if not allocator.alloc(key, size):
                oom_at = index
                break
            if allocator.allocated > allocated_peak:
                allocated_peak, allocated_at = allocator.allocated, index
            if allocator.reserved > reserved_peak:
                reserved_peak, reserved_at = allocator.reserved, index
        elif size < 0:
            allocator.free(key)
        elif event == EMPTY_CACHE:
            allocator.empty_cache()
    return Reserved(
        allocated_peak=allocated_peak,
        reserved_peak=max(reserved_peak, allocator.reserved_peak),
        oom_at=oom_at,
        live_peak=allocator.live_peak,
        allocated_peak_at=allocated_at,
        reserved_peak_at=reserved_at,
        allocated=allocator.allocated,
        reserved=allocator.reserved,
        retries=allocator.retries,
    )


class _Block:
    """A stretch of a segment or of a virtual range: in use, free, or (expandable mode) without memory behind it."""

    __slots__ = ("address", "free", "mapped", "next", "prev", "size")

    def __init__(self, address: int, size: int, mapped: bool = True):
        self.address = address
        self.size = size
        self.free = True
        self.mapped = mapped
        self.prev: _Block | None = None
        self.next: _Block | None = None

    def insert_after(self, block: _Block) -> None:
        """Link this new block behind `block`."""
        self.prev, self.next = block, block.next
        if block.next is not None:
            block.next.prev = self
        block.next = self

    def can_grow(self) -> bool:
        """Whether what lies behind it can be mapped."""
        return self.next is not None and not self.next.mapped

    def expandable_size(self) -> int:
        """Bytes that the block can grow to by mapping what lies behind it."""
        behind = self.next
        return self.size if behind is None or behind.mapped else self.size + behind.size


class _Pool:
    """Free blocks by size, unmapped ones by address."""

    __slots__ = ("free", "heads", "page", "small", "unmapped")

    def __init__(self, small: bool):
        self.small = small
        self.page = SMALL_SEGMENT if small else LARGE_SEGMENT
        self.free: list[tuple[int, int, _Block]] = []
        self.unmapped: list[tuple[int, _Block]] = []
        self.heads: dict[int, _Block] = {}

    def add(self, block: _Block) -> None:
        if block.mapped:
            insort(self.free, (block.size, block.address, block))
        else:
            insort(self.unmapped, (block.address, block))

    def remove(self, block: _Block) -> None:
        if block.mapped:
            del self.free[bisect_left(self.free, (block.size, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, (block.address,))]

    def merge(self, block: _Block) -> None:
        """Swallow the neighbours of `block`, which is in no list, where they are in the same state."""
        before, behind = block.prev, block.next
        if before is not None and before.free and before.mapped == block.mapped:
            self.remove(before)
            if before.prev is None:
                self.heads[before.address] = block
            block.address = before.address
            block.size += before.size
            block.prev = before.prev
            if block.prev is not None:
                block.prev.next = block
        if behind is not None and behind.free and behind.mapped == block.mapped:
            self.remove(behind)
            block.size += behind.size
            block.next = behind.next
            if block.next is not None:
                block.next.prev = block

    def best_fit(self, size: int, expandable: bool) -> _Block | None:
        """Take the smallest free block of at least `size` bytes out of the list, if there is one."""
        free = self.free
        index = bisect_left(free, (size,))
        if index == len(free):
            return None
        if expandable:
            # A block that can still grow counts as large as it can grow, so that it is kept for what needs it.
            # Only one before unmapped memory can: larger ones that cannot grow do not come into question otherwise.
            while index + 1 < len(free) and free[index][2].can_grow():
                if free[index + 1][2].expandable_size() >= free[index][2].expandable_size():
                    break
                index += 1
        return free.pop(index)[2]


class CachingAllocator:
    """The allocator's state; `replay` drives one over a list of events.

    Attributes:
        allocated: bytes of the blocks in use.
        reserved: bytes held from the driver.
        live: bytes of the requests in use, each rounded to 512.
        allocated_peak, reserved_peak, live_peak: the highest of each since the start or `reset_peaks`.
        retries: how often the cache was given back to serve a request.
    """

    def __init__(self, mode: Mode = "default", ceiling: int | None = None):
        self.expandable = mode == "expandable"
        self.ceiling = ceiling
        self.allocated = self.reserved = self.live = 0
        self.allocated_peak = self.reserved_peak = self.live_peak = 0
        self.retries = 0
        self._pools = (_Pool(small=True), _Pool(small=False))
        self._used: dict[int, tuple[_Block, _Pool, int]] = {}
        self._next_address = 0
        if self.expandable:
            for pool in self._pools:
                block = _Block(self._next_address, _RANGE, mapped=False)
                self._next_address += _RANGE
                pool.heads[block.address] = block
                pool.add(block)

    def alloc(self, key: int, size: int) -> bool:
        """Allocate `size` bytes, more than zero, under `key`; False where the ceiling does not allow it."""
        if key in self._used:
            raise ValueError(f"id {key} is allocated twice")
        rounded = (size + MIN_BLOCK - 1) // MIN_BLOCK * MIN_BLOCK
        pool = self._pools[rounded > SMALL_SIZE]
        block = pool.best_fit(rounded, self.expandable) or self._grow(pool, rounded)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._grow(pool, rounded)
            if block is None:
                return False
        rest = block.size - rounded
        if rest >= MIN_BLOCK if pool.small or self.expandable else rest > SMALL_SIZE:
            remainder = _Block(block.address + rounded, rest)
            remainder.insert_after(block)
            block.size = rounded
            pool.add(remainder)
        block.free = False
        self._used[key] = (block, pool, rounded)
        self.live += rounded
        self.allocated += block.size
        if self.live > self.live_peak:
            self.live_peak = self.live
        if self.allocated > self.allocated_peak:
            self.allocated_peak = self.allocated
        return True

    def free(self, key: int) -> None:
        """Free what was allocated under `key`; its block stays reserved."""
        try:
            block, pool, rounded = self._used.pop(key)
        except KeyError:
            raise ValueError(f"id {key} is freed without being allocated") from None
        self.live -= rounded
        self.allocated -= block.size
        block.free = True
        pool.merge(block)
        pool.add(block)

    def empty_cache(self) -> None:
        """Give the driver back what can be given: segments without a block in use, or whole free pages."""
        for pool in self._pools:
            for _, _, block in pool.free.copy():
                if self.expandable:
                    self._unmap(pool, block)
                elif block.prev is None and block.next is None:
                    pool.remove(block)
                    del pool.heads[block.address]
                    self.reserved -= block.size

    def reset_peaks(self) -> None:
        """Count the peaks anew from what is in use now."""
        self.allocated_peak, self.reserved_peak, self.live_peak = self.allocated, self.reserved, self.live

    def blocks(self) -> Iterator[tuple[int, int, Literal["used", "free"]]]:
        """Address, bytes and state of every block that has memory behind it, segment by segment."""
        for pool in self._pools:
            for head in pool.heads.values():
                block: _Block | None = head
                while block is not None:
                    if block.mapped:
                        yield block.address, block.size, "free" if block.free else "used"
                    block = block.next

    def _grow(self, pool: _Pool, rounded: int) -> _Block | None:
        """A free block, in no list, of at least `rounded` bytes from the driver; None past the ceiling."""
        # torch compares the segment size with the limit in both modes, though fewer pages may be missing.
        size = segment_size(rounded)
        if self.ceiling is not None and self.reserved + size > self.ceiling:
            return None
        if self.expandable:
            return self._map(pool, rounded)
        block = _Block(self._next_address, size)
        # The gap keeps segments apart for whoever looks at the addresses.
        self._next_address += size + SMALL_SEGMENT
        pool.heads[block.address] = block
        self._reserve(size)
        return block

    def _map(self, pool: _Pool, size: int) -> _Block | None:
        """Map pages at the lowest address where `size` bytes fit into free and unmapped blocks in a row."""
        first = _lowest_room(pool, size)
        block: _Block | None = first
        if first.mapped:
            pool.remove(first)
        else:
            block = self._map_pages(pool, first, min(first.size, size))
        while block is not None and block.size < size:
            behind = block.next
            assert behind is not None
            pool.add(block)
            block = self._map_pages(pool, behind, min(size - block.size, behind.size))
        return block

    def _map_pages(self, pool: _Pool, block: _Block, size: int) -> _Block | None:
        """Put pages behind the first `size` bytes of an unmapped block; the merged block is in no list."""
        mapped = (size + pool.page - 1) // pool.page * pool.page
        if self.ceiling is not None and self.reserved + mapped > self.ceiling:
            return None
        pool.remove(block)
        if mapped < block.size:
            rest = _Block(block.address + mapped, block.size - mapped, mapped=False)
            rest.insert_after(block)
            pool.add(rest)
            block.size = mapped
        block.mapped = True
        pool.merge(block)
        self._reserve(mapped)
        return block

    def _unmap(self, pool: _Pool, block: _Block) -> None:
        """Take the whole pages of a free block away; what is left before and behind them stays free."""
        start = (block.address + pool.page - 1) // pool.page * pool.page
        end = (block.address + block.size) // pool.page * pool.page
        if start >= end:
            return
        pool.remove(block)
        if end < block.address + block.size:
            after = _Block(end, block.address + block.size - end)
            after.insert_after(block)
            pool.add(after)
        if start > block.address:
            middle = _Block(start, end - start, mapped=False)
            middle.insert_after(block)
            block.size = start - block.address
            pool.add(block)
            block = middle
        else:
            block.size = end - start
            block.mapped = False
        self.reserved -= end - start
        pool.merge(block)
        pool.add(block)

    def _reserve(self, size: int) -> None:
        self.reserved += size
        if self.reserved > self.reserved_peak:
            self.reserved_peak = self.reserved


def _lowest_room(pool: _Pool, size: int) -> _Block:
    """The first block of the lowest row of free and unmapped blocks that together have `size` bytes."""
    for _, first in pool.unmapped:
        if first.prev is not None and first.prev.free:
            first = first.prev
        room = 0
        block: _Block | None = first
        while block is not None and block.free and room < size:
            room += block.size
            block = block.next
        if room >= size:
            return first
    raise AssertionError("the virtual range is endless")

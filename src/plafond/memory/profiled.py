"""What code really takes on the CPU: torch's profiler of its allocator, which shares no code with the ledger.

The profiler reports every allocation and free, and the operation in which it happened; their running sum, from an empty
start, is the truth. What a kernel of the CPU allocates and frees before it returns (packed copies of matrices, tiles of
attention scores) depends on library and processor, and no GPU has it. It is told apart: allocated and freed within one
kernel of the dispatcher.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function

from plafond.memory import residence

START = "measured from here"
MAIN_MEMORY = "main memory"
COMPOSITES = frozenset(torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))
"""Operations that only call others: what these allocate is no kernel's own."""


@dataclass(frozen=True)
class Measured:
    """Peak bytes as the profiler has them.

    Args:
        tensors: of what outlives the kernel that it was allocated in.
        everything: with what kernels allocate and free inside themselves.
    """

    tensors: int
    everything: int


def mark() -> None:
    """Let the peak be sought from here on."""
    with record_function(START):
        pass


def measure(run: Callable[[], object]) -> Measured:
    """Run something inside torch's profiler; the peak is sought from the mark on, if `run` sets one."""
    gc.collect()
    recorder = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with recorder as profiler, residence.apart(_main_memory), _random_states_marked():
        run()
    start, changes = _changes(profiler.profiler.kineto_results.experimental_event_tree())
    inside = _inside(changes)
    everything = _peak(((change.when, change.size) for change in changes), start)
    outside = (change for index, change in enumerate(changes) if index not in inside)
    return Measured(_peak(((change.when, change.size) for change in outside), start), everything)


def _main_memory() -> record_function:
    return record_function(MAIN_MEMORY)


@contextmanager
def _random_states_marked() -> Iterator[None]:
    """Mark what checkpointing keeps of the random state: on a GPU, too, it lies in main memory."""
    read = torch.get_rng_state

    def marked() -> torch.Tensor:
        with _main_memory():
            return read()

    torch.get_rng_state = marked
    try:
        yield
    finally:
        torch.get_rng_state = read


@dataclass(frozen=True)
class _Change:
    """One allocation (`size` above 0) or free, and the kernel during which it happened, if any."""

    when: int
    size: int
    address: int
    kernel: int | None
    counts: bool


def _changes(roots: Iterable[Any]) -> tuple[int, list[_Change]]:
    """When the measured part starts, and what the allocator did, in order."""
    start, changes = 0, []
    stack = [(root, None, True) for root in roots]
    while stack:
        event, kernel, counts = stack.pop()
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            changes.append(_Change(event.start_time_ns, fields.alloc_size, fields.ptr, kernel, counts))
        elif event.name == START:
            start = max(start, event.start_time_ns)
        elif event.name == MAIN_MEMORY:
            counts = False
        elif kernel is None and event.name.startswith("aten::") and _overload(event) not in COMPOSITES:
            kernel = event.id
        stack += [(child, kernel, counts) for child in event.children]
    changes.sort(key=lambda change: change.when)
    return start, changes


def _overload(event: Any) -> str:
    return f"{event.name}.{event.overload_name}" if event.overload_name else str(event.name)


def _inside(changes: Sequence[_Change]) -> set[int]:
    """The changes that nobody outside of one kernel can see, by their place, and those of main memory."""
    found: set[int] = set()
    live: dict[int, int] = {}
    for index, change in enumerate(changes):
        if change.size > 0:
            live[change.address] = index
            continue
        made = live.pop(change.address, None)
        if made is None:
            continue
        first = changes[made]
        if not first.counts or (first.kernel is not None and first.kernel == change.kernel):
            found |= {made, index}
    return found | {place for place in live.values() if not changes[place].counts}


def _peak(changes: Iterable[tuple[int, int]], start: int) -> int:
    live = peak = 0
    for when, size in changes:
        live += size
        if when >= start:
            peak = max(peak, live)
    return peak

"""Stretches of a dry run that come again: what they did is written down once and repeated without doing it.

Text encoders arrive in every phase, and encode in every step, always in the same way. A `Passage` is what such work
added to a trace; repeating it adds the same events under new numbers, and lets the ledger follow the tensors that are
left. What cannot be repeated exactly is not written down: `record` then gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from plafond.memory.ledger import flat
from plafond.memory.meta import MetaLedger
from plafond.memory.residence import host_memory
from plafond.memory.trace import Block, Event

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Passage:
    """What some work added to a trace.

    Args:
        sizes, kinds, owners: of its allocations.
        events: counted from its first allocation; no block: the one that is handled when it is repeated.
        left: for each tensor that the work left, which allocation it is; None for those in main memory.
        flops: added operations, by block.
        workspaces: of matrix products, at the end.
        handled: the block that was handled last; None: as before.
    """

    sizes: Sequence[int]
    kinds: Sequence[str]
    owners: Sequence[Block | None]
    events: Sequence[Event]
    left: Sequence[int | None]
    flops: dict[Block | None, int]
    workspaces: int
    handled: Block | None


def record(
    ledger: MetaLedger, work: Callable[[], Result], tensors: Callable[[Result], Iterable[Tensor]]
) -> tuple[Result, Passage | None]:
    """Do `work`, whose result holds `tensors`, and write down what it did.

    None when it was done for some block, touched what was there before, or left something that is not in `tensors`.
    """
    trace = ledger.trace
    alone = ledger.handled() is None
    allocations, begin, start = len(trace.sizes), len(trace.events), trace.start
    stage, flops, before = ledger.stage, dict(trace.flops), list(trace.kinds)
    result = work()
    events = trace.events[begin:]
    left = [ledger.number(tensor) for tensor in _storages(tensors(result))]
    alive = {event.allocation for event in events if event.allocates}
    alive -= {event.allocation for event in events if not event.allocates}
    repeatable = (
        alone
        and (trace.start, ledger.stage) == (start, stage)
        and trace.kinds[:allocations] == before
        and all(event.allocation >= allocations for event in events)
        and all(number is None or number >= allocations for number in left)
        and alive & ledger.followed() <= set(left)
    )
    if not repeatable:
        return result, None
    return result, Passage(
        sizes=trace.sizes[allocations:],
        kinds=trace.kinds[allocations:],
        owners=trace.owners[allocations:],
        events=[event._replace(allocation=event.allocation - allocations) for event in events],
        left=[None if number is None else number - allocations for number in left],
        flops={
            block: count - flops.get(block, 0)
            for block, count in trace.flops.items()
            if count != flops.get(block, 0)
        },
        workspaces=ledger.workspaces,
        handled=ledger.handled(),
    )


def repeat(ledger: MetaLedger, passage: Passage, tensors: Iterable[Tensor]) -> None:
    """Add a passage to the trace again; `tensors` are those that it left when it was written down, or like them."""
    trace, block = ledger.trace, ledger.handled()
    first = len(trace.sizes)
    trace.sizes += passage.sizes
    trace.kinds += passage.kinds
    trace.owners += [block if owner is None else owner for owner in passage.owners]
    for event in passage.events:
        size = passage.sizes[event.allocation]
        ledger.live += size if event.allocates else -size
        trace.events.append(
            Event(
                first + event.allocation,
                event.allocates,
                event.stage,
                block if event.block is None else event.block,
            )
        )
    for owner, count in passage.flops.items():
        trace.flops[owner] = trace.flops.get(owner, 0) + count
    ledger.workspaces = passage.workspaces
    if passage.handled is not None:
        ledger.handle(passage.handled)
    for tensor, number in zip(_storages(tensors), passage.left, strict=True):
        if number is not None:
            ledger.follow(tensor, first + number)


class Passages:
    """Passages by what they are; a key says everything that the work depends on, except for the ledger."""

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[Any, Passage]] = {}

    def lasting(
        self,
        key: Any,
        ledger: MetaLedger,
        work: Callable[[], Result],
        tensors: Callable[[Result], Iterable[Tensor]],
    ) -> Result:
        """`work`, whose result stays and is used again when it is asked for again."""
        whole = (key, _conditions(ledger))
        if whole in self._kept:
            kept: Result = self._kept[whole][0]
            repeat(ledger, self._kept[whole][1], tensors(kept))
            return kept
        result, found = record(ledger, work, tensors)
        if found is not None:
            self._kept[whole] = result, found
        return result

    def passing(
        self, key: Any, ledger: MetaLedger, work: Callable[[], dict[str, Tensor]]
    ) -> dict[str, Tensor]:
        """`work`, whose result is made anew each time: tensors of the same layout."""
        whole = (key, _conditions(ledger))
        if whole in self._kept:
            layouts, passage = self._kept[whole]
            with host_memory():
                made = {name: _made(layout) for name, layout in layouts.items()}
            repeat(ledger, passage, made.values())
            return made
        result, found = record(ledger, work, lambda result: result.values())
        left = [] if found is None else [number for number in found.left if number is not None]
        if found is not None and len(set(left)) == len(left):
            self._kept[whole] = {name: _layout(tensor) for name, tensor in result.items()}, found
        return result


def _conditions(ledger: MetaLedger) -> Any:
    return ledger.target, ledger.granule, ledger.stage, ledger.workspaces


def _storages(tensors: Iterable[Tensor]) -> Iterable[Tensor]:
    return (inner for tensor in tensors for inner in flat(tensor))


def _layout(tensor: Tensor) -> Any:
    """What `_made` makes a like of; main memory's tensors have data, and are handed out themselves."""
    return (tensor.shape, tensor.stride(), tensor.dtype) if tensor.is_meta else tensor


def _made(layout: Any) -> Tensor:
    if isinstance(layout, Tensor):
        return layout
    shape, stride, dtype = layout
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")

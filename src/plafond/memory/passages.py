"""Stretches of a dry run that come again: what they did is written down once and repeated without doing it.

Models arrive in every phase, and text encoders encode in every step, always in the same way. A `Passage` is what
such work added to a trace; repeating it adds the same events under new numbers, and lets the ledger follow the tensors
that are left. What cannot be repeated exactly is not written down: `record` then gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from plafond.memory.ledger import flat
from plafond.memory.meta import MetaLedger
from plafond.memory.residence import host_memory
from plafond.memory.trace import Block, Event

Result = TypeVar("Result")


HERE = Block("here", -1)
"""In a passage: the block that was handled before it, wherever it is repeated."""


@dataclass(frozen=True, kw_only=True)
class Passage:
    """What some work added to a trace.

    Args:
        sizes, kinds, owners: of its allocations.
        events: numbered from its first allocation.
        left: for each tensor that the work left, which allocation it is; None for those in main memory.
        flops: added operations, by block.
        workspaces: of matrix products, at the end.
        handled: the block that was handled last.
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

    None when it is part of a block, touches what was there before, or leaves something that is not in `tensors`.
    """
    if ledger.working_on() is not None:
        return work(), None
    trace, handled, stage = ledger.trace, ledger.handled, ledger.stage
    first, begin, start = len(trace.sizes), len(trace.events), trace.start
    flops, before = dict(trace.flops), list(trace.kinds)
    ledger.handled = HERE
    result = work()
    left = [ledger.number(tensor) for tensor in _inner(tensors(result))]
    alive: set[int] = set()
    for event in trace.events[begin:]:
        (alive.add if event.allocates else alive.discard)(event.allocation)
    repeatable = (
        (trace.start, ledger.stage) == (start, stage)
        and trace.kinds[:first] == before
        and all(event.allocation >= first for event in trace.events[begin:])
        and all(number is None or number >= first for number in left)
        and alive & ledger.followed() <= set(left)
    )
    passage = Passage(
        sizes=trace.sizes[first:],
        kinds=trace.kinds[first:],
        owners=trace.owners[first:],
        events=[event._replace(allocation=event.allocation - first) for event in trace.events[begin:]],
        left=[None if number is None else number - first for number in left],
        flops={
            block: count - flops.get(block, 0)
            for block, count in trace.flops.items()
            if count != flops.get(block, 0)
        },
        workspaces=ledger.workspaces,
        handled=ledger.handled,
    )
    trace.owners[first:] = [handled if owner is HERE else owner for owner in passage.owners]
    trace.events[begin:] = [
        event._replace(block=handled) if event.block is HERE else event for event in trace.events[begin:]
    ]
    if ledger.handled is HERE:
        ledger.handled = handled
    return result, passage if repeatable and HERE not in passage.flops else None


def repeat(ledger: MetaLedger, passage: Passage, tensors: Iterable[Tensor]) -> None:
    """Add a passage to the trace again; `tensors` are those that it left when it was written down, or like them."""
    trace, here = ledger.trace, ledger.handled
    first = len(trace.sizes)
    trace.sizes += passage.sizes
    trace.kinds += passage.kinds
    trace.owners += [here if owner is HERE else owner for owner in passage.owners]
    for number, allocates, stage, block in passage.events:
        ledger.live += passage.sizes[number] if allocates else -passage.sizes[number]
        trace.events.append(Event(first + number, allocates, stage, here if block is HERE else block))
    for owner, count in passage.flops.items():
        trace.flops[owner] = trace.flops.get(owner, 0) + count
    ledger.workspaces = passage.workspaces
    if passage.handled is not HERE:
        ledger.handled = passage.handled
    for tensor, left in zip(_inner(tensors), passage.left, strict=True):
        if left is not None:
            ledger.follow(tensor, first + left)


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

    def copied(
        self,
        key: Any,
        ledger: MetaLedger,
        work: Callable[[], Result],
        tensors: Callable[[Result], Iterable[Tensor]],
    ) -> Result:
        """`work`, whose result is changed afterwards: each time a copy of what it was at first."""
        whole = (key, _conditions(ledger))
        if whole in self._kept:
            with host_memory():
                made: Result = deepcopy(self._kept[whole][0])
            repeat(ledger, self._kept[whole][1], tensors(made))
            return made
        result, found = record(ledger, work, tensors)
        if found is not None:
            with host_memory():
                self._kept[whole] = deepcopy(result), found
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


def state_of(*modules: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers of modules."""
    for module in modules:
        yield from module.parameters()
        yield from module.buffers()


def _conditions(ledger: MetaLedger) -> Any:
    return ledger.target, ledger.granule, ledger.stage, ledger.workspaces


def _inner(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    for tensor in tensors:
        yield from flat(tensor)


def _layout(tensor: Tensor) -> Any:
    """What `_made` makes a like of; main memory's tensors have data, and are handed out themselves."""
    return (tensor.shape, tensor.stride(), tensor.dtype) if tensor.is_meta else tensor


def _made(layout: Any) -> Tensor:
    if isinstance(layout, Tensor):
        return layout
    shape, stride, dtype = layout
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")

"""From the trace of a shallow model to that of a deep one, event by event.

A model's blocks of one kind do the same, so a trace with four of each (first, two in the middle, last) says all there
is to know: the events of a middle block are repeated. This is exact, not a fit: the result is the list of events that
the deep model would have given, and can be replayed through an allocator or drawn. Where blocks end allocations of the
next but one, as streamed ones do, it takes six, so that the middle ones do not meet the first and the last.

The list of events is cut into *runs*: stretches that belong to one block. A *sweep* is a series of runs that walks
through a group of blocks in one direction (a forward pass, a backward pass, a step of the optimizer). An allocation is
then known by its sweep, its block and its place in that run; a free names the allocation it ends, by the distance
between the block that frees and the block that allocated. Copies are made of the second middle block where a sweep
rises and of the first where it falls, because what they refer to lies behind them.

When the two middle blocks do not match, or a sweep jumps, `deepen` refuses, and the caller traces the deep model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

from plafond.memory.trace import Block, Event, Trace

SHALLOW = 4
"""Blocks per group in a shallow model whose blocks end allocations of themselves and their neighbours alone."""
SHALLOW_STREAMED = 6
"""The same where they end those of the next but one, too."""


class NotUniform(Exception):
    """The blocks of a group do not all do the same."""


@dataclass
class _Run:
    """Events of one block in a row."""

    block: Block | None
    sweep: int = -1
    events: list[Event] = field(default_factory=list)
    allocations: list[int] = field(default_factory=list)
    starts: bool = False
    """The trace's `start` stands before this run."""


_Home = tuple[int, Block | None]
"""Where an allocation was made: sweep and block."""


@dataclass(frozen=True)
class _Score:
    """A run, ready to be copied.

    Args:
        sizes, kinds, owners: of its allocations.
        homes: where what it allocates and frees was made.
        meant: for each event its allocation: place among the homes, place among the home's allocations.
        allocates, stages, named: for each event; the last is its block.
    """

    sizes: list[int]
    kinds: list[str]
    owners: list[Block | None]
    homes: list[_Home]
    meant: list[tuple[int, int]]
    allocates: list[bool]
    stages: list[str]
    named: list[Block | None]


_event = partial(tuple.__new__, Event)
"""`Event` of a tuple, without a call in Python: there are hundreds of thousands."""


def deepen(trace: Trace, depths: Mapping[str, int], shallow: int = SHALLOW) -> Trace:
    """Lengthen a trace of so many blocks per group.

    Args:
        trace: of a model whose groups in `depths` have `shallow` blocks each.
        depths: blocks of each group in the deep model, at least `shallow`.
        shallow: `SHALLOW` or `SHALLOW_STREAMED`.

    Raises:
        NotUniform: the trace has not the structure that this rests on.
    """
    return _Deepening(trace, depths, shallow).result()


Segments = Mapping[str, Sequence[int]]
"""For each group of blocks the lengths of stretches of blocks that do the same, in the deep model."""


def shallow_lengths(lengths: Sequence[int], shallow: int = SHALLOW) -> list[int]:
    """The same stretches in the shallow model."""
    return [min(length, shallow) for length in lengths]


def deepen_segments(trace: Trace, segments: Segments, shallow: int = SHALLOW) -> Trace:
    """Lengthen a trace of a model whose groups fall into stretches of blocks that are alike.

    Args:
        trace: of the model whose stretches have `shallow_lengths`.
        segments: the lengths in the deep model.
        shallow: as for `deepen`.

    Raises:
        NotUniform: as `deepen`.
    """
    if all(len(lengths) == 1 for lengths in segments.values()):
        longer = {group: length for group, (length,) in segments.items() if length > shallow}
        return deepen(trace, longer, shallow)
    apart: dict[Block, Block] = {}
    together: dict[Block, Block] = {}
    depths: dict[str, int] = {}
    for group, lengths in segments.items():
        near = far = 0
        for number, length in enumerate(lengths):
            name = f"{group}/{number}"
            short = min(length, shallow)
            apart.update({Block(group, near + index): Block(name, index) for index in range(short)})
            together.update({Block(name, index): Block(group, far + index) for index in range(length)})
            if length > shallow:
                depths[name] = length
            near, far = near + short, far + length
    return _renamed(deepen(_renamed(trace, apart), depths, shallow), together)


def _renamed(trace: Trace, names: Mapping[Block, Block]) -> Trace:
    def name(block: Block | None) -> Block | None:
        return None if block is None else names.get(block, block)

    return Trace(
        sizes=trace.sizes,
        kinds=trace.kinds,
        owners=[name(owner) for owner in trace.owners],
        events=[event._replace(block=name(event.block)) for event in trace.events],
        start=trace.start,
        flops={name(block): flops for block, flops in trace.flops.items()},
    )


class _Deepening:
    """Every run is worked out once, into numbers relative to where its own allocations and those of other runs begin;
    copying it is then arithmetic."""

    def __init__(self, trace: Trace, depths: Mapping[str, int], shallow: int):
        self.trace, self.depths = trace, depths
        self.half = shallow // 2
        """Blocks before the middle, and after it; the first of them stands so far behind the last one copied."""
        self.runs = _cut(trace, depths)
        self.templates = _sweeps(trace, self.runs, self.half)
        self.deep = Trace()
        self.begins: dict[_Home, int] = {}
        self.alive: set[int] = set()
        homes: dict[int, tuple[_Home, int]] = {}
        for run in self.runs:
            for place, allocation in enumerate(run.allocations):
                homes[allocation] = (run.sweep, run.block), place
        self.scores = [_score(trace, run, homes) for run in self.runs]

    def result(self) -> Trace:
        for run, score in zip(self.runs, self.scores, strict=True):
            if run.starts:
                self.deep.start = len(self.deep.events)
            if run.block is None:
                self._emit(run, score, None)
                continue
            if self.templates.get(run.sweep) == run.block.index:
                # Copies come before the block they are copied from: what this one refers to then lies behind them, too.
                between = range(self.half, self.depths[run.block.group] - self.half)
                rises = run.block.index == self.half
                for index in between if rises else reversed(between):
                    self._emit(run, score, Block(run.block.group, index))
            self._emit(run, score, self._moved(run.block))
        if self.trace.start == len(self.trace.events):  # nothing happens after it
            self.deep.start = len(self.deep.events)
        for block, flops in self.trace.flops.items():
            self._count(block, flops)
        return self.deep

    def _moved(self, block: Block) -> Block:
        """Where a block of the shallow model stands in the deep one."""
        if block.index < self.half:
            return block
        return Block(block.group, block.index + self.depths[block.group] - 2 * self.half)

    def _emit(self, run: _Run, score: _Score, block: Block | None) -> None:
        deep = self.deep
        begin = self.begins[run.sweep, block] = len(deep.sizes)
        deep.sizes += score.sizes
        deep.kinds += score.kinds
        deep.owners += score.owners if block is None else [block] * len(score.sizes)
        self.alive.update(range(begin, len(deep.sizes)))
        begins = [self._begin(home, run.block, block) for home in score.homes]
        numbers = [begins[home] + place for home, place in score.meant]
        try:
            for number, allocates in zip(numbers, score.allocates, strict=True):
                if not allocates:
                    self.alive.remove(number)
        except KeyError:
            raise NotUniform(f"{block} frees what is not there") from None
        # stretches that are not lengthened keep their names
        named = score.named if block is None else repeat(block)
        deep.events += map(_event, zip(numbers, score.allocates, score.stages, named, strict=False))

    def _begin(self, home: _Home, old: Block | None, new: Block | None) -> int:
        """Where the allocations begin that block `new` means where block `old` of the shallow model means `home`."""
        sweep, target = home
        if target is not None:
            near = old is not None and new is not None and old.group == target.group
            if near and abs(target.index - old.index) < self.half:  # type: ignore[union-attr]
                target = Block(target.group, new.index + target.index - old.index)  # type: ignore[union-attr]
            else:
                target = self._moved(target)
        found = self.begins.get((sweep, target))
        if found is None:
            raise NotUniform(f"{new} frees what {target} does not hold")
        return found

    def _count(self, block: Block | None, flops: int) -> None:
        if block is None or block.group not in self.depths:
            self.deep.flops[block] = flops
            return
        self.deep.flops[self._moved(block)] = flops
        if block.index == self.half - 1:
            for index in range(self.half, self.depths[block.group] - self.half):
                self.deep.flops[Block(block.group, index)] = flops


def _cut(trace: Trace, depths: Mapping[str, int]) -> list[_Run]:
    runs: list[_Run] = []
    for index, event in enumerate(trace.events):
        block = event.block if event.block is not None and event.block.group in depths else None
        starts = index == trace.start and index > 0
        if not runs or runs[-1].block != block or starts:
            runs.append(_Run(block, starts=starts))
        runs[-1].events.append(event)
        if event.allocates:
            runs[-1].allocations.append(event.allocation)
    return runs


def _score(trace: Trace, run: _Run, made: Mapping[int, tuple[_Home, int]]) -> _Score:
    homes: dict[_Home, int] = {}
    meant = []
    for event in run.events:
        home, place = made[event.allocation]
        meant.append((homes.setdefault(home, len(homes)), place))
    return _Score(
        sizes=[trace.sizes[number] for number in run.allocations],
        kinds=[trace.kinds[number] for number in run.allocations],
        owners=[event.block for event in run.events if event.allocates],
        homes=list(homes),
        meant=meant,
        allocates=[event.allocates for event in run.events],
        stages=[event.stage for event in run.events],
        named=[event.block for event in run.events],
    )


def _sweeps(trace: Trace, runs: Sequence[_Run], half: int) -> dict[int, int]:
    """Number the runs' sweeps, and give for each sweep through the middle the block that is to be copied."""
    templates: dict[int, int] = {}
    last: _Run | None = None
    step = 0
    for number, run in enumerate(runs):
        run.sweep = number
        if run.block is None:
            continue
        if last is not None and last.block is not None and last.block.group == run.block.group:
            moved = run.block.index - last.block.index
            if abs(moved) == 1 and step in (0, moved):
                run.sweep, step = last.sweep, moved
                if {run.block.index, last.block.index} == {half - 1, half}:
                    _same(trace, last, run, gap=runs[number - 1] is not last)
                    templates[run.sweep] = run.block.index
            else:
                step = 0
        else:
            step = 0
        last = run
    for run in runs:
        middle = run.block is not None and half - 2 < run.block.index <= half
        if middle and run.sweep not in templates:
            raise NotUniform(f"{run.block} stands alone: {run.events[0].moment}")
    return templates


def _same(trace: Trace, first: _Run, second: _Run, *, gap: bool) -> None:
    if gap:
        raise NotUniform(f"something stands between {first.block} and {second.block}")
    one, two = (
        [(event.allocates, trace.sizes[event.allocation]) for event in run.events] for run in (first, second)
    )
    if one != two:
        raise NotUniform(f"{first.block} and {second.block} differ: {first.events[0].moment}")

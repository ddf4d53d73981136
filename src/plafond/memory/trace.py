"""What a ledger wrote down: allocations and frees in order, with labels. Pure data, without torch.

A `Trace` answers what the peak is, when it is reached, and what it is made of; `plafond.memory.depth` lengthens one
to a deeper model, and `plafond.memory.allocator` replays one. All sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import NamedTuple

GRANULE = 512
"""CUDA's caching allocator hands out multiples of this many bytes."""

MICROS = 2
"""Micro-batches of a step that a dry run traces: a third one finds and leaves what the second one does."""

KINDS = ("weights", "lora", "gradients", "optimizer", "activations", "temporaries", "inputs")
"""What bytes are: the first four stay from step to step. Activations are what forward passes make, temporaries what
backward passes (recomputation included) and updates make; averages of the weights count as optimizer."""

PERSISTENT = ("weights", "lora", "gradients", "optimizer")


class Block(NamedTuple):
    """One of several identical blocks of a model, as ``transformer_blocks.12``."""

    group: str
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here

    def __str__(self) -> str:
        return f"{self.group}.{self.index}"


class Event(NamedTuple):
    """One allocation or free.

    Attributes:
        allocation: index into `Trace.sizes`, `Trace.kinds` and `Trace.owners`.
        allocates: False for a free.
        stage: what was going on, as ``forward``.
        block: the block it belongs to: the one that is computed or, between blocks, whose tensors are handled.
    """

    allocation: int
    allocates: bool
    stage: str
    block: Block | None

    @property
    def moment(self) -> str:
        """For people: ``backward of transformer_blocks.12``."""
        return self.stage if self.block is None else f"{self.stage} of {self.block}"


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The fullest moment: its bytes, what they are, and the event that reached it."""

    bytes: int
    kinds: dict[str, int]
    moment: str
    at: int

    @property
    def activations(self) -> int:
        """Everything that does not stay from step to step."""
        return self.bytes - sum(self.kinds[kind] for kind in PERSISTENT)


@dataclass(kw_only=True)
class Trace:
    """A list of events.

    Attributes:
        sizes: bytes of each allocation, rounded to the granule.
        kinds: one of `KINDS` for each allocation.
        owners: the block each allocation was made for.
        events: in order.
        start: the peak is sought from this event on; what stands before it is how the state came to be.
        flops: floating-point operations (2 per multiply-add) since `start`, by block.
    """

    sizes: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    owners: list[Block | None] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    start: int = 0
    flops: dict[Block | None, int] = field(default_factory=dict)

    def repeat(self) -> None:
        """Let what was done from `start` on be done twice, if it left nothing and touched nothing from before."""
        done = self.events[self.start :]
        made: dict[int, int] = {}
        alive: set[int] = set()
        for number, allocates, _, _ in done:
            if allocates:
                made[number] = len(self.sizes) + len(made)
                alive.add(number)
            elif number in alive:
                alive.remove(number)
            else:
                return
        if alive:
            return
        self.sizes += [self.sizes[number] for number in made]
        self.kinds += [self.kinds[number] for number in made]
        self.owners += [self.owners[number] for number in made]
        self.events += [event._replace(allocation=made[event.allocation]) for event in done]

    def live(self) -> list[int]:
        """Live bytes after each event."""
        return list(accumulate(size for _, size in self.replayable()))

    def peak(self) -> Peak:
        """The fullest moment from `start` on (the state at `start` counts, too)."""
        if not self.events:
            return Peak(bytes=0, kinds=dict.fromkeys(KINDS, 0), moment="nothing", at=0)
        first = max(0, self.start - 1)
        live = self.live()[first:]
        best = max(live)
        at = first + live.index(best)
        return Peak(bytes=best, kinds=self.kinds_at(at), moment=self.events[at].moment, at=at)

    def kinds_at(self, at: int) -> dict[str, int]:
        """Live bytes of each kind after event number `at`."""
        alive: set[int] = set()
        for number, allocates, _, _ in islice(self.events, at + 1):
            (alive.add if allocates else alive.discard)(number)
        kinds = dict.fromkeys(KINDS, 0)
        for number in alive:
            kinds[self.kinds[number]] += self.sizes[number]
        return kinds

    def curve(self, points: int = 400) -> list[tuple[str, int]]:
        """The way through the events from `start` on, in at most `points` samples of (moment, live bytes).

        Each sample is the fullest event of its stretch, so the peak is on the curve.
        """
        live = self.live()
        stretch = max(1, -(-(len(live) - self.start) // points))
        samples = []
        for begin in range(self.start, len(live), stretch):
            part = live[begin : begin + stretch]
            best = max(part)
            samples.append((self.events[begin + part.index(best)].moment, best))
        return samples

    def replayable(self) -> list[tuple[int, int]]:
        """The events as ``(id, ±bytes)`` for `plafond.memory.allocator.replay`."""
        sizes = self.sizes
        return [
            (number, sizes[number] if allocates else -sizes[number])
            for number, allocates, _, _ in self.events
        ]

    @property
    def total_flops(self) -> int:
        """Floating-point operations of all blocks and of the rest."""
        return sum(self.flops.values())


def rounded(size: int, granule: int = GRANULE) -> int:
    """`size` as it is allocated; nothing is allocated for an empty tensor."""
    return -(-size // granule) * granule

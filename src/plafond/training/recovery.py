"""What a run does when the device's memory is not enough: give back, take a leaner way, do the same again.

A step up to its update is a function of its number and of what blocks keep, so it can be undone (drop the gradients)
and repeated; where only recomputation changes, its result is the same to the last bit. Only out-of-memory is caught.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from plafond.activations.levels import Level
from plafond.activations.plan import RECOMPUTE_ALL, ActivationPlan, Activations
from plafond.data.batches import Batch
from plafond.language.said import N_, Said, Value, listed
from plafond.memory.residence import host_memory, release
from plafond.training.run_folder import write_atomically
from plafond.training.step import MicroBatch

Answer = TypeVar("Answer")

OFFLOAD_ALL = ActivationPlan(name="offload", default=Level(kind="offload"))
LEANER = (
    ActivationPlan(name="attention", default=Level(kind="attention")),
    RECOMPUTE_ALL,
    OFFLOAD_ALL,
)
"""Plans to fall back on, from the fastest to the leanest."""

FILE = "recovered.json"
IN_PARTS = N_("batches at {bucket} are trained in {parts} parts; the step stays the same")


def attempt(action: Callable[[], Answer], lean: Callable[[str], bool], device: torch.device) -> Answer:
    """Do `action`; after an out-of-memory, do it again as long as `lean` finds a leaner way.

    Args:
        action: may be done again from the start.
        lean: undoes what a failed attempt left and changes how the next one works; told the error. False ends it.
        device: whose unused memory is given back in between.

    Raises:
        torch.OutOfMemoryError: no leaner way is left.
    """
    while True:
        try:
            return action()
        except torch.OutOfMemoryError as error:
            message, told = str(error), dict(vars(error))
        # here the error is gone, and with it the frames that held the attempt's tensors
        release(device)
        if not lean(message):
            failed = torch.OutOfMemoryError(message)
            vars(failed).update(told)
            raise failed


def name_place(error: torch.OutOfMemoryError, place: Said) -> None:
    """Write into an error where memory ran out."""
    error.add_note(str(place))
    vars(error)["place"] = place


def place_of(error: BaseException) -> Said | None:
    """Where memory ran out, as far as its error says so."""
    place = vars(error).get("place")
    return place if isinstance(place, Said) else None


class OnHost(Generic[Answer]):
    """Work that goes on in main memory when it does not fit on the device.

    Args:
        on_device: the work there; raises out-of-memory.
        leave: takes off the device what the work has put there.
        on_host: the same work in main memory.
        device: the device.
        say: told once that it has gone over.
        recover: False lets an out-of-memory end it.
    """

    def __init__(
        self,
        on_device: Callable[[Any], Answer],
        leave: Callable[[], None],
        on_host: Callable[[Any], Answer],
        device: torch.device,
        say: Callable[[], None],
        recover: bool = True,
    ):
        self._on_device, self._leave, self._on_host = on_device, leave, on_host
        self._device, self._say = device, say
        self._failures = 0
        self._recover = recover

    def __call__(self, work: Any) -> Answer:
        """Do it where it fits."""
        return attempt(lambda: self._somewhere(work), self._lean, self._device)

    def _somewhere(self, work: Any) -> Answer:
        if self._failures < 2:
            return self._on_device(work)
        with host_memory():
            return self._on_host(work)

    def _lean(self, message: str) -> bool:
        self._failures += 1
        self._leave()
        if self._failures == 2:
            self._say()
        return self._recover and self._failures <= 2


@dataclass
class Leaner:
    """The way each bucket is trained; it only ever gets leaner, and a continued run remembers it.

    Args:
        activations: what blocks keep on each bucket.
        folder: the run's folder.
        parts: into how many parts the batches of a bucket are split.
    """

    activations: Activations
    folder: Path
    parts: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)

    def remember(self) -> None:
        """Take up what an earlier part of the run has learnt."""
        try:
            known = json.loads((self.folder / FILE).read_text(encoding="utf-8"))
            taken = {str(bucket): int(entry["plan"]) for bucket, entry in known.items()}
            self.parts = {str(bucket): int(entry["parts"]) for bucket, entry in known.items()}
        except (OSError, ValueError, TypeError, KeyError):
            return
        for bucket, place in taken.items():
            if 0 <= place < len(LEANER):
                self._take(bucket, place)

    def step(self, batches: Iterable[Batch]) -> Value | None:
        """Make the next attempt at these batches leaner; says how, or None when nothing is left."""
        sizes = {str(batch.bucket): len(batch.items) for batch in batches}
        changes = [change for bucket, size in sizes.items() if (change := self._next(bucket, size))]
        if not changes:
            return None
        rows = {
            bucket: {"plan": self.taken.get(bucket, -1), "parts": self.parts.get(bucket, 1)}
            for bucket in {*self.taken, *self.parts}
        }

        def write(path: Path) -> None:
            path.write_text(json.dumps(rows), encoding="utf-8")

        write_atomically(self.folder / FILE, write)
        return listed(changes)

    def _next(self, bucket: str, size: int) -> Said | None:
        place = self.taken.get(bucket)
        following = _first_leaner(self.activations.of(bucket)) if place is None else place + 1
        if following < len(LEANER):
            self._take(bucket, following)
            kept = LEANER[following].name
            return Said(N_("blocks at {bucket} now keep: {kept}"), {"bucket": bucket, "kept": kept})
        parts = self.parts.get(bucket, 1)
        if parts >= size:
            return None
        self.parts[bucket] = min(size, 2 * parts)
        return Said(IN_PARTS, {"bucket": bucket, "parts": self.parts[bucket]})

    def _take(self, bucket: str, place: int) -> None:
        self.taken[bucket] = place
        buckets = {**self.activations.buckets, bucket: LEANER[place]}
        self.activations = replace(self.activations, buckets=buckets)

    def split(self, micros: Iterable[MicroBatch]) -> list[MicroBatch]:
        """The same batches in as many parts as their buckets need."""
        found = []
        for micro in micros:
            size = len(micro.batch.items)
            parts = min(size, self.parts.get(str(micro.batch.bucket), 1))
            edges = [part * size // parts for part in range(parts + 1)]
            found += [micro.part(start, stop) for start, stop in pairwise(edges)] if parts > 1 else [micro]
        return found


def _first_leaner(plan: ActivationPlan) -> int:
    """The place of the first fallback that takes less than `plan`."""
    kinds = {plan.default.kind, *(level.kind for found in plan.groups.values() for level, _ in found)}
    for place, kind in enumerate(("attention", "recompute", "offload")):
        if kinds == {kind}:
            return place + 1
    return 0

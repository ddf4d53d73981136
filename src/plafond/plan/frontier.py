"""Memory against speed: what plans between recomputing everything and nothing take, and which one is chosen."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from plafond.activations.ladder import Ladder
from plafond.data.buckets import Bucket
from plafond.language.said import N_, ExactSize, Number, Said, Speak, Value
from plafond.plan.forecast import Forecaster, Plan, margin

STOPS = 10
"""Plans that are looked at; they lie about evenly between what the leanest and the fastest keep."""

BAR = 22


@dataclass(frozen=True, kw_only=True)
class Stop:
    """One plan.

    Args:
        rung: its place on the ladder.
        kept_bytes: what blocks keep for their backward pass.
        device_bytes: what training then takes on the device.
        step_time: estimated time of both passes, relative to computing nothing twice.
        fits: whether that is below the ceiling, with the margin that a plan leaves.
        chosen: whether ``gradient_checkpointing: auto`` takes it.
    """

    rung: int
    kept_bytes: int
    device_bytes: int
    step_time: float
    fits: bool
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class Frontier:
    """The plans of the largest bucket, from the leanest to the fastest.

    Args:
        bucket: the bucket.
        batch: pictures in a batch.
        plans: how many plans the ladder has.
        limit: the most that a plan may take.
        stops: some of them.
    """

    bucket: Bucket
    batch: int
    plans: int
    limit: int
    stops: tuple[Stop, ...]


def frontier_of(forecaster: Forecaster, plan: Plan) -> Frontier:
    """Look at plans for the largest bucket of a job that `forecaster` has planned."""
    bucket, batch = next(iter(plan.shapes.batches.items()))
    ladder = forecaster.ladder(bucket, batch)
    chosen = forecaster.fastest_rung(ladder, bucket, batch)
    limit = plan.ceiling.bytes - margin(plan.ceiling, virtual=plan.virtual)
    stops = []
    for rung in sorted({*_spread(ladder), chosen}):
        size = forecaster.rung_bytes(ladder, rung, bucket, batch)
        stop = Stop(
            rung=rung,
            kept_bytes=ladder.size(rung),
            device_bytes=size,
            step_time=ladder.slowdown(rung),
            fits=size <= limit,
            chosen=rung == chosen and size <= limit,
        )
        stops.append(stop)
    return Frontier(bucket=bucket, batch=batch, plans=len(ladder), limit=limit, stops=tuple(stops))


def _spread(ladder: Ladder) -> set[int]:
    """Rungs that lie about evenly by what blocks keep, the ends among them."""
    last = len(ladder) - 1
    low, high = ladder.size(0), ladder.size(last)
    goals = [low + (high - low) * stop / (STOPS - 1) for stop in range(STOPS)]
    return {min(range(len(ladder)), key=lambda rung: abs(ladder.size(rung) - goal)) for goal in goals}


def text(frontier: Frontier, speak: Speak) -> str:
    """A table; the chosen plan is marked."""
    most = max(frontier.limit, *(stop.device_bytes for stop in frontier.stops))
    head: dict[str, Value] = {"bucket": str(frontier.bucket), "batch": frontier.batch}
    head |= {"shown": len(frontier.stops), "plans": frontier.plans}
    columns = [speak(Said(text)) for text in (N_("blocks keep"), N_("device"), N_("step time"))]
    widths = [max(least, len(name)) for least, name in zip((11, 10, 9), columns, strict=True)]
    lines = [
        speak(Said(N_("Memory against speed at {bucket}, batch {batch}: {shown} of {plans} plans"), head)),
        "  " + "  ".join(f"{name:>{width}}" for name, width in zip(columns, widths, strict=True)),
    ]
    over = "  " + speak(Said(N_("does not fit")))
    note = speak(Said(N_("Step time is estimated, relative to blocks that compute nothing twice.")))
    for stop in frontier.stops:
        filled = round(stop.device_bytes / most * BAR)
        mark = "  ← auto" if stop.chosen else "" if stop.fits else over
        cells = (
            speak(ExactSize(stop.kept_bytes)),
            speak(ExactSize(stop.device_bytes)),
            f"{speak(Number(stop.step_time, 3))}×",
        )
        row = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append(f"  {row}  {'█' * filled}{'·' * (BAR - filled)}{mark}")
    lines.append(f"  {note}")
    return "\n".join(lines)


def as_json(frontier: Frontier) -> dict[str, Any]:
    """Under ``frontier`` in ``plafond plan --frontier --json``; sizes in bytes."""
    return {**asdict(frontier), "bucket": str(frontier.bucket)}

"""What to change when a job does not fit, each change alone, in the order of the ladder.

Each remedy is planned again, so its saving is as true as the plan itself.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from plafond.language.said import Said
from plafond.memory.collector import paused
from plafond.plan.changes import Change, Values, change_of, changed
from plafond.plan.forecast import Forecaster, Plan
from plafond.plan.pace import work
from plafond.plan.rungs import Option, Rung, ladder
from plafond.plan.shapes import shapes_of


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change, what it saves and what it costs.

    Args:
        id: its name in every report.
        change: dotted keys with the value before and after.
        saves_bytes: device bytes off the job's peak.
        peak_bytes: the peak that is left.
        fits: whether the job then fits.
        time_ratio: time of a training step per picture, relative to now.
        quality: ``same`` or ``may_change``.
        why: one sentence.
    """

    id: str
    change: Change
    saves_bytes: int
    peak_bytes: int
    fits: bool
    time_ratio: float
    quality: str
    why: Said


def remedies(plan: Plan, only: Container[str] | None = None) -> tuple[Remedy, ...]:
    """Every rung of the ladder that makes the job's peak smaller, or of those that `only` names."""
    with paused():
        return tuple(each_remedy(plan, only))


def each_remedy(plan: Plan, only: Container[str] | None = None) -> Iterator[Remedy]:
    """The same one by one: each takes dry runs of its own.

    Of a rung's options it is the mildest that fits or, when none does, the strongest.
    """
    for rung in ladder(plan.process):
        if plan.peak.phase not in rung.phases or (only is not None and rung.id not in only):
            continue
        *milder, strongest = rung.options
        option, other = strongest, planned_again(plan, rung, strongest.values)
        if _fits(other):
            for mild in milder:
                found = planned_again(plan, rung, mild.values)
                if _fits(found):
                    option, other = mild, found
                    break
        if other.peak.device_bytes < plan.peak.device_bytes:
            yield _remedy(plan, rung, option, other)


def planned_again(plan: Plan, rung: Rung, values: Values, *, largest_only: bool = True) -> Plan:
    """The plan with new values; phases that the rung does not change are taken over."""
    process = changed(plan.process, values)
    again = Forecaster(process, plan.ceiling, virtual=plan.virtual)
    shapes = shapes_of(process, again.family)
    part = again.plan(shapes, largest_only=largest_only, only=rung.phases)
    kept = [phase for phase in plan.phases if phase.phase not in rung.phases]
    return replace(part, phases=(*kept, *part.phases))


def _fits(plan: Plan) -> bool:
    return plan.peak.device_bytes <= plan.ceiling.bytes


def _remedy(plan: Plan, rung: Rung, option: Option, other: Plan) -> Remedy:
    return Remedy(
        id=rung.id,
        change=change_of(plan.process, option.values),
        saves_bytes=plan.peak.device_bytes - other.peak.device_bytes,
        peak_bytes=other.peak.device_bytes,
        fits=_fits(other),
        time_ratio=round(work(other) / work(plan), 3),
        quality=rung.quality,
        why=option.why,
    )

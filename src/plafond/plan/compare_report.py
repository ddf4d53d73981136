"""Two jobs compared, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from plafond.job.schema import Job
from plafond.memory.gpus import gib
from plafond.plan.compare import Comparison, Difference, Effect
from plafond.plan.forecast import Phase
from plafond.plan.report import NAMES, changes, sentence, wrapped


def text(a: Job, b: Job, found: Sequence[Comparison], *, limited: bool) -> str:
    """The whole report.

    Args:
        a: one job.
        b: the other.
        found: of each pair of processes.
        limited: a ceiling is known, so there are verdicts.
    """
    lines = []
    for index, comparison in enumerate(found):
        if len(found) > 1:
            lines.append(f"process {index}:")
        lines += [line for part in _paragraphs(comparison) for line in wrapped(part)]
        if len(comparison.differences) > 1:
            for difference in comparison.differences:
                lines += wrapped(f"  {changes(_plain(difference))}", indent="    ")
                lines += wrapped(f"    {_said(difference.effect)}", indent="    ")
            lines += wrapped(f"All together: {_said(comparison.together)}.")
        if limited:
            for job, plan in ((a, comparison.together.before), (b, comparison.together.after)):
                lines += wrapped(f"{job.path.name}: {sentence(plan)}")
    return "\n".join(lines)


def _paragraphs(comparison: Comparison) -> Iterator[str]:
    differences = comparison.differences
    if not differences:
        yield "The jobs ask for the same, whatever their files look like."
    elif len(differences) == 1:
        (difference,) = differences
        yield f"Only {changes(_plain(difference))} changed: {_said(difference.effect)}."
    else:
        yield f"{len(differences)} settings differ. What each does alone:"


def _said(effect: Effect | None) -> str:
    """What a change does: each phase whose memory it changes, the peak, the time."""
    if effect is None:
        return "alone it makes no job that can be run"
    parts = [part for name, pair in effect.phases.items() for part in _phase(name, *pair)]
    before, after = effect.before.peak, effect.after.peak
    if before.phase != after.phase:
        parts.append(f"the peak moves from {NAMES[before.phase]} to {NAMES[after.phase]}")
    if effect.peak_bytes and parts:
        parts.append(f"the peak is {gib(after.device_bytes)}, was {gib(before.device_bytes)}")
    if abs(effect.time_ratio - 1) >= 0.005:
        parts.append(f"a picture takes {effect.time_ratio:.2f}× as long")
    return "; ".join(parts) or "no memory and no time"


def _phase(name: str, before: Phase | None, after: Phase | None) -> Iterator[str]:
    if before is None or after is None:
        yield f"{NAMES[name]} {'comes in' if before is None else 'is left out'}"
        return
    more = after.device_bytes - before.device_bytes
    if more:
        where = f" at {after.bucket}" if after.bucket and after.bucket == before.bucket else ""
        yield f"{NAMES[name]}{where} {'+' if more > 0 else '−'}{gib(abs(more))}"


def _plain(difference: Difference) -> dict[str, tuple[Any, Any]]:
    """The change with whole sections in one word."""
    return {key: (_worded(old), _worded(new)) for key, (old, new) in difference.change.items()}


def _worded(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return "given"
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return f"{len(value)} items"
    return value


def as_json(a: Job, b: Job, found: Sequence[Comparison], *, limited: bool) -> Mapping[str, Any]:
    """The comparison for scripts; sizes in bytes."""
    return {
        "schema": 1,
        "a": str(a.path),
        "b": str(b.path),
        "processes": [
            {
                "differences": [
                    {
                        "change": {
                            key: [_dumped(old), _dumped(new)] for key, (old, new) in difference.change.items()
                        },
                        "effect": None if difference.effect is None else _effect(difference.effect),
                    }
                    for difference in comparison.differences
                ],
                "together": _effect(comparison.together),
                "verdicts": [comparison.together.before.verdict, comparison.together.after.verdict]
                if limited
                else None,
            }
            for comparison in found
        ],
    }


def _effect(effect: Effect) -> dict[str, Any]:
    return {
        "phases": {
            name: [phase and phase.device_bytes for phase in pair] for name, pair in effect.phases.items()
        },
        "peak_bytes": [effect.before.peak.device_bytes, effect.after.peak.device_bytes],
        "peak_phase": [effect.before.peak.phase, effect.after.peak.phase],
        "time_ratio": effect.time_ratio,
    }


def _dumped(value: Any) -> Any:
    if isinstance(value, list):
        return [_dumped(item) for item in value]
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value

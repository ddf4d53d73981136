"""Two jobs compared, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from plafond.job.schema import Job
from plafond.language.said import N_, ExactSize, Number, Said, Speak, Value, listed
from plafond.plan.compare import Comparison, Difference, Effect
from plafond.plan.forecast import Phase
from plafond.plan.report import sentence, wrapped
from plafond.plan.words import NAMES, place, shown


def text(a: Job, b: Job, found: Sequence[Comparison], speak: Speak, *, limited: bool) -> str:
    """The whole report.

    Args:
        a: one job.
        b: the other.
        found: of each pair of processes.
        speak: puts sentences into the reader's language.
        limited: a ceiling is known, so there are verdicts.
    """
    lines = []
    for index, comparison in enumerate(found):
        if len(found) > 1:
            lines.append(speak(Said(N_("process {number}:"), {"number": index})))
        lines += wrapped(speak(_head(comparison, speak)))
        if len(comparison.differences) > 1:
            for difference in comparison.differences:
                lines += wrapped(f"  {shown(_plain(difference, speak))}", indent="    ")
                lines += wrapped(f"    {_effects(difference.effect, speak)}", indent="    ")
            together = _effects(comparison.together, speak)
            lines += wrapped(speak(Said(N_("All together: {effects}."), {"effects": together})))
        if limited:
            for job, plan in ((a, comparison.together.before), (b, comparison.together.after)):
                values: dict[str, Value] = {"job": job.path.name, "text": sentence(plan, speak)}
                lines += wrapped(speak(Said(N_("{job}: {text}"), values)))
    return "\n".join(lines)


def _head(comparison: Comparison, speak: Speak) -> Said:
    differences = comparison.differences
    if not differences:
        return Said(N_("The jobs ask for the same, whatever their files look like."))
    if len(differences) > 1:
        return Said(N_("{number} settings differ. What each does alone:"), {"number": len(differences)})
    (difference,) = differences
    change, effects = shown(_plain(difference, speak)), _effects(difference.effect, speak)
    return Said(N_("Only {change} changed: {effects}."), {"change": change, "effects": effects})


def _effects(effect: Effect | None, speak: Speak) -> str:
    """What a change does, in a list."""
    if effect is None:
        return speak(Said(N_("alone it makes no job that can be run")))
    return speak(listed(_said(effect))) or speak(Said(N_("no memory and no time")))


def _said(effect: Effect) -> list[Said]:
    """Each phase whose memory a change changes, the peak, the time."""
    parts = [part for name, pair in effect.phases.items() for part in _phase(name, *pair)]
    before, after = effect.before.peak, effect.after.peak
    if before.phase != after.phase:
        names: dict[str, Value] = {"before": Said(NAMES[before.phase]), "after": Said(NAMES[after.phase])}
        parts.append(Said(N_("the peak moves from {before} to {after}"), names))
    if effect.peak_bytes and parts:
        sizes: dict[str, Value] = {
            "after": ExactSize(after.device_bytes),
            "before": ExactSize(before.device_bytes),
        }
        parts.append(Said(N_("the peak is {after}, was {before}"), sizes))
    if abs(effect.time_ratio - 1) >= 0.005:
        parts.append(Said(N_("a picture takes {ratio}× as long"), {"ratio": Number(effect.time_ratio, 2)}))
    return parts


def _phase(name: str, before: Phase | None, after: Phase | None) -> Iterator[Said]:
    phase = Said(NAMES[name])
    if before is None:
        yield Said(N_("{phase} comes in"), {"phase": phase})
    elif after is None:
        yield Said(N_("{phase} is left out"), {"phase": phase})
    elif more := after.device_bytes - before.device_bytes:
        where = place(name, after.bucket if after.bucket == before.bucket else None)
        size = ExactSize(abs(more))
        yield Said(
            N_("{place} +{size}") if more > 0 else N_("{place} −{size}"), {"place": where, "size": size}
        )


def _plain(difference: Difference, speak: Speak) -> dict[str, tuple[Any, Any]]:
    """The change with whole sections in one word."""
    return {key: (_worded(old, speak), _worded(new, speak)) for key, (old, new) in difference.change.items()}


def _worded(value: Any, speak: Speak) -> Any:
    if isinstance(value, BaseModel):
        return speak(Said(N_("given")))
    if isinstance(value, list) and value and isinstance(value[0], BaseModel):
        return speak(Said(N_("{number} items"), {"number": len(value)}))
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

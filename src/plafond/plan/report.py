"""A plan in words: a table, the sentence that matters, the remedies; and as JSON for scripts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from plafond.job.schema import Job
from plafond.memory.gpus import gib
from plafond.plan.changes import Change
from plafond.plan.forecast import Phase, Plan
from plafond.plan.remedies import Remedy

WIDTH = 100
"""Columns of the report; what is longer is continued on the next line."""

BAR = 22
"""Characters of a bar that reaches the ceiling."""

NAMES = {
    "cache_latents": "cache latents",
    "encode_text": "encode text",
    "load": "load",
    "train": "train",
    "preview": "preview",
    "save": "save",
}
FAILS = {
    "cache_latents": "it would fail while caching the first {bucket} picture",
    "encode_text": "it would fail at the first caption",
    "load": "it would fail while the model is loaded",
    "train": "it would fail at the first {bucket} batch",
    "preview": "it would fail at the first preview",
    "save": "it would fail at the first save",
}


def text(job: Job, plan: Plan, found: Sequence[Remedy], warnings: Sequence[str]) -> str:
    """The whole report, without colours."""
    head = f"{job.name}: {plan.process.model.name_or_path}, ceiling {plan.ceiling.description}"
    lines = [line for part in (head, *(f"note: {warning}" for warning in warnings)) for line in wrapped(part)]
    lines += ["", *_table(plan), "", *wrapped(sentence(plan))]
    if found:
        lines += ["", "What to change, cheapest first (each planned anew, alone):"]
        lines += [line for remedy in found for line in remedy_lines(remedy)]
    return "\n".join(lines)


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """The lines of a paragraph; those after the first are indented."""
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _table(plan: Plan) -> list[str]:
    device = "live" if plan.virtual else "device"
    head = f"{'phase':<14}{'bucket':<14}{'batch':>5}  {'allocated':>10}  {device:>10}  of the ceiling"
    rows = [head]
    for phase in plan.phases:
        share = phase.device_bytes / plan.ceiling.bytes
        filled = min(BAR, round(share * BAR))
        bar = "█" * filled + "·" * (BAR - filled)
        bucket = "" if phase.bucket is None else str(phase.bucket)
        batch = str(phase.batch) if phase.phase == "train" else ""
        verdict = "" if phase.fits else "  does not fit"
        rows.append(
            f"{NAMES[phase.phase]:<14}{bucket:<14}{batch:>5}  {gib(phase.summary.allocated_bytes):>10}"
            f"  {gib(phase.device_bytes):>10}  {bar} {share:4.0%}{verdict}"
        )
    return rows


def _fails(plan: Plan, phase: Phase) -> str:
    """Where a run would fail that does not get through `phase`."""
    if phase.phase != "train" or not plan.shapes.mixed or phase.bucket != next(iter(plan.shapes.batches)):
        return FAILS[phase.phase].format(bucket=phase.bucket)
    # The warm-up does what a first step does before its update. Only what comes later does not fail there: the
    # optimizer's state, and the update itself.
    later = phase.summary.kinds.get("optimizer", 0)
    if phase.device_bytes - later > plan.ceiling.bytes and not phase.summary.moment.startswith("update"):
        return f"it would fail in the warm-up on the largest bucket, {phase.bucket}, before step 1"
    return f"it would fail on the largest bucket, {phase.bucket}, in the warm-up or in the first steps"


def sentence(plan: Plan) -> str:
    """The verdict in one sentence."""
    peak = plan.peak
    place = NAMES[peak.phase] + (f" at {peak.bucket}" if peak.bucket else "")
    if plan.verdict == "oom":
        first = next(phase for phase in plan.phases if not phase.fits)
        over = peak.device_bytes - plan.ceiling.bytes
        fails = _fails(plan, first)
        if first.phase != peak.phase:
            # the largest phase is not the one at which a run would stop
            fails = f"{NAMES[first.phase]}, with {gib(first.device_bytes)}, comes first: {fails}"
        return f"Does not fit: {place} needs {gib(peak.device_bytes)}, {gib(over)} over; {fails}."
    room = plan.ceiling.bytes - peak.device_bytes
    speed = _speed(plan)
    word = "Fits" if plan.verdict == "fits" else "Tight"
    where = f"{gib(peak.device_bytes)} ({place}, {peak.summary.moment})"
    return f"{word}: the peak is {where}; {gib(room)} are left.{speed}"


def _speed(plan: Plan) -> str:
    """What the solver's plan for the largest bucket costs and gains."""
    phase = next(phase for phase in plan.phases if phase.phase == "train")
    chosen = phase.activations
    if chosen is None or chosen.slowdown is None or chosen.leanest is None:
        return ""
    gain = f"{chosen.leanest / chosen.slowdown - 1:.0%} faster than with gradient_checkpointing: true"
    if chosen.slowdown < 1.005:
        return f" Nothing has to be recomputed at {phase.bucket}: steps are about {gain}."
    return (
        f" Blocks keep what is worth its memory at {phase.bucket}: steps are about {gain}, and take"
        f" {chosen.slowdown - 1:.0%} more than with everything kept."
    )


def _levels(plan: Plan) -> dict[str, Any]:
    """The activation plan of the largest bucket: how many blocks of each group have which level."""
    phase = next(phase for phase in plan.phases if phase.phase == "train")
    assert phase.activations is not None
    chosen = phase.activations
    groups = chosen.plan.groups or {"all blocks": ((chosen.plan.default, 0),)}
    return {
        "name": chosen.plan.name,
        "levels": {group: {str(level): count for level, count in found} for group, found in groups.items()},
        "flops_ratio": round(chosen.slowdown or 1.0, 4),
    }


def remedy_lines(remedy: Remedy) -> list[str]:
    """A remedy in two lines, longer ones wrapped: what to change, and what that saves and costs."""
    left = f"{gib(remedy.peak_bytes)} left to take, {'fits' if remedy.fits else 'still does not fit'}"
    marks = [f"saves {gib(remedy.saves_bytes)}", left]
    if abs(remedy.time_ratio - 1) >= 0.005:
        marks.append(f"steps {remedy.time_ratio:.2f}× as long")
    if remedy.quality != "same":
        marks.append("quality may change")
    return beside(remedy.id, changes(remedy.change), "; ".join(marks))


def beside(label: str, *texts: str) -> list[str]:
    """Texts in a column to the right of a label, each wrapped."""
    lines = [line for text in texts for line in textwrap.wrap(text, WIDTH - 23, break_on_hyphens=False)]
    return [f"  {label if number == 0 else '':<20} {line}" for number, line in enumerate(lines or [""])]


def changes(change: Change) -> str:
    """Settings before and after; one that stays is only written out."""
    return ", ".join(
        f"{key}: {_value(new)}" if old == new else f"{key}: {_value(old)} → {_value(new)}"
        for key, (old, new) in change.items()
    )


def _value(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def as_json(job: Job, plan: Plan, found: Sequence[Remedy], warnings: Sequence[str]) -> dict[str, Any]:
    """The contract of ``plafond plan --json``; all sizes in bytes."""
    peak = plan.peak
    return {
        "schema": 1,
        "job": job.name,
        "family": plan.process.model.arch,
        "model": plan.process.model.name_or_path,
        "ceiling_bytes": plan.ceiling.bytes,
        "overhead_bytes": 0 if plan.virtual else plan.ceiling.overhead_bytes,
        "verdict": plan.verdict,
        "peak_bytes": peak.device_bytes,
        "peak": {
            "phase": peak.phase,
            "bucket": None if peak.bucket is None else str(peak.bucket),
            "moment": peak.summary.moment,
        },
        "activation_plan": _levels(plan),
        "phases": [_phase(phase) for phase in plan.phases],
        "remedies": [
            {
                "id": remedy.id,
                "change": {key: list(values) for key, values in remedy.change.items()},
                "saves_bytes": remedy.saves_bytes,
                "peak_bytes": remedy.peak_bytes,
                "fits": remedy.fits,
                "time_ratio": remedy.time_ratio,
                "quality": remedy.quality,
                "why": remedy.why,
            }
            for remedy in found
        ],
        "warnings": list(warnings),
    }


def _phase(phase: Phase) -> dict[str, Any]:
    kinds = phase.summary.kinds
    return {
        "phase": phase.phase,
        "bucket": None if phase.bucket is None else str(phase.bucket),
        "frames": 1 if phase.bucket is None else phase.bucket.frames,
        "batch": phase.batch,
        "weights_bytes": kinds.get("weights", 0),
        "lora_bytes": kinds.get("lora", 0),
        "gradient_bytes": kinds.get("gradients", 0),
        "optimizer_bytes": kinds.get("optimizer", 0),
        "activation_bytes": phase.activation_bytes,
        "allocated_bytes": phase.summary.allocated_bytes,
        "reserved_bytes": phase.summary.reserved_bytes,
        "device_bytes": phase.device_bytes,
        "flops": phase.summary.flops,
        "fits": phase.fits,
    }

"""A plan in words: a table, the sentence that matters, the remedies; and as JSON for scripts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from plafond.job.schema import Job
from plafond.language.said import N_, ExactSize, Number, Percent, Said, Speak, Value, listed
from plafond.plan.forecast import Phase, Plan
from plafond.plan.remedies import Remedy
from plafond.plan.words import NAMES, NO, moment, place, shown

WIDTH = 100
"""Columns of the report; what is longer is continued on the next line."""

FAILS = {
    "cache_latents": N_("it would fail while caching the first {bucket} picture"),
    "encode_text": N_("it would fail at the first caption"),
    "load": N_("it would fail while the model is loaded"),
    "train": N_("it would fail at the first {bucket} batch"),
    "preview": N_("it would fail at the first preview"),
    "save": N_("it would fail at the first save"),
}
WARM_UP = N_("it would fail in the warm-up on the largest bucket, {bucket}, before step 1")
FIRST_STEPS = N_("it would fail on the largest bucket, {bucket}, in the warm-up or in the first steps")
EARLIER = N_("{phase}, with {needs}, comes first: {fails}")
YES = N_("Fits: the peak is {size} ({place}, {moment}); {room} are left.")
HARDLY = N_("Tight: the peak is {size} ({place}, {moment}); {room} are left.")
NOTHING_TWICE = N_(
    "Nothing has to be recomputed at {bucket}: steps are about {gain} faster than with gradient_checkpointing: true."
)
KEPT = N_(
    "Blocks keep what is worth its memory at {bucket}: steps are about {gain} faster than with gradient_checkpointing:"
    " true, and take {more} more than with everything kept."
)


def text(job: Job, plan: Plan, found: Sequence[Remedy], warnings: Sequence[Value], speak: Speak) -> str:
    """The whole report, without colours.

    Args:
        job: the job.
        plan: of one of its processes.
        found: what would help.
        warnings: worth knowing beforehand.
        speak: puts sentences into the reader's language.
    """
    values: dict[str, Value] = {"job": job.name, "model": plan.process.model.name_or_path}
    said = [
        Said(N_("{job}: {model}, ceiling {ceiling}"), {**values, "ceiling": plan.ceiling.description}),
        *(Said(N_("note: {text}"), {"text": warning}) for warning in warnings),
    ]
    lines = [line for part in said for line in wrapped(speak(part))]
    lines += ["", *_table(plan, speak), "", *wrapped(sentence(plan, speak))]
    if found:
        lines += ["", speak(Said(N_("What to change, cheapest first (each planned anew, alone):")))]
        lines += [line for remedy in found for line in remedy_lines(remedy, speak)]
    return "\n".join(lines)


def in_ai_toolkit(plan: Plan, speak: Speak) -> str:
    """What the job's phases take when AI Toolkit runs it."""
    head = speak(Said(N_("The same job run by AI Toolkit:")))
    return "\n".join(["", *wrapped(head), *_table(plan, speak), "", *wrapped(sentence(plan, speak))])


def in_ai_toolkit_as_json(plan: Plan) -> dict[str, Any]:
    """The same under ``ai_toolkit``; all sizes in bytes."""
    phases = [_phase(phase) for phase in plan.phases]
    return {"verdict": plan.verdict, "peak_bytes": plan.peak.device_bytes, "phases": phases}


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """The lines of a paragraph; those after the first are indented."""
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _table(plan: Plan, speak: Speak) -> list[str]:
    names = {phase.phase: speak(Said(NAMES[phase.phase])) for phase in plan.phases}
    over, full = speak(Said(N_("does not fit"))), len(speak(Percent(1)))
    first = max(14, *(len(name) + 1 for name in names.values()))
    bar = WIDTH - first - full - len(over) - 48
    device = speak(Said(N_("live") if plan.virtual else N_("device")))
    columns = (N_("phase"), N_("bucket"), N_("batch"), N_("allocated"), N_("of the ceiling"))
    head = [speak(Said(text)) for text in columns]
    rows = [f"{head[0]:<{first}}{head[1]:<14}{head[2]:>5}  {head[3]:>10}  {device:>10}  {head[4]}"]
    for phase in plan.phases:
        share = phase.device_bytes / plan.ceiling.bytes
        filled = min(bar, round(share * bar))
        drawn = "█" * filled + "·" * (bar - filled)
        bucket = "" if phase.bucket is None else str(phase.bucket)
        batch = str(phase.batch) if phase.phase == "train" else ""
        allocated, taken = ExactSize(phase.summary.allocated_bytes), ExactSize(phase.device_bytes)
        rows.append(
            f"{names[phase.phase]:<{first}}{bucket:<14}{batch:>5}  {speak(allocated):>10}  {speak(taken):>10}"
            f"  {drawn} {speak(Percent(share)):>{full}}{'' if phase.fits else f'  {over}'}"
        )
    return rows


def _fails(plan: Plan, phase: Phase) -> Said:
    """Where a run would fail that does not get through `phase`."""
    values = {"bucket": str(phase.bucket)}
    if phase.phase != "train" or not plan.shapes.mixed or phase.bucket != next(iter(plan.shapes.batches)):
        return Said(FAILS[phase.phase], values)
    # The warm-up does what a first step does before its update. Only what comes later does not fail there: the
    # optimizer's state, and the update itself.
    later = phase.summary.kinds.get("optimizer", 0)
    if phase.device_bytes - later > plan.ceiling.bytes and not phase.summary.moment.startswith("update"):
        return Said(WARM_UP, values)
    return Said(FIRST_STEPS, values)


def sentence(plan: Plan, speak: Speak) -> str:
    """The verdict in one sentence, or two."""
    return " ".join(speak(said) for said in (_verdict(plan), *_speed(plan)))


def _verdict(plan: Plan) -> Said:
    peak = plan.peak
    where = place(peak.phase, peak.bucket)
    size = ExactSize(peak.device_bytes)
    if plan.verdict == "oom":
        first = next(phase for phase in plan.phases if not phase.fits)
        over = ExactSize(peak.device_bytes - plan.ceiling.bytes)
        fails = _fails(plan, first)
        if first.phase != peak.phase:
            # the largest phase is not the one at which a run would stop
            needs = ExactSize(first.device_bytes)
            fails = Said(EARLIER, {"phase": Said(NAMES[first.phase]), "needs": needs, "fails": fails})
        return Said(NO, {"place": where, "needs": size, "over": over, "fails": fails})
    room = ExactSize(plan.ceiling.bytes - peak.device_bytes)
    values: dict[str, Value] = {
        "size": size,
        "place": where,
        "moment": moment(peak.summary.moment),
        "room": room,
    }
    return Said(YES if plan.verdict == "fits" else HARDLY, values)


def _speed(plan: Plan) -> Iterator[Said]:
    """What the solver's plan for the largest bucket costs and gains."""
    phase = next(phase for phase in plan.phases if phase.phase == "train")
    chosen = phase.activations
    if chosen is None or chosen.slowdown is None or chosen.leanest is None:
        return
    values: dict[str, Value] = {
        "bucket": str(phase.bucket),
        "gain": Percent(chosen.leanest / chosen.slowdown - 1),
        "more": Percent(chosen.slowdown - 1),
    }
    yield Said(NOTHING_TWICE if chosen.slowdown < 1.005 else KEPT, values)


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


def remedy_lines(remedy: Remedy, speak: Speak) -> list[str]:
    """A remedy in two lines, longer ones wrapped: what to change, and what that saves and costs."""
    left = N_("{size} left to take, fits") if remedy.fits else N_("{size} left to take, still does not fit")
    marks = [
        Said(N_("saves {size}"), {"size": ExactSize(remedy.saves_bytes)}),
        Said(left, {"size": ExactSize(remedy.peak_bytes)}),
        *costs(remedy.time_ratio, remedy.quality),
    ]
    return beside(remedy.id, shown(remedy.change), speak(listed(marks)))


def costs(time_ratio: float, quality: str) -> Iterator[Said]:
    """What a change costs, beside memory: steps that take as long, relative to before, and ``may_change``."""
    if abs(time_ratio - 1) >= 0.005:
        yield Said(N_("steps {ratio}× as long"), {"ratio": Number(time_ratio, 2)})
    if quality != "same":
        yield Said(N_("quality may change"))


def beside(label: str, *texts: str) -> list[str]:
    """Texts in a column to the right of a label, each wrapped."""
    lines = [line for text in texts for line in textwrap.wrap(text, WIDTH - 23, break_on_hyphens=False)]
    return [f"  {label if number == 0 else '':<20} {line}" for number, line in enumerate(lines or [""])]


def as_json(
    job: Job, plan: Plan, found: Sequence[Remedy], warnings: Sequence[Value], speak: Speak
) -> dict[str, Any]:
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
        "remedies": [remedy_as_json(remedy, speak) for remedy in found],
        "warnings": [speak(warning) for warning in warnings],
    }


def remedy_as_json(remedy: Remedy, speak: Speak) -> dict[str, Any]:
    """A remedy under ``remedies``."""
    return {
        "id": remedy.id,
        "change": {key: list(values) for key, values in remedy.change.items()},
        "saves_bytes": remedy.saves_bytes,
        "peak_bytes": remedy.peak_bytes,
        "fits": remedy.fits,
        "time_ratio": remedy.time_ratio,
        "quality": remedy.quality,
        "why": speak(remedy.why),
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

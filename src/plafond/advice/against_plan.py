"""A diagnosis held against plafond's own plan of the job: does the plan agree, and what would each change save."""

from __future__ import annotations

from dataclasses import replace

from plafond.advice.diagnosis import Advice, Diagnosis
from plafond.advice.language import Said, Size
from plafond.advice.sentences import AGREES, ELSEWHERE, FITS, PHASES
from plafond.plan.forecast import Phase, Plan
from plafond.plan.remedies import remedies

OUTSIDE = ("free_other_process", "more_host_ram", "cap_below_spill", "update_or_pin", "not_memory")
"""Remedies that are no change to a job."""

ON_THE_CARD = (
    "does_not_fit",
    "bucket_peak",
    "video_frames",
    "fragmentation",
    "regression",
    "other_process",
    "spill",
)

MEASURED = frozenset(
    {
        "checkpointing_on",
        "smaller_batch",
        "cache_text_unload_te",
        "cheaper_preview",
        "eight_bit_optimizer",
        "drop_top_bucket",
        "smaller_rank",
    }
)
"""Remedies that a plan tries itself: when it does not name one, that one saves nothing in this job."""

PLANNED_AS = {"quantize": "load"}
"""Phases of a log that a plan counts under another name."""


def checked(diagnosis: Diagnosis, plan: Plan) -> Diagnosis:
    """Add the plan's word: whether it agrees, and bytes for each remedy.

    Args:
        diagnosis: what the log says.
        plan: the same job under the ceiling that it ran under.
    """
    if diagnosis.cause not in ON_THE_CARD:
        return diagnosis
    phase = PLANNED_AS.get(diagnosis.phase or "", diagnosis.phase)
    same = next((found for found in plan.phases if found.phase == phase and not found.fits), None)
    if plan.verdict != "oom":
        said = _said(FITS, plan.peak, plan)
        lowered = replace(diagnosis, confidence="low" if diagnosis.confidence == "low" else "medium")
        diagnosis = lowered if diagnosis.cause in ("does_not_fit", "bucket_peak") else diagnosis
    elif same is not None:
        said = _said(AGREES, same, plan)
        diagnosis = replace(diagnosis, confidence="high")
    else:
        said = _said(ELSEWHERE, next(found for found in plan.phases if not found.fits), plan)
    return replace(
        diagnosis,
        summary=(*diagnosis.summary, said),
        remedies=_measured(diagnosis.remedies, plan),
    )


def _said(text: str, phase: Phase, plan: Plan) -> Said:
    values = {"needs": Size(phase.device_bytes), "ceiling": Size(plan.ceiling.bytes)}
    return Said(text, {"phase": Said(PHASES[phase.phase]), **values})


def _measured(advice: tuple[Advice, ...], plan: Plan) -> tuple[Advice, ...]:
    """The same remedies with their changes and savings; those that save nothing go."""
    found = {remedy.id: remedy for remedy in remedies(plan)}
    kept = []
    for one in advice:
        remedy = found.get(one.id)
        if remedy is not None:
            kept.append(replace(one, change=remedy.change, saves_bytes=remedy.saves_bytes))
        elif one.id not in MEASURED or plan.verdict != "oom":
            kept.append(one)
    return tuple(kept)

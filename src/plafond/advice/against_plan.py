"""A diagnosis held against the job that was run: what is left to change in it, and what plafond's own plan says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from plafond.advice.diagnosis import Advice, Diagnosis
from plafond.advice.sentences import AGREES, ELSEWHERE, ELSEWHERE_THERE, FITS, FITS_THERE, PHASES, WHY
from plafond.job.schema import ProcessConfig
from plafond.language.said import Said, Size
from plafond.memory.gpus import GIB, Ceiling
from plafond.plan.ai_toolkit import AiToolkit
from plafond.plan.changes import change_of
from plafond.plan.forecast import Forecaster, Phase, Plan
from plafond.plan.remedies import Remedy, remedies
from plafond.plan.rungs import ladder
from plafond.plan.terminal import ceiling_of

ON_THE_CARD = (
    "does_not_fit",
    "bucket_peak",
    "video_frames",
    "fragmentation",
    "regression",
    "other_process",
    "spill",
)
"""Causes that a plan of the card's memory can confirm or not."""

IN_A_JOB = frozenset(
    {
        "checkpointing_on",
        "leaner_plan",
        "smaller_batch",
        "cache_text_unload_te",
        "cheaper_preview",
        "stream_blocks",
        "quantize",
        "quantize_te",
        "eight_bit_optimizer",
        "drop_top_bucket",
        "smaller_rank",
    }
)
"""Remedies that are rungs of a job's ladder; those that the job has taken are not on it any more."""

PLANNED_AS = {"quantize": "load"}
"""Phases of a log that a plan counts under another name."""


def ceiling_then(diagnosis: Diagnosis, vram: str | None, gpu: str | None, *, virtual: bool) -> Ceiling | None:
    """The ceiling that a run was under: what is asked for, else the card's size by its own message, else unknown.

    Args:
        diagnosis: what its log says.
        vram: ``--vram``.
        gpu: ``--gpu``.
        virtual: it ran on a virtual GPU.
    """
    if vram is None and gpu is None:
        if diagnosis.total is None or diagnosis.total < GIB:
            return None
        vram = f"{diagnosis.total}B"
    return ceiling_of(vram, gpu, virtual=virtual)


def against_job(
    diagnosis: Diagnosis,
    processes: Sequence[ProcessConfig],
    ceiling: Ceiling | None,
    *,
    virtual: bool,
    theirs: bool = False,
    step: Callable[[str, int, int], None] | None = None,
) -> Diagnosis:
    """A diagnosis with what the job adds: its plan where a plan can tell, and what is left to change in it.

    Args:
        diagnosis: what the log says.
        processes: the job's, of which one failed.
        ceiling: what it ran under; None when that is not known.
        virtual: it ran on a virtual GPU.
        theirs: the log is AI Toolkit's.
        step: told what is dry-run.
    """
    if not diagnosis.memory:
        return diagnosis
    if diagnosis.cause not in ON_THE_CARD or ceiling is None:
        return for_job(diagnosis, processes[0], None)
    plans = [Forecaster(process, ceiling, virtual=virtual, step=step).plan() for process in processes]
    index = culprit(diagnosis, plans)
    there = AiToolkit(processes[index], ceiling, virtual=virtual, step=step).plan() if theirs else None
    return for_job(diagnosis, processes[index], plans[index], there)


def culprit(diagnosis: Diagnosis, plans: Sequence[Plan]) -> int:
    """Which of a job's processes failed: the first that does not fit where the log says, else that does not at all."""
    phase = PLANNED_AS.get(diagnosis.phase or "", diagnosis.phase)
    over = [{found.phase for found in plan.phases if not found.fits} for plan in plans]
    there = (index for index, phases in enumerate(over) if phase in phases)
    anywhere = (index for index, phases in enumerate(over) if phases)
    return next(there, next(anywhere, 0))


def for_job(
    diagnosis: Diagnosis, process: ProcessConfig, plan: Plan | None, there: Plan | None = None
) -> Diagnosis:
    """Fit a diagnosis to the job: what it has done already goes, the rest gets its change and its saving.

    Args:
        diagnosis: what the log says.
        process: the job's process.
        plan: its plan under the ceiling that it ran under; None when that is not known.
        there: the plan of AI Toolkit's run, where the log is one of those.
    """
    if diagnosis.cause in ON_THE_CARD and plan is not None:
        diagnosis = _checked(diagnosis, there or plan, there=there is not None)
    advised = {advice.id for advice in diagnosis.remedies}
    if diagnosis.phase == "train" and advised & IN_A_JOB:
        advised.add("leaner_plan")
    found = {} if plan is None else {remedy.id: remedy for remedy in remedies(plan, only=advised)}
    fitted = _fitted(diagnosis, process, found)
    leaner = found.get("leaner_plan")
    if leaner is not None and "checkpointing_on" not in {advice.id for advice in fitted}:
        fitted = _inserted(fitted, leaner)
    return replace(diagnosis, remedies=fitted)


def _checked(diagnosis: Diagnosis, plan: Plan, *, there: bool) -> Diagnosis:
    """Add the plan's word, and be as sure as it allows."""
    phase = PLANNED_AS.get(diagnosis.phase or "", diagnosis.phase)
    over = [found for found in plan.phases if not found.fits]
    same = next((found for found in over if found.phase == phase), None)
    if same is not None:
        diagnosis, said = replace(diagnosis, confidence="high"), _said(AGREES, same, plan)
    elif over:
        said = _said(ELSEWHERE_THERE if there else ELSEWHERE, over[0], plan)
    else:
        said = _said(FITS_THERE if there else FITS, plan.peak, plan)
        if diagnosis.confidence == "high" and diagnosis.cause in ("does_not_fit", "bucket_peak"):
            diagnosis = replace(diagnosis, confidence="medium")
    return replace(diagnosis, summary=(*diagnosis.summary, said))


def _said(text: str, phase: Phase, plan: Plan) -> Said:
    sizes = {"needs": Size(phase.device_bytes), "ceiling": Size(plan.ceiling.bytes)}
    return Said(text, {"phase": Said(PHASES[phase.phase]), **sizes})


def _fitted(diagnosis: Diagnosis, process: ProcessConfig, found: Mapping[str, Remedy]) -> tuple[Advice, ...]:
    rungs = {rung.id: rung for rung in ladder(process)}
    fitted = []
    for advice in diagnosis.remedies:
        pictures_of_the_vae = advice.id == "smaller_batch" and diagnosis.phase == "cache_latents"
        if advice.id not in IN_A_JOB or pictures_of_the_vae:
            fitted.append(advice)
        elif remedy := found.get(advice.id):
            fitted.append(replace(advice, change=remedy.change, saves_bytes=remedy.saves_bytes))
        elif rung := rungs.get(advice.id):
            fitted.append(replace(advice, change=change_of(process, rung.options[0].values)))
    return tuple(fitted)


def _inserted(advice: tuple[Advice, ...], leaner: Remedy) -> tuple[Advice, ...]:
    """With a leaner plan before all else that can be changed in the job."""
    place = next((index for index, one in enumerate(advice) if one.id in IN_A_JOB), len(advice))
    why = Said(WHY["leaner_plan"])
    new = Advice(id="leaner_plan", why=why, change=leaner.change, saves_bytes=leaner.saves_bytes)
    return (*advice[:place], new, *advice[place:])

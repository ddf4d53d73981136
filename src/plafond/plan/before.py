"""Planning before training: refuse what cannot fit, say one line when it does, hand the numbers to the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from plafond.activations.plan import is_open
from plafond.errors import DoesNotFitError
from plafond.job.folders import missing_folders
from plafond.language.said import N_, WORDS, ExactSize, Said, Speak
from plafond.memory.calibration import with_overhead
from plafond.memory.gpus import Ceiling, catalogued, context_overhead
from plafond.plan.forecast import Forecaster, Plan
from plafond.plan.remedies import remedies
from plafond.plan.report import sentence, text
from plafond.plan.terminal import VIRTUAL, announced, ceiling_of, free_on
from plafond.training.budget import Budget

if TYPE_CHECKING:
    from plafond.job.schema import Job


def budgets_of(
    job: Job,
    device: torch.device,
    *,
    vram: str | None,
    gpu: str | None,
    force: bool,
    say: Callable[[str], None],
    speak: Speak,
) -> list[Budget]:
    """Plan every process and return what each may take; empty when nothing limits the device.

    Args:
        job: what will be run.
        device: where.
        vram: ``--vram``; on the CPU the size of a virtual GPU.
        gpu: ``--gpu``.
        force: go on although the plan says that the job does not fit.
        say: told one line about each process that is going to run.
        speak: puts that line and the report into the reader's language.

    Raises:
        DoesNotFitError: with the whole report, unless `force`.
        UsageError: the ceiling cannot be read.
    """
    virtual = device.type == "cpu"
    if virtual and vram is None and gpu is None:
        return []
    for error in missing_folders(job):
        raise error
    ceiling = ceiling_on(device, vram, gpu)
    budgets = []
    for index, process in enumerate(job.processes):
        with announced(speak) as step, job.placing(index):
            plan = Forecaster(process, ceiling, virtual=virtual, step=step).plan()
        if plan.verdict == "oom" and not force:
            with announced(speak):
                found = remedies(plan)
            report = text(job, plan, found, [plan.shapes.assumed] if plan.shapes.assumed else [], speak)
            nothing = speak(Said(N_("Nothing was run; --force runs it all the same.")))
            raise DoesNotFitError(WORDS, words=f"{report}\n\n{nothing}")
        say(speak(Said(N_("{job}: {text}"), {"job": job.name, "text": sentence(plan, speak)})))
        budgets.append(budget_of(plan))
    return budgets


def budgets_under(job: Job, device: torch.device, *, ceiling: int | None, recover: bool) -> list[Budget]:
    """What each process may take, whatever a plan would say; only one that asks for the fastest plan is planned.

    Args:
        job: what will be run.
        device: where.
        ceiling: most bytes for tensors; on a GPU what it has free when not given, on the CPU no limit.
        recover: after an out-of-memory go on in a leaner way.
    """
    virtual = device.type == "cpu"
    found = [Budget(ceiling=ceiling, recover=recover) for _ in job.processes]
    if (virtual and ceiling is None) or not any(map(is_open, job.processes)):
        return found
    for error in missing_folders(job):
        raise error
    limit = ceiling_on(device, None, None) if ceiling is None else _of_tensors(ceiling, device)
    for index, process in enumerate(job.processes):
        if is_open(process):
            with announced() as step, job.placing(index):
                plan = Forecaster(process, limit, virtual=virtual, step=step).plan(only={"train"})
            found[index] = replace(budget_of(plan), ceiling=ceiling, recover=recover)
    return found


def _of_tensors(ceiling: int, device: torch.device) -> Ceiling:
    if device.type == "cpu":
        return Ceiling(ceiling, 0, Said(VIRTUAL, {"size": ExactSize(ceiling)}), None)
    overhead, gpu = context_overhead(), catalogued(torch.cuda.get_device_name(device))
    said = Said(N_("{size} for tensors"), {"size": ExactSize(ceiling)})
    return Ceiling(ceiling + overhead, overhead, said, gpu)


def ceiling_on(device: torch.device, vram: str | None, gpu: str | None) -> Ceiling:
    """The ceiling that is asked for; on a GPU by default what it has free."""
    return ceiling_of(vram, gpu, virtual=True) if device.type == "cpu" else _on_gpu(device, vram, gpu)


def budget_of(plan: Plan) -> Budget:
    """What a run may take, by its plan."""
    predicted = {
        str(phase.bucket): phase.summary.allocated_bytes for phase in plan.phases if phase.phase == "train"
    }
    limit = plan.ceiling.bytes if plan.virtual else plan.ceiling.reserved_bytes
    return Budget(ceiling=limit, predicted=predicted, activations=plan.activations)


def _on_gpu(device: torch.device, vram: str | None, gpu: str | None) -> Ceiling:
    """The ceiling that is asked for, or what a real GPU has free at the moment for this process."""
    name = torch.cuda.get_device_name(device)
    if vram or gpu:
        ceiling = ceiling_of(vram, gpu, virtual=False, device=name)
        return replace(ceiling, gpu=ceiling.gpu or catalogued(name))
    free, _ = torch.cuda.mem_get_info(device)
    ceiling = with_overhead(Ceiling(free, context_overhead(), free_on(name, free), catalogued(name)), name)
    # this process's own context is on the device already, so it is no longer among the free bytes
    return replace(ceiling, bytes=free + ceiling.overhead_bytes)

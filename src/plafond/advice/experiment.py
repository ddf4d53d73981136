"""The experiment of turning checkpointing off: one job, one variable, every bucket, one preview."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import plafond
from plafond.job.schema import ProcessConfig
from plafond.language.said import N_, Percent, Said, Speak
from plafond.plan.before import budget_of, ceiling_on
from plafond.plan.forecast import Forecaster, Plan
from plafond.plan.terminal import announced
from plafond.plan.words import NAMES
from plafond.training.recovery import place_of
from plafond.training.run_folder import RunFolder
from plafond.training.start import run_each

LARGE_BATCH = N_("train.batch_size is {number}: 1 is the conservative start, with accumulation for the rest")
LARGE_PREVIEWS = N_(
    "the previews are larger than what is trained; smaller ones, or none, keep them out of the question"
)
AT_THE_LIMIT = N_(
    "even with checkpointing the job is at its limit; a smaller top bucket makes room for the experiment"
)
FIRST_OF_SEVERAL = N_("the job has {number} processes; the first is tried")
DOES_NOT_RUN = N_("with checkpointing off it does not run ({failure}); {why}")
RUNS = N_("off is {gain} faster than on, ran through {buckets}, and fits by plan")

SETTINGS = ("true", "auto", "false")
"""Values of ``train.gradient_checkpointing`` in the order in which they are tried: the safe one first."""

WARM = 2
"""Steps after the buckets' tour of which the times are not counted."""

WORTH = 1.05
"""A setting is recommended over a leaner one when its steps are faster by this factor."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting.

    Args:
        setting: the value of ``train.gradient_checkpointing``.
        verdict: of its plan.
        planned_bytes: device bytes of its plan's peak.
        left_bytes: what its plan leaves under the ceiling.
        seconds: median time of a step; None when it did not run to its end.
        peak_bytes: most allocated bytes in training; None where nobody counts.
        buckets: buckets that were trained.
        failure: where it ran out of memory, in the run's own words, or why it was not run.
    """

    setting: str
    verdict: str
    planned_bytes: int
    left_bytes: int
    seconds: float | None = None
    peak_bytes: int | None = None
    buckets: tuple[str, ...] = ()
    failure: Said | str | None = None

    @property
    def stable(self) -> bool:
        """Whether it ran to its end."""
        return self.seconds is not None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All settings side by side, and what follows.

    Args:
        trials: in the order of `SETTINGS`; the ones after a failure of the safe setting are missing.
        cautions: preconditions of the protocol that the job does not meet.
        recommended: the value to use.
        why: one sentence.
    """

    trials: tuple[Trial, ...]
    cautions: tuple[Said, ...]
    recommended: str
    why: Said


def experiment(
    job: Path,
    *,
    device: torch.device,
    vram: str | None,
    gpu: str | None,
    steps: int,
    overrides: tuple[str, ...] = (),
    say: Callable[[Said], None] = lambda _: None,
    speak: Speak = str,
) -> Experiment:
    """Run the job for some steps with each setting; its file and its own run folder are not touched.

    Args:
        job: the job file.
        device: where.
        vram: ``--vram``.
        gpu: ``--gpu``.
        steps: so many of each, after one on the fullest batch of every bucket.
        overrides: ``--set`` of the command line.
        say: told what is tried.
        speak: puts into words what a run says meanwhile.
    """
    processes = len(plafond.load_job(job, overrides=overrides).processes)
    trials: list[Trial] = []
    cautions: tuple[Said, ...] = ()
    for setting in SETTINGS:
        with announced(speak) as step:
            changed = (*overrides, f"train.gradient_checkpointing={setting}")
            plan = _plan(job, device, vram, gpu, changed, step)
        if not trials:
            cautions = tuple(_cautions(plan, processes))
        say(Said(N_("gradient_checkpointing: {setting} is tried"), {"setting": setting}))
        trial = _try(job, device, plan, setting, steps, overrides, speak)
        trials.append(trial)
        if setting == "true" and not trial.stable:
            break  # without a stable run there is nothing to compare with
    recommended, why = _conclusion({trial.setting: trial for trial in trials})
    return Experiment(trials=tuple(trials), cautions=cautions, recommended=recommended, why=why)


def _plan(
    job: Path,
    device: torch.device,
    vram: str | None,
    gpu: str | None,
    overrides: tuple[str, ...],
    step: Callable[[str, int, int], None],
) -> Plan:
    process = plafond.load_job(job, overrides=overrides).processes[0]
    ceiling = ceiling_on(device, vram, gpu)
    return Forecaster(process, ceiling, virtual=device.type == "cpu", step=step).plan()


def _cautions(plan: Plan, processes: int) -> Iterator[Said]:
    """What a careful person would change, or know, before the experiment."""
    if processes > 1:
        yield Said(FIRST_OF_SEVERAL, {"number": processes})
    train, samples = plan.process.train, plan.process.sample.samples
    if train.batch_size > 1:
        yield Said(LARGE_BATCH, {"number": train.batch_size})
    largest = max((item.width * item.height for item in samples), default=0)
    trained = max((bucket.pixels for bucket in plan.shapes.batches), default=0)
    if not train.disable_sampling and largest > trained:
        yield Said(LARGE_PREVIEWS)
    if plan.verdict != "fits":
        yield Said(AT_THE_LIMIT)


def _try(
    job: Path,
    device: torch.device,
    plan: Plan,
    setting: str,
    steps: int,
    overrides: tuple[str, ...],
    speak: Speak,
) -> Trial:
    planned = Trial(
        setting=setting,
        verdict=plan.verdict,
        planned_bytes=plan.peak.device_bytes,
        left_bytes=plan.ceiling.bytes - plan.peak.device_bytes,
    )
    if plan.verdict == "oom":
        phase = Said(NAMES[plan.peak.phase])
        return replace(planned, failure=Said(N_("not run: by plan {phase} does not fit"), {"phase": phase}))
    tour = len(plan.shapes.batches)
    loaded = plafond.load_job(
        job,
        overrides=[
            *overrides,
            f"train.gradient_checkpointing={setting}",
            f"train.steps={tour + WARM + steps}",
            f"training_folder={Path(plan.process.training_folder) / 'gc-test'}",
        ],
    )
    process = _with_one_preview(loaded.processes[0])
    loaded = replace(loaded, name=f"{loaded.name}-{setting}", processes=(process,))
    budget = replace(budget_of(plan), recover=False, tour=True)
    try:
        (result,) = run_each(loaded, device=str(device), fresh=True, budgets=[budget], speak=speak)
    except torch.OutOfMemoryError as error:
        return replace(planned, failure=place_of(error) or str(error).splitlines()[0])
    rows = RunFolder(str(result.folder.parent), result.folder.name).read_metrics()
    peaks = [row["allocated_peak"] for row in rows if row["allocated_peak"] is not None]
    return replace(
        planned,
        seconds=statistics.median(row["seconds"] for row in rows[tour + WARM :]),
        peak_bytes=max(peaks) if peaks else None,
        buckets=tuple(dict.fromkeys(row["bucket"] for row in rows)),
    )


def _with_one_preview(process: ProcessConfig) -> ProcessConfig:
    """The process with the largest of its previews only, drawn once, at the end."""
    samples = process.sample.samples
    largest = sorted(samples, key=lambda item: item.width * item.height * item.num_frames)[-1:]
    sample = process.sample.model_copy(update={"samples": tuple(largest)})
    once = {"skip_first_sample": True, "force_first_sample": False}
    return process.model_copy(update={"sample": sample, "train": process.train.model_copy(update=once)})


def _conclusion(trials: dict[str, Trial]) -> tuple[str, Said]:
    on, auto, off = (trials.get(setting) for setting in SETTINGS)
    if on is None or on.seconds is None:
        return "true", Said(N_("there is no stable run with checkpointing on; make one first"))
    best, why = "true", Said(N_("the other settings are not faster"))
    if auto is not None and auto.seconds is not None and on.seconds / auto.seconds >= WORTH:
        gain = Percent(on.seconds / auto.seconds - 1)
        best, why = (
            "auto",
            Said(N_("auto is {gain} faster and stays under the ceiling by plan"), {"gain": gain}),
        )
    if off is None or off.seconds is None:
        failure = off.failure if off is not None and off.failure is not None else Said(N_("not tried"))
        return best, Said(DOES_NOT_RUN, {"failure": failure, "why": why})
    fastest = auto.seconds if best == "auto" and auto is not None and auto.seconds is not None else on.seconds
    if fastest / off.seconds >= WORTH:
        return "false", Said(RUNS, {"gain": Percent(on.seconds / off.seconds - 1), "buckets": off.buckets})
    return best, why

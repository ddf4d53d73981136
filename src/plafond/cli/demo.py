"""``plafond demo``: run out of memory as predicted, then train the same job under the same ceiling."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import plafond
from plafond.cli.lang import Lang, spoken
from plafond.errors import PlafondError, UsageError
from plafond.language.said import N_, ExactSize, Said, Value

if TYPE_CHECKING:
    from torch import OutOfMemoryError

    from plafond.job.schema import Job
    from plafond.plan.forecast import Plan
    from plafond.training.result import Result

EXAMPLES = Path(plafond.__file__).resolve().parents[2] / "examples"

CEILING = "75MB"
"""Between what the job takes with checkpointing and without, with room on either side."""

WITHOUT = N_("1  A LoRA of one cat, gradient_checkpointing: false, on a virtual GPU of {ceiling}")
WITH = N_("2  The same job, gradient_checkpointing: true; this takes a few minutes on two cores")
FITS_WITHOUT = N_("the demo is broken: without checkpointing the job fits into {ceiling}")
COMPLETED = N_("the demo is broken: the plan said out of memory in {place}, but the run completed")
ELSEWHERE = N_("the demo is broken: memory ran out {place}, not in {expected} as the plan said")
DOES_NOT_FIT = N_("the demo is broken: with checkpointing the job does not fit into {ceiling}")
RAN_OUT = N_("the demo is broken: the plan said that it fits, but memory ran out {place}")
TOOK_MORE = N_("the demo is broken: the steps took {size} bytes more than the plan said")
PEAK = N_("of the steps: predicted {predicted}, measured {measured}, at {bucket}")


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("output"),
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps instead of the demo's.")] = None,
    lang: Lang = None,
) -> None:
    """Train the demo job on the CPU under a virtual ceiling: without checkpointing, which fails, then with it.

    The job is a LoRA of one cat on the tiny model that comes with plafond. Exit code 1 when what happens is not
    what the plan said.
    """
    # The model is so small that a second thread gains little, and loses a lot when the machine has other work.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    job_file = EXAMPLES / "demo.yaml"
    if not job_file.is_file():
        raise UsageError(N_("the demo needs a source checkout of plafond: found no {file}"), file=job_file)
    common = [
        f"training_folder={output}",
        f"datasets.0.folder_path={EXAMPLES / 'photos'}",
        f"datasets.1.folder_path={EXAMPLES / 'regularisation'}",
        f"model.name_or_path={Path(plafond.__file__).parent / 'assets' / 'tiny-flux'}",
    ]
    off = plafond.load_job(
        job_file, name="chelsea-out-of-memory", overrides=[*common, "train.gradient_checkpointing=false"]
    )
    on = plafond.load_job(job_file, overrides=[*common, *([] if steps is None else [f"train.steps={steps}"])])
    speak = spoken()
    typer.echo(speak(Said(WITHOUT, {"ceiling": CEILING})))
    fails_as_predicted(off)
    typer.echo(f"\n{speak(Said(WITH))}")
    fits_as_predicted(on)


def fails_as_predicted(job: Job) -> None:
    """Plan a job that is too large, run it all the same, and compare where it stopped.

    Raises:
        PlafondError: the plan says that it fits, or the run ended otherwise than the plan said.
    """
    from torch import OutOfMemoryError

    from plafond.plan.remedies import each_remedy
    from plafond.plan.report import remedy_lines, sentence
    from plafond.plan.words import place

    plan, speak = _plan(job), spoken()
    _say(N_("plan"), sentence(plan, speak))
    if plan.verdict != "oom":
        raise PlafondError(FITS_WITHOUT, ceiling=CEILING)
    remedy = next(each_remedy(plan))
    _say(N_("remedy"), *(line.strip() for line in remedy_lines(remedy, speak)))
    _say(N_("run"), Said(N_("all the same, as with --force")))
    first = next(phase for phase in plan.phases if not phase.fits)
    expected = place(first.phase, first.bucket)
    try:
        _run(job)
    except OutOfMemoryError as error:
        found = _place(error)
        _say(N_("predicted"), Said(N_("out of memory in {place}"), {"place": expected}))
        _say(N_("happened"), Said(N_("out of memory {place}"), {"place": found}))
        if first.phase != "train" or str(first.bucket) not in str(found):
            raise PlafondError(ELSEWHERE, place=found, expected=expected) from error
        return
    raise PlafondError(COMPLETED, place=expected)


def fits_as_predicted(job: Job) -> None:
    """Plan a job that fits, train it, and compare its peak.

    Raises:
        PlafondError: the plan says that it does not fit, or memory ran out all the same.
    """
    from torch import OutOfMemoryError

    from plafond.cli.train import summary
    from plafond.plan.report import sentence
    from plafond.training.run_folder import RunFolder

    plan, speak = _plan(job), spoken()
    _say(N_("plan"), sentence(plan, speak))
    if plan.verdict == "oom":
        raise PlafondError(DOES_NOT_FIT, ceiling=CEILING)
    try:
        result = _run(job)
    except OutOfMemoryError as error:
        raise PlafondError(RAN_OUT, place=_place(error)) from error
    typer.echo(summary(result, speak))
    rows = RunFolder(result.folder.parent, result.name).read_metrics()
    fullest = max(rows, key=lambda row: row["allocated_peak"])
    said, was = fullest["predicted_peak"], fullest["allocated_peak"]
    values: dict[str, Value] = {"predicted": ExactSize(said), "measured": ExactSize(was)}
    _say(N_("peak"), Said(PEAK, {**values, "bucket": fullest["bucket"]}))
    if was > said:
        raise PlafondError(TOOK_MORE, size=was - said)


def _plan(job: Job) -> Plan:
    from plafond.plan.forecast import Forecaster
    from plafond.plan.terminal import announced, ceiling_of

    (process,) = job.processes
    with announced(spoken()) as step:
        return Forecaster(process, ceiling_of(CEILING, None, virtual=True), virtual=True, step=step).plan()


def _run(job: Job) -> Result:
    from plafond.plan.before import budgets_of
    from plafond.training.start import choose_device, run_each

    budgets = budgets_of(
        job,
        choose_device("cpu"),
        vram=CEILING,
        gpu=None,
        force=True,
        say=lambda sentence: None,
        speak=spoken(),
    )
    plain = [replace(budget, recover=False) for budget in budgets]
    (result,) = run_each(job, device="cpu", fresh=True, budgets=plain, speak=spoken())
    return result


def _place(error: OutOfMemoryError) -> Said:
    """Where memory ran out."""
    from plafond.training.recovery import place_of

    return place_of(error) or Said(N_("outside of training"))


def _say(label: str, *lines: Value) -> None:
    speak = spoken()
    for index, line in enumerate(lines):
        typer.echo(f"   {speak(Said(label)) if index == 0 else '':<10} {speak(line)}")

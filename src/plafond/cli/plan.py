"""``plafond plan JOB``: what the job will take, phase by phase, before a weight is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import plafond
from plafond.cli.lang import Lang, spoken
from plafond.errors import UsageError
from plafond.language.said import N_

if TYPE_CHECKING:
    from plafond.language.said import Value


def plan(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="AI Toolkit job file (YAML or JSON).")],
    vram: Annotated[str | None, typer.Option(metavar="SIZE", help="The ceiling, as 24GB or 600MB.")] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help='A card, as "RTX 4090"; plafond gpus lists them.')
    ] = None,
    device: Annotated[str, typer.Option(help="auto or cuda: a GPU; cpu: a virtual GPU on the CPU.")] = "auto",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a setting, as train.batch_size=1; repeatable."
        ),
    ] = None,
    frontier: Annotated[
        bool, typer.Option("--frontier", help="Show what other activation plans take and how fast they are.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the plan, or the frontier.")
    ] = None,
    as_: Annotated[
        str | None,
        typer.Option("--as", metavar="ai-toolkit", help="Show beside it what AI Toolkit's run would take."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Unknown keys are errors.")] = False,
    lang: Lang = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what VRAM each phase will take and whether it fits; exit code 3 when it does not."""
    from plafond.plan import frontier as front
    from plafond.plan.ai_toolkit import AiToolkit
    from plafond.plan.forecast import Forecaster
    from plafond.plan.notes import notes_of
    from plafond.plan.remedies import remedies
    from plafond.plan.report import as_json, in_ai_toolkit, in_ai_toolkit_as_json, text
    from plafond.plan.terminal import announced, ceiling_of, is_virtual

    if as_ not in (None, "ai-toolkit"):
        raise UsageError(N_("--as {name}: expected ai-toolkit"), name=as_)
    speak = spoken()
    loaded = plafond.load_job(job, overrides=set_ or (), strict=strict)
    virtual = is_virtual(device)
    ceiling = ceiling_of(vram, gpu, virtual=virtual)
    for index, process in enumerate(loaded.processes):
        with announced(speak) as step, loaded.placing(index):
            forecaster = Forecaster(process, ceiling, virtual=virtual, step=step)
            found = forecaster.plan()
            help_ = () if found.verdict == "fits" else remedies(found)
            line = front.frontier_of(forecaster, found) if frontier else None
            theirs = AiToolkit(process, ceiling, virtual=virtual, step=step).plan() if as_ else None
        warnings: list[Value] = [*loaded.remarks, *notes_of(found)]
        if json_:
            answer = as_json(loaded, found, help_, warnings, speak)
            answer |= {"frontier": front.as_json(line)} if line else {}
            answer |= {"ai_toolkit": in_ai_toolkit_as_json(theirs)} if theirs else {}
            typer.echo(json.dumps(answer, indent=1))
        else:
            typer.echo(text(loaded, found, help_, warnings, speak))
            if theirs is not None:
                typer.echo(in_ai_toolkit(theirs, speak))
            if line is not None:
                typer.echo(f"\n{front.text(line, speak)}")
        if plot is not None:
            from plafond.plan.plot import draw, draw_frontier

            if line is None:
                draw(plot, found, loaded.name, speak)
            else:
                draw_frontier(plot, line, loaded.name, speak)
        if found.verdict == "oom":
            raise typer.Exit(3)

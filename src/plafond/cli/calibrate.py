"""``plafond calibrate``: compare predictions with this machine, and measure what later plans can use."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from plafond.cli.lang import Lang, spoken


def calibrate(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    lang: Lang = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run real phases with random weights, compare their memory with the plan's, and measure the device.

    Nothing is downloaded. What is measured is kept; later plans for this device use it.
    """
    from plafond.memory.expandable import set_up

    set_up()
    import platformdirs

    from plafond.memory.calibration import save
    from plafond.plan.trial import Trial
    from plafond.plan.trial_report import as_json, text
    from plafond.report.terminal import Terminal
    from plafond.training.chatter import to_log
    from plafond.training.start import choose_device

    chosen, speak = choose_device(device), spoken()
    with (
        to_log(platformdirs.user_cache_path("plafond") / "calibrate-log.txt") as stream,
        Terminal(stream, speak=speak) as terminal,
    ):
        result = Trial(chosen, terminal.doing).run()
    save(result.record)
    typer.echo(json.dumps(as_json(result, speak), indent=1) if json_ else text(result, speak))

"""Progress: a live line in a terminal, a line now and then in a pipe, nothing for short work."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from plafond.report import terminal as module
from plafond.report.terminal import Terminal


@pytest.mark.parametrize(
    ("live", "patience", "drawn"), [(True, 0.0, True), (True, 99.0, False), (False, 0.0, False)]
)
def test_a_bar_appears_on_a_terminal_when_the_work_lasts(
    monkeypatch: pytest.MonkeyPatch, live: bool, patience: float, drawn: bool
) -> None:
    monkeypatch.setattr(module, "PATIENCE", patience)
    screen = io.StringIO()
    monkeypatch.setattr(
        module, "Console", lambda **options: Console(**{**options, "force_terminal": live, "width": 80})
    )
    with Terminal(screen) as terminal:
        report = terminal.phase("latents")
        for done in range(3):
            report(done, 3)
            terminal.progress.refresh()
        report(3, 3)
    assert ("latents" in screen.getvalue()) == drawn


def test_a_pipe_gets_the_last_step_without_control_characters() -> None:
    screen = io.StringIO()
    with Terminal(screen) as terminal:
        show = terminal.training(0, 3, 2)
        for step in (1, 2, 3):
            show(step, 0.5)
        terminal.warn("a [trigger] in brackets stays")
    assert "step 2/3  loss 0.5000" in screen.getvalue()
    assert "step 3/3  loss 0.5000" in screen.getvalue()
    assert "warning: a [trigger] in brackets stays\n" in screen.getvalue()
    assert "\x1b" not in screen.getvalue()

"""A fitted job in words and as JSON."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plafond.memory.gpus import gib
from plafond.plan.fit import Fitted
from plafond.plan.forecast import Plan
from plafond.plan.report import beside, changes, sentence, wrapped
from plafond.plan.search import Step


def text(fitted: Fitted, written: Path | None) -> str:
    """What was changed, what each change saves and costs, and what the job takes now.

    Args:
        fitted: what was found.
        written: the file that the changed job went to, if it was written.
    """
    before, after = (_verdicts(plans) for plans in (fitted.before, fitted.after))
    head = f"{fitted.job.name}: ceiling {fitted.before[0].ceiling.description}"
    lines = [*wrapped(head), *before]
    if fitted.steps and fitted.fits:
        lines += ["", diff(fitted, written), "", "What each change saves, and how long steps take with it:"]
        lines += [line for step in fitted.steps for line in _step_lines(fitted, step)]
        lines += ["", *after]
    elif fitted.steps:
        ids = ", ".join(dict.fromkeys(step.id for step in fitted.steps))
        lines += ["", *wrapped(f"What is allowed is not enough ({ids}):"), *after]
    for part in (*fitted.missing, fitted.faster):
        lines += wrapped(part)
    if written is not None:
        lines += [f"Written to {written}."]
    elif fitted.fits:
        lines += ["Nothing was written."]
    return "\n".join(lines)


def diff(fitted: Fitted, written: Path | None) -> str:
    """The changed lines of the file."""
    old, new = (text.splitlines() for text in (fitted.job.text, fitted.text))
    name = fitted.job.path.name
    target = written.name if written is not None else name
    return "\n".join(difflib.unified_diff(old, new, name, target, n=1, lineterm=""))


def _verdicts(plans: tuple[Plan, ...]) -> list[str]:
    found = []
    for index, plan in enumerate(plans):
        where = f"process {index}: " if len(plans) > 1 else ""
        found += wrapped(where + sentence(plan))
    return found


def _step_lines(fitted: Fitted, step: Step) -> list[str]:
    marks = [f"saves {gib(step.saves_bytes)}" if step.saves_bytes > 0 else "saves nothing at the peak"]
    if abs(step.time_ratio - 1) >= 0.005:
        marks.append(f"steps {step.time_ratio:.2f}× as long")
    if step.quality != "same":
        marks.append("quality may change")
    where = f" (process {step.process})" if len(fitted.before) > 1 else ""
    return beside(step.id, changes(step.change) + where, step.why, "; ".join(marks))


def as_json(fitted: Fitted, written: Path | None) -> Mapping[str, Any]:
    """The result for scripts; sizes in bytes."""
    return {
        "schema": 1,
        "job": fitted.job.name,
        "ceiling_bytes": fitted.before[0].ceiling.bytes,
        "fits": fitted.fits,
        "verdict": [plan.verdict for plan in fitted.after],
        "peak_bytes": {
            "before": [plan.peak.device_bytes for plan in fitted.before],
            "after": [plan.peak.device_bytes for plan in fitted.after],
        },
        "changes": [
            {
                "id": step.id,
                "process": step.process,
                "change": {key: list(values) for key, values in step.change.items()},
                "saves_bytes": step.saves_bytes,
                "time_ratio": step.time_ratio,
                "quality": step.quality,
                "why": step.why,
            }
            for step in fitted.steps
        ],
        "missing": list(fitted.missing),
        "faster": fitted.faster or None,
        "diff": diff(fitted, written),
        "file": None if written is None else str(written),
    }

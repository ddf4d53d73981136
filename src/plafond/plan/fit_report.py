"""A fitted job in words and as JSON."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plafond.language.said import N_, ExactSize, Said, Speak, Value, listed
from plafond.plan.fit import Fitted
from plafond.plan.forecast import Plan
from plafond.plan.report import beside, costs, sentence, wrapped
from plafond.plan.search import Step
from plafond.plan.words import shown

EACH = N_("What each change saves, and how long steps take with it:")


def text(fitted: Fitted, written: Path | None, speak: Speak) -> str:
    """What was changed, what each change saves and costs, and what the job takes now.

    Args:
        fitted: what was found.
        written: the file that the changed job went to, if it was written.
        speak: puts sentences into the reader's language.
    """
    before, after = (_verdicts(plans, speak) for plans in (fitted.before, fitted.after))
    values: dict[str, Value] = {"job": fitted.job.name, "ceiling": fitted.before[0].ceiling.description}
    lines = [*wrapped(speak(Said(N_("{job}: ceiling {ceiling}"), values))), *before]
    if fitted.steps and fitted.fits:
        lines += ["", diff(fitted, written), "", speak(Said(EACH))]
        lines += [line for step in fitted.steps for line in _step_lines(fitted, step, speak)]
        lines += ["", *after]
    elif fitted.steps:
        ids = tuple(dict.fromkeys(step.id for step in fitted.steps))
        said = Said(N_("What is allowed is not enough ({remedies}):"), {"remedies": ids})
        lines += ["", *wrapped(speak(said)), *after]
    for part in fitted.missing:
        lines += wrapped(speak(part))
    lines += wrapped(_faster(fitted, speak))
    if written is not None:
        lines += [speak(Said(N_("Written to {file}."), {"file": str(written)}))]
    elif fitted.fits:
        lines += [speak(Said(N_("Nothing was written.")))]
    return "\n".join(lines)


def _faster(fitted: Fitted, speak: Speak) -> str:
    return " ".join(map(speak, fitted.faster))


def diff(fitted: Fitted, written: Path | None) -> str:
    """The changed lines of the file."""
    old, new = (text.splitlines() for text in (fitted.job.text, fitted.text))
    name = fitted.job.path.name
    target = written.name if written is not None else name
    return "\n".join(difflib.unified_diff(old, new, name, target, n=1, lineterm=""))


def _verdicts(plans: tuple[Plan, ...], speak: Speak) -> list[str]:
    found = []
    for index, plan in enumerate(plans):
        values: dict[str, Value] = {"number": index, "text": sentence(plan, speak)}
        several = Said(N_("process {number}: {text}"), values)
        found += wrapped(speak(several if len(plans) > 1 else values["text"]))
    return found


def _step_lines(fitted: Fitted, step: Step, speak: Speak) -> list[str]:
    saves = Said(N_("saves {size}"), {"size": ExactSize(step.saves_bytes)})
    marks = [
        saves if step.saves_bytes > 0 else Said(N_("saves nothing at the peak")),
        *costs(step.time_ratio, step.quality),
    ]
    process = Said(N_("process {number}"), {"number": step.process})
    where = f" ({speak(process)})" if len(fitted.before) > 1 else ""
    return beside(step.id, shown(step.change) + where, speak(step.why), speak(listed(marks)))


def as_json(fitted: Fitted, written: Path | None, speak: Speak) -> Mapping[str, Any]:
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
                "why": speak(step.why),
            }
            for step in fitted.steps
        ],
        "missing": [speak(said) for said in fitted.missing],
        "faster": _faster(fitted, speak) or None,
        "diff": diff(fitted, written),
        "file": None if written is None else str(written),
    }

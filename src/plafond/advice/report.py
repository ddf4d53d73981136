"""A diagnosis as text and as JSON."""

from __future__ import annotations

import textwrap
from typing import Any

from plafond.advice.diagnosis import Advice, Diagnosis
from plafond.advice.sentences import HEADINGS, SURE
from plafond.language.said import Said, Size, Speak, Value, listed
from plafond.plan.words import shown

WIDTH = 100


def as_json(diagnosis: Diagnosis, speak: Speak) -> dict[str, Any]:
    """The contract of ``plafond doctor --json``."""
    return {
        "schema": 1,
        "memory": diagnosis.memory,
        "phase": diagnosis.phase,
        "cause": diagnosis.cause,
        "confidence": diagnosis.confidence,
        "evidence": [{"line": line.number, "text": line.quoted} for line in diagnosis.evidence],
        "remedies": [
            {
                "id": advice.id,
                "change": None
                if advice.change is None
                else {key: list(values) for key, values in advice.change.items()},
                "saves_bytes": advice.saves_bytes,
                "why": speak(advice.why),
            }
            for advice in diagnosis.remedies
        ],
        "summary": _summary(diagnosis, speak),
    }


def text(diagnosis: Diagnosis, speak: Speak) -> str:
    """The same for people."""
    sure = speak(Said(SURE[diagnosis.confidence]))
    lines = textwrap.wrap(f"{_summary(diagnosis, speak)} ({sure})", WIDTH, break_on_hyphens=False)
    if diagnosis.evidence:
        lines += ["", speak(Said(HEADINGS["evidence"]))]
        for line in diagnosis.evidence:
            where = speak(Said(HEADINGS["line"], {"number": line.number}))
            lines.append(f"  {where:<12}{textwrap.shorten(line.quoted, WIDTH - 14, placeholder=' …')}")
    if diagnosis.remedies:
        lines += ["", speak(Said(HEADINGS["remedies"]))]
        for advice in diagnosis.remedies:
            lines += _advice(advice, speak)
    return "\n".join(lines)


def _summary(diagnosis: Diagnosis, speak: Speak) -> str:
    return " ".join(speak(said) for said in diagnosis.summary)


def _advice(advice: Advice, speak: Speak) -> list[str]:
    indent = " " * 23
    lines = textwrap.wrap(
        speak(advice.why),
        WIDTH,
        initial_indent=f"  {advice.id:<21}",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    if advice.change is not None:
        parts: list[Value] = [shown(advice.change)]
        if advice.saves_bytes is not None:
            parts.append(Said(HEADINGS["saves"], {"size": Size(advice.saves_bytes)}))
        text = speak(listed([part for part in parts if part]))
        lines += textwrap.wrap(
            text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )
    return lines

"""What is found in a log: phase, cause, how sure, the lines it rests on, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from plafond.advice.log import Line
from plafond.language.said import Said

Cause = Literal[
    "does_not_fit",
    "bucket_peak",
    "video_frames",
    "host_ram",
    "spill",
    "other_process",
    "fragmentation",
    "regression",
    "not_memory",
    "unclear",
]
Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One remedy.

    Args:
        id: its name in every report.
        why: what it does.
        change: dotted keys of the job with the value before and after.
        saves_bytes: device bytes off the job's peak.
    """

    id: str
    why: Said
    change: dict[str, tuple[Any, Any]] | None = None
    saves_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What happened, as far as the log shows.

    Args:
        memory: it is a matter of memory.
        cause: why it failed.
        phase: where; None when the log does not show it.
        confidence: how sure that is.
        summary: sentences.
        evidence: the lines it rests on, the telling one first.
        remedies: best first.
        total: the card's bytes by an out-of-memory message.
        failed: something failed or went wrong.
    """

    memory: bool
    cause: Cause
    phase: str | None
    confidence: Confidence
    summary: tuple[Said, ...]
    evidence: tuple[Line, ...] = ()
    remedies: tuple[Advice, ...] = ()
    total: int | None = None
    failed: bool = True

"""How far a job has got, read from the end of its runs' ``metrics.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plafond.jobs.store import Entry

TAIL = 64 * 1024
"""Bytes at the end of a file that hold more than enough lines for a rate."""


def step_of(entry: Entry) -> int:
    """Steps that all runs of a job have done."""
    return sum(int(rows[-1]["step"]) for rows in map(newest, entry.run_folders) if rows)


def newest(run_folder: str | Path, count: int = 1) -> list[dict[str, Any]]:
    """The last complete lines of a run's metrics, at most `count`, in their order."""
    path = Path(run_folder) / "metrics.jsonl"
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            lines = file.read().splitlines(keepends=True)[1 if size > TAIL else 0 :]
    except OSError:
        return []
    return list(_parsed(lines))[-count:]


def _parsed(lines: Iterable[bytes]) -> Iterable[dict[str, Any]]:
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue  # torn by a crash, or being written
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield row


def seconds_left(entry: Entry, count: int = 20) -> float | None:
    """Time until a running job is done, by its last steps; None when nobody knows yet."""
    for folder in reversed(entry.run_folders):
        rows = newest(folder, count)
        if rows:
            pace = sum(float(row.get("seconds") or 0.0) for row in rows) / len(rows)
            return pace * max(0, entry.steps - step_of(entry))
    return None

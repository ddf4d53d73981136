"""A run's numbers as they come: read once, then only what was added."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from plafond.training.run_folder import RunFolder

MOST_POINTS = 1500
"""Points of a curve on the screen."""

RECOVERY = re.compile(
    r"out of memory (?:at|in the update of) step (\d+)|out of memory (while warming up)", re.IGNORECASE
)


class Curves:
    """The lines of ``metrics.jsonl`` of one run.

    Args:
        folder: the run's.

    Attributes:
        rows: one per step, in their order.
    """

    def __init__(self, folder: RunFolder):
        self.path: Path = folder.metrics
        self.rows: list[dict[str, Any]] = []
        self._offset = 0

    def read(self) -> bool:
        """Take up what has been added; True when something has changed."""
        before = len(self.rows), self.rows[-1:]
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self._offset:  # the run went back to a saved state
                    self.rows, self._offset = [], 0
                file.seek(self._offset)
                data = file.read()
        except OSError:
            data, self.rows, self._offset = b"", [], 0
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                continue
            while self.rows and self.rows[-1]["step"] >= row["step"]:
                self.rows.pop()
            self.rows.append(row)
        return (len(self.rows), self.rows[-1:]) != before

    def thinned(self) -> list[dict[str, Any]]:
        """The rows, evenly thinned out where there are more than a screen can show; the last one always stays."""
        stride = -(-len(self.rows) // MOST_POINTS)
        if stride <= 1:
            return self.rows
        return [*self.rows[:-1:stride], self.rows[-1]]


def smoothed(values: list[float | None], strength: float) -> list[float | None]:
    """A running average without the bias of its start.

    Args:
        values: numbers, or None where there is none.
        strength: weight of the past, from 0 to below 1.
    """
    found: list[float | None] = []
    average = weight = 0.0
    for value in values:
        if value is None:
            found.append(None)
            continue
        average = strength * average + (1 - strength) * value
        weight = strength * weight + (1 - strength)
        found.append(average / weight)
    return found


def recovered_steps(log: str) -> list[int]:
    """Steps at which a run met out-of-memory and went on; 0 is the warm-up before the first."""
    return sorted({int(match[1] or 0) for match in RECOVERY.finditer(log)})

"""The folder of the queue and the page.

::

    plafond.db         the jobs
    datasets/          data sets that the page makes
    output/            runs of jobs that the page makes
    runs/<id>/         what the worker knows of one job: its text, its lock, how it ended
    workers/           one lock and one log per device
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "PLAFOND_HOME"


class Home:
    """Paths inside of one home folder; nothing is made before it is needed."""

    def __init__(self, path: Path | str | None = None):
        chosen = path or os.environ.get(VARIABLE) or Path.home() / "plafond"
        self.path = Path(chosen).expanduser().resolve()
        self.database = self.path / "plafond.db"
        self.datasets = self.path / "datasets"
        self.output = self.path / "output"
        self.workers = self.path / "workers"

    def make(self) -> Home:
        """The same, with its folders made."""
        for folder in (self.path, self.datasets, self.output, self.workers, self.path / "runs"):
            folder.mkdir(parents=True, exist_ok=True)
        return self

    def run(self, job: int) -> Path:
        """What the worker keeps of one job."""
        return self.path / "runs" / str(job)

    def lock(self, device: str) -> Path:
        """Held by the device's worker for as long as it lives."""
        return self.workers / f"{device.replace(':', '-')}.lock"

    def log(self, device: str) -> Path:
        """What the device's worker has to say."""
        return self.workers / f"{device.replace(':', '-')}.log"

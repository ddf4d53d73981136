"""One running page: its folders, its queue, its planning processes and the workers that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from plafond.jobs.home import Home
from plafond.jobs.store import Store
from plafond.jobs.worker import start_workers
from plafond.web.asking import Planner
from plafond.web.datasets import Datasets
from plafond.web.guard import Access, Sessions, Throttle
from plafond.web.places import Places

WATCH_SECONDS = 2.0
"""Time between two looks at whether a device has something to do and no worker."""

log = logging.getLogger("plafond.page")


@dataclass
class Site:
    """What all parts of the page share.

    Args:
        home: its home folder.
        access: how it can be reached.
        allowed: more folders that jobs may use.
    """

    home: Home
    access: Access
    allowed: tuple[Path, ...] = ()
    sessions: Sessions = field(default_factory=Sessions)
    throttle: Throttle = field(default_factory=Throttle)

    def __post_init__(self) -> None:
        self.store = Store(self.home)
        self.places = Places(self.home, self.allowed)
        self.datasets = Datasets(self.home.datasets)
        logs = self.home.path / "logs"
        self.planner = Planner(self.home.path, logs / "planning.txt")
        # what takes minutes must not keep the forecast waiting
        self.fitter = Planner(self.home.path, logs / "fitting.txt")
        self._workers: list[subprocess.Popen[bytes]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Take up what is queued, and keep an eye on it."""
        self._tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self.planner.warm_up())]

    async def close(self) -> None:
        """End everything but the workers, which go on by themselves."""
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.planner.close()
        await self.fitter.close()

    def work(self) -> None:
        """Start workers where something is queued and nobody works."""
        self._workers = [worker for worker in self._workers if worker.poll() is None]
        self._workers += start_workers(self.home, self.store)

    async def _watch(self) -> None:
        while True:
            await asyncio.to_thread(self.work)
            await self.fitter.rest()
            await asyncio.sleep(WATCH_SECONDS)

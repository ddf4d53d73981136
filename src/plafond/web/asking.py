"""What the page asks a planning process, and how: one JSON object per line, either way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plafond.errors import PlafondError
from plafond.jobs.queue import Where
from plafond.language.said import N_, WORDS, Said
from plafond.language.speech import speaker

LINE_LIMIT = 64 * 2**20
"""Bytes of the longest answer."""

IDLE_SECONDS = 600.0
"""A process that nobody asks anything ends after this time, and with it half a gigabyte of main memory."""

log = logging.getLogger("plafond.page")


@dataclass(frozen=True, kw_only=True)
class Question:
    """About one job.

    Args:
        what: ``forecast``, ``fit`` or ``diagnose``.
        text: the job file.
        where: on what it would run.
        suffix: of the job file.
        folder: where its relative paths start.
        overrides: ``--set``.
        remedies: for ``forecast``: look for what would help, too.
        slot: a later question of the same slot makes this one superfluous.
        quality: for ``fit``: changes that may change the quality are allowed.
        log: for ``diagnose``: the run's log.
        language: of sentences.
    """

    what: str
    text: str
    where: Where
    suffix: str = ".yaml"
    folder: str = "."
    overrides: tuple[str, ...] = ()
    remedies: bool = True
    slot: str = ""
    quality: bool = False
    log: str = ""
    language: str = "en"


class Planner:
    """A warm process that answers questions; it is started when first needed, and again when it has died.

    Args:
        folder: its working directory.
        log_file: where libraries of that process may print.
    """

    def __init__(self, folder: Path, log_file: Path):
        self._folder, self._log_file = folder, log_file
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[dict[str, Any]]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._asked = 0.0
        self._closing = False

    async def ask(self, question: Question) -> AsyncIterator[dict[str, Any]]:
        """Answers as they come: ``step``, ``plan``, ``remedy``, ``fitted``, ``diagnosis``; the last one is ``done``,
        ``superseded`` or ``error``."""
        number = next(self._numbers)
        answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._waiting[number] = answers
        ended = False
        try:
            await self._send({"id": number, **asdict(question)})
            while not ended:
                answer = await answers.get()
                ended = answer["kind"] in ("done", "superseded", "error")
                if answer["kind"] == "error":
                    answer["message"] = speaker(question.language)(answer["message"])
                yield answer
        finally:
            self._waiting.pop(number, None)
            if not ended:
                self._give_up(number)

    async def warm_up(self) -> None:
        """Start the process, so that the first question does not wait for it."""
        async with self._starting:
            await self._running()

    async def close(self) -> None:
        """End the process."""
        self._closing = True
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def rest(self) -> None:
        """End a process that has not been asked anything for a while."""
        if not self._waiting and time.monotonic() - self._asked > IDLE_SECONDS:
            await self.close()

    async def _send(self, message: dict[str, Any]) -> None:
        self._asked = time.monotonic()
        async with self._starting:
            process = await self._running()
            assert process.stdin is not None
            process.stdin.write(json.dumps(message).encode() + b"\n")
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # the reader says so
                await process.stdin.drain()

    def _give_up(self, number: int) -> None:
        """Tell the process that nobody waits for an answer any more."""
        process = self._process
        if process is not None and process.returncode is None and process.stdin is not None:
            process.stdin.write(json.dumps({"forget": number}).encode() + b"\n")

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        if self._reader is not None:
            await self._reader
        self._asked = time.monotonic()
        self._closing = False
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        with self._log_file.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "plafond.web.planning"),
                cwd=self._folder,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                limit=LINE_LIMIT,
                # a plan is arithmetic in Python; a second thread only takes a core from the page
                env={"OMP_NUM_THREADS": "1"} | os.environ,
            )
        self._reader = asyncio.create_task(self._read(self._process))
        return self._process

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            answer = json.loads(line)
            if (waiting := self._waiting.get(answer["id"])) is not None:
                waiting.put_nowait(answer)
        await process.wait()
        if self._waiting and not self._closing:
            log.warning("the planning process ended with %s; see %s", process.returncode, self._log_file)
        for waiting in self._waiting.values():
            message = Said(
                N_("the planning process ended by itself; {file} may say why"), {"file": self._log_file}
            )
            waiting.put_nowait({"kind": "error", "message": message, "line": None, "key": None})


async def only_answer(answers: AsyncIterator[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The answer of one kind.

    Raises:
        AskError: what was asked cannot be answered.
    """
    found: dict[str, Any] = {}
    async for answer in answers:
        if answer["kind"] == kind:
            found = answer
        elif answer["kind"] == "error":
            raise AskError(answer)
    return found


class AskError(PlafondError):
    """A job cannot be planned as written.

    Args:
        answer: the planning process's message, with the job's line and key where one is to blame.
    """

    exit_code = 2

    def __init__(self, answer: dict[str, Any]):
        super().__init__(WORDS, words=answer["message"])
        self.line: int | None = answer.get("line")
        self.key: str | None = answer.get("key")

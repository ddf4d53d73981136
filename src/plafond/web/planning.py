"""The planning process: ``python -m plafond.web.planning`` answers questions about jobs, line by line.

It imports torch once, remembers what data folders hold, and drops work that a later question has made superfluous.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TextIO

from plafond.data.folder import Scan, scan
from plafond.errors import JobError, PlafondError
from plafond.job.dataset import DatasetConfig
from plafond.job.reading import job_of
from plafond.job.schema import Job
from plafond.jobs.queue import Where
from plafond.language.speech import speaker
from plafond.plan import shapes
from plafond.plan.report import sentence
from plafond.web.asking import Question
from plafond.web.ceilings import ceiling_at, is_virtual
from plafond.web.changes import signature

MOST_SCANS = 32


class Superseded(Exception):
    """A later question of the same slot has come."""


class Say(Protocol):
    """Takes a piece of an answer."""

    def __call__(self, kind: str, **values: Any) -> None:
        """Take one."""


class Desk:
    """Takes questions from one stream and writes answers to another.

    Args:
        questions: one JSON object per line.
        answers: likewise.
    """

    def __init__(self, questions: TextIO, answers: TextIO):
        self._answers = answers
        self._pending: list[dict[str, Any] | None] = []
        self._forgotten: set[int] = set()
        self._coming: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, args=(questions,), daemon=True).start()

    def _listen(self, questions: TextIO) -> None:
        for line in questions:
            self._coming.put(json.loads(line))
        self._coming.put(None)

    def work(self) -> None:
        """Answer until the other end closes."""
        while (asked := self._next()) is not None:
            number, slot = asked.pop("id"), asked["slot"]
            question = Question(**{**asked, "where": Where(**asked["where"])})

            def say(kind: str, number: int = number, slot: str = slot, **values: Any) -> None:
                self._say(number, kind, **values)
                self._collect()
                if self._is_old(number, slot):
                    raise Superseded

            try:
                answer(question, say)
                self._say(number, "done")
            except Superseded:
                self._say(number, "superseded")
            except PlafondError as error:
                self._say(number, "error", **_place(error, question.language))

    def _next(self) -> dict[str, Any] | None:
        """The oldest question that is not superfluous; None when there will be no more."""
        self._collect()
        while not self._pending:
            self._take(self._coming.get())
        asked = self._pending.pop(0)
        if asked is None:
            return None
        self._collect()
        if self._is_old(asked["id"], asked["slot"]):
            self._say(asked["id"], "superseded")
            return self._next()
        return asked

    def _collect(self) -> None:
        while not self._coming.empty():
            self._take(self._coming.get())

    def _take(self, line: dict[str, Any] | None) -> None:
        if line is not None and "forget" in line:
            self._forgotten.add(line["forget"])
        else:
            self._pending.append(line)

    def _is_old(self, number: int, slot: str) -> bool:
        """Whether nobody waits for an answer any more."""
        if number in self._forgotten:
            self._forgotten.discard(number)
            return True
        later = (asked for asked in self._pending if asked is not None)
        return (bool(slot) and any(asked["slot"] == slot for asked in later)) or None in self._pending

    def _say(self, number: int, kind: str, **values: Any) -> None:
        self._answers.write(json.dumps({"id": number, "kind": kind, **values}) + "\n")
        self._answers.flush()


def answer(question: Question, say: Say) -> None:
    """Answer one question, piece by piece.

    Args:
        question: what is asked.
        say: takes a piece, its kind first; raises `Superseded` when the rest is of no use any more.
    """
    os.chdir(question.folder)
    job = job_of(question.text, Path(f"job{question.suffix}"), overrides=question.overrides)
    {"forecast": _forecast, "fit": _fit, "diagnose": _diagnose}[question.what](job, question, say)


def _forecast(job: Job, question: Question, say: Say) -> None:
    """The plan of every process, then what would help, one by one."""
    from plafond.memory.collector import paused
    from plafond.plan.forecast import Forecaster
    from plafond.plan.notes import notes_of
    from plafond.plan.remedies import each_remedy
    from plafond.plan.report import as_json, remedy_as_json

    def step(phase: str, done: int, count: int) -> None:
        say("step", phase=phase, done=done, count=count)

    speak = speaker(question.language)
    virtual = is_virtual(question.where)
    ceiling = ceiling_at(question.where)
    plans = []
    for index, process in enumerate(job.processes):
        with job.placing(index):
            plan = Forecaster(process, ceiling, virtual=virtual, step=step).plan()
        plans.append(plan)
        report = as_json(job, plan, (), [*job.remarks, *notes_of(plan)], speak)
        say("plan", process=index, sentence=sentence(plan, speak), limited=_limited(question), plan=report)
    for index, plan in enumerate(plans):
        if plan.verdict == "fits" or not question.remedies:
            continue
        with job.placing(index), paused():
            for remedy in each_remedy(plan):
                say("remedy", process=index, remedy=remedy_as_json(remedy, speak))


def _limited(question: Question) -> bool:
    """Whether there is a ceiling at all: the CPU has none unless one is asked for."""
    where = question.where
    return where.device != "cpu" or where.vram is not None or where.gpu is not None


def _fit(job: Job, question: Question, say: Say) -> None:
    from plafond.plan.fit import Fitter
    from plafond.plan.fit_report import as_json

    virtual = is_virtual(question.where)
    fitter = Fitter(job, ceiling_at(question.where), virtual=virtual, allow_quality=question.quality)
    fitted = fitter.fit()
    say("fitted", text=fitted.text, report=dict(as_json(fitted, None, speaker(question.language))))


def _diagnose(job: Job, question: Question, say: Say) -> None:
    from plafond.advice.against_plan import against_job
    from plafond.advice.diagnose import diagnose
    from plafond.advice.facts import is_ai_toolkits
    from plafond.advice.report import as_json

    log = question.log.encode()
    found = diagnose(log)
    if found.failed:
        ceiling = ceiling_at(question.where) if _limited(question) else None
        virtual, theirs = is_virtual(question.where), is_ai_toolkits(log)
        found = against_job(found, job.processes, ceiling, virtual=virtual, theirs=theirs)
    say("diagnosis", failed=found.failed, report=as_json(found, speaker(question.language)))


def _place(error: PlafondError, language: str) -> dict[str, Any]:
    speak = speaker(language)
    if isinstance(error, JobError):
        return {"message": speak(error.message), "line": error.line, "key": error.key}
    return {"message": speak(error.said), "line": None, "key": None}


@lru_cache(maxsize=MOST_SCANS)
def _scanned(config: DatasetConfig, index: int, signature: tuple[Any, ...]) -> Scan:
    return scan(config, index)


def _remembered(config: DatasetConfig, index: int = 0) -> Scan:
    """A data set as it was read last, as long as no file of it has changed."""
    return replace(_scanned(config, index, signature(Path(config.folder_path).expanduser())), config=config)


def main() -> None:
    """Answer the questions of standard input; everything that libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    shapes.reader.set(_remembered)
    # imported once, before the first question; others are imported where they are used
    import plafond.memory.dryrun
    import plafond.plan.remedies  # noqa: F401

    desk = Desk(sys.stdin, answers)
    desk.work()


if __name__ == "__main__":
    main()

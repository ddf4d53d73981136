"""The way down the ladder for one process, and back: which changes make it fit.

A changed job is always read again from its changed text, so what is planned is what will be written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from plafond.errors import JobError
from plafond.job.editing import EditError, edit
from plafond.job.reading import job_of
from plafond.job.schema import Job, ProcessConfig
from plafond.language.said import Said
from plafond.plan.changes import Change, Values, change_of, changed, value_at
from plafond.plan.forecast import Plan
from plafond.plan.pace import work
from plafond.plan.rungs import AS_MUCH_AS_FITS, Option, Rung, ladder

FASTER = 0.99
"""A change that makes steps at least this much shorter is worth making although the job fits without it."""

RECOMPUTING = Option(values={"train.gradient_checkpointing": True}, why=Said(""))
AUTO = Rung(
    id="leaner_plan",
    phases=frozenset({"train"}),
    options=(Option(values={"train.gradient_checkpointing": "auto"}, why=AS_MUCH_AS_FITS),),
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One change of the job.

    Args:
        id: the remedy's name.
        process: index of the process in the job.
        change: dotted keys with the value before and after.
        quality: ``same`` or ``may_change``.
        why: what it does.
        saves_bytes: device bytes that the job's peak would grow by without this change alone.
        time_ratio: time of training on a picture, relative to the job without this change alone.
    """

    id: str
    process: int
    change: Change
    quality: str
    why: Said
    saves_bytes: int = 0
    time_ratio: float = 1.0


Planner = Callable[[ProcessConfig, bool], Plan]
"""Plans a process on its largest bucket or, if the second argument says so, on all of them."""

Choices = list[tuple[Rung, Option]]


class Search:
    """Changes to one process of a job until it fits.

    Args:
        job: the job.
        text: its file, which is changed from.
        index: of the process.
        plan_of: plans a process.
        allowed: whether a rung may change these settings.
        limit: device bytes that may be taken.

    Attributes:
        text: the changed file.
        plan: what the changed process takes.
        choices: what was changed, in the order of the ladder.
        unwritable: remedies that the file does not let itself be changed for.
    """

    def __init__(
        self,
        job: Job,
        text: str,
        index: int,
        *,
        plan_of: Planner,
        allowed: Callable[[Rung, Values], bool],
        limit: int,
    ):
        self.job, self.start, self.index = job, text, index
        self.plan_of, self.allowed, self.limit = plan_of, allowed, limit
        self.full = False
        self.choices: Choices = []
        self.unwritable: list[str] = []
        self.text, self.plan = text, self._plan(text)

    @property
    def over(self) -> int:
        """Bytes that are still too many in the fullest phase."""
        return max(0, self.plan.peak.device_bytes - self.limit)

    def run(self) -> Search:
        """Look at the largest bucket alone, then, should others take more, at all of them."""
        self._down()
        self._back()
        if not self.over and self._plan(self.text, full=True).peak.device_bytes > self.limit:
            self.full = True
            self._start_over()
            self._down()
            self._back()
        return self

    def _start_over(self) -> None:
        self.choices, self.text, self.plan = [], self.start, self._plan(self.start)

    def _down(self) -> None:
        if self._may_be_auto():
            self._take(AUTO)
            if self.choices and "train" in self._too_full() and self._is_leaner_than_auto():
                self._start_over()
        known: set[str] = set()
        while self.over:
            rung = next((rung for rung in ladder(self.plan.process) if rung.id not in known), None)
            if rung is None:
                return
            known.add(rung.id)
            if rung.phases & self._too_full():
                self._take(rung)

    def _is_leaner_than_auto(self) -> bool:
        """Whether recomputing everything takes less than the leanest plan of the solver."""
        found = self._tried([(AUTO, RECOMPUTING)])
        return found is not None and self._excess(found[1]) < self._excess(self.plan)

    def _may_be_auto(self) -> bool:
        process = self.plan.process
        if process.plafond.activation_plan is not None or process.train.gradient_checkpointing == "auto":
            return False
        return "train" in self._too_full() or process.train.gradient_checkpointing is True

    def _too_full(self) -> set[str]:
        """The phases that take too much."""
        return {phase.phase for phase in self.plan.phases if phase.device_bytes > self.limit}

    def _take(self, rung: Rung) -> None:
        """Take the mildest option after which the phases that it changes fit, or the strongest that helps."""
        best = None
        for option in rung.options:
            if not self._may_take(rung, option):
                continue
            found = self._tried([*self.choices, (rung, option)])
            if found is None:
                self.unwritable.append(rung.id)
                continue
            if self._excess(found[1]) < self._excess(self.plan) or rung is AUTO:
                best = option, found
            if not self._excess(found[1], rung.phases):
                break
        if best is not None:
            option, (self.text, self.plan) = best
            self.choices.append((rung, option))

    def _may_take(self, rung: Rung, option: Option) -> bool:
        """Whether what an option changes may be changed; what it only writes out stays as it is."""
        process = process_of(self.job, self.start, self.index)
        return self.allowed(
            rung, {key: new for key, new in option.values.items() if value_at(process, key) != new}
        )

    def _excess(self, plan: Plan, phases: Collection[str] | None = None) -> int:
        return sum(
            max(0, phase.device_bytes - self.limit)
            for phase in plan.phases
            if phases is None or phase.phase in phases
        )

    def _back(self) -> None:
        """Take back what is not needed, the last and most costly first, or take a milder option of it."""
        if self.over:
            return
        for choice in self.choices[::-1]:
            rung, option = choice
            place = self.choices.index(choice)
            milder = rung.options[: rung.options.index(option)]
            for instead in ([], *([(rung, mild)] for mild in milder if self._may_take(rung, mild))):
                rest = [*self.choices[:place], *instead, *self.choices[place + 1 :]]
                found = self._tried(rest)
                if found is None or found[1].peak.device_bytes > self.limit:
                    continue
                if rung.quality == "same" and work(self.plan) < FASTER * work(found[1]):
                    continue
                self.choices, (self.text, self.plan) = rest, found
                break

    def _tried(self, choices: Choices) -> tuple[str, Plan] | None:
        """The text with these choices and its plan; None when the file does not let itself be changed so."""
        text = _written(self.job, self.start, self.index, [option.values for _, option in choices])
        return None if text is None else (text, self._plan(text))

    def _plan(self, text: str, *, full: bool = False) -> Plan:
        return self.plan_of(process_of(self.job, text, self.index), full or self.full)

    def steps(self) -> list[Step]:
        """Each choice with what it saves and costs in the job as it is now."""
        original = process_of(self.job, self.start, self.index)
        steps = []
        for choice in self.choices:
            rung, option = choice
            without = self._tried([other for other in self.choices if other is not choice])
            step = Step(
                id=rung.id,
                process=self.index,
                change=change_of(original, option.values),
                quality=rung.quality,
                why=option.why,
            )
            if without is not None:
                step = replace(
                    step,
                    saves_bytes=without[1].peak.device_bytes - self.plan.peak.device_bytes,
                    time_ratio=round(work(self.plan) / work(without[1]), 3),
                )
            steps.append(step)
        return steps


def _written(job: Job, text: str, index: int, choices: Sequence[Values]) -> str | None:
    """The text with choices written into one process, if that changes exactly what it is meant to change."""
    goal = [process_of(job, text, number) for number in range(len(job.processes))]
    values: dict[str, Any] = {}
    for chosen in choices:
        goal[index] = changed(goal[index], chosen)
        values.update(chosen)
    try:
        text = edit(text, index, values, suffix=job.path.suffix)
        found = [process_of(job, text, number) for number in range(len(job.processes))]
    except (EditError, JobError):
        return None
    return text if found == goal else None


def process_of(job: Job, text: str, index: int) -> ProcessConfig:
    """A process of the job whose file has this text."""
    return _read(text, job.path, job.name).processes[index]


@lru_cache(maxsize=128)
def _read(text: str, path: Path, name: str) -> Job:
    return job_of(text, path, name=name)

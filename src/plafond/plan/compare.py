"""What differs between two jobs, and what each difference alone does to memory and time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from plafond.errors import JobError, UsageError
from plafond.job.schema import Job, ProcessConfig
from plafond.job.section import Section
from plafond.language.said import N_
from plafond.memory.gpus import Ceiling
from plafond.plan.changes import Change, changed, value_at
from plafond.plan.forecast import PHASES, Forecaster, Phase, Plan
from plafond.plan.pace import work

TOGETHER = (
    ("model.name_or_path", "model.arch", "model.arch_tag"),
    ("model.quantize", "model.qtype"),
    ("model.quantize_te", "model.qtype_te"),
)
"""Settings that mean nothing without each other; what differs among them is one difference."""

FIRST = ("train", "model", "network", "sample", "datasets")
"""Sections in the order in which they are compared: what others follow from comes first."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What one plan takes more than another.

    Args:
        phases: device bytes of each phase, on the bucket that takes the most, before and after; None without it.
        time_ratio: time of training on a picture.
        before: the first plan.
        after: the second one.
    """

    phases: Mapping[str, tuple[Phase | None, Phase | None]]
    time_ratio: float
    before: Plan
    after: Plan

    @property
    def peak_bytes(self) -> int:
        """Device bytes that the peak grows by."""
        return self.after.peak.device_bytes - self.before.peak.device_bytes


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One difference, and what it does when it alone is made; None when it alone makes no job that can be run."""

    change: Change
    effect: Effect | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two processes."""

    differences: tuple[Difference, ...]
    together: Effect


def compare(
    a: Job,
    b: Job,
    ceiling: Ceiling,
    *,
    virtual: bool = False,
    step: Callable[[str, int, int], None] | None = None,
) -> list[Comparison]:
    """Compare the processes of two jobs, one by one.

    Raises:
        UsageError: the jobs do not have as many processes.
    """
    if len(a.processes) != len(b.processes):
        raise UsageError(
            N_("{a} has {many} processes, {b} has {other}; expected two jobs with as many"),
            a=a.path,
            many=len(a.processes),
            b=b.path,
            other=len(b.processes),
        )

    def plan(process: ProcessConfig) -> Plan:
        return Forecaster(process, ceiling, virtual=virtual, step=step).plan()

    return [_compare(one, two, plan) for one, two in zip(a.processes, b.processes, strict=True)]


def _compare(a: ProcessConfig, b: ProcessConfig, plan: Callable[[ProcessConfig], Plan]) -> Comparison:
    first, second = plan(a), plan(b)
    found = []
    for change in differences(a, b):
        try:
            alone: Effect | None = _effect(
                first, plan(changed(a, {key: new for key, (_, new) in change.items()}))
            )
        except JobError:
            alone = None
        found.append(Difference(change=change, effect=alone))
    return Comparison(differences=tuple(found), together=_effect(first, second))


def differences(a: ProcessConfig, b: ProcessConfig) -> Iterator[Change]:
    """Settings that differ, with those that belong together; what follows from another one is left out."""
    keys = list(_keys(a, b, ""))
    groups = []
    while keys:
        group = next((group for group in TOGETHER if keys[0] in group), (keys[0],))
        groups.append([key for key in keys if key in group])
        keys = [key for key in keys if key not in group]
    reached = a
    for together in groups:
        values = {key: value_at(b, key) for key in together if value_at(reached, key) != value_at(b, key)}
        if values:
            yield {key: (value_at(a, key), new) for key, new in values.items()}
            reached = changed(reached, values)


def _keys(a: Any, b: Any, key: str) -> Iterator[str]:
    """Dotted keys at which two values differ."""
    if a == b:
        return
    if isinstance(a, Section) and isinstance(b, Section):
        names = type(a).model_fields
        for name in (
            *(name for name in FIRST if name in names),
            *(name for name in names if name not in FIRST),
        ):
            yield from _keys(getattr(a, name), getattr(b, name), f"{key}.{name}".lstrip("."))
        return
    lists = isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)
    if lists and all(isinstance(item, Section) for item in (*a, *b)):
        for place, (one, two) in enumerate(zip(a, b, strict=True)):
            yield from _keys(one, two, f"{key}.{place}")
        return
    yield key


def _effect(before: Plan, after: Plan) -> Effect:
    phases = {name: (_fullest(before, name), _fullest(after, name)) for name in PHASES}
    return Effect(
        phases={name: pair for name, pair in phases.items() if pair != (None, None)},
        time_ratio=round(work(after) / work(before), 3),
        before=before,
        after=after,
    )


def _fullest(plan: Plan, name: str) -> Phase | None:
    phases = [phase for phase in plan.phases if phase.phase == name]
    return max(phases, key=lambda phase: phase.device_bytes, default=None)

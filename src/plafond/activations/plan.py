"""The activation plan: a level for every block of a model. Plain data, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast, get_args

from plafond.activations.levels import KEEP, RECOMPUTE, Kind, Level

if TYPE_CHECKING:
    from plafond.job.schema import ProcessConfig

Segment = tuple[Level, int]
"""A level, and how many blocks in a row have it."""


@dataclass(frozen=True, kw_only=True)
class ActivationPlan:
    """What every block keeps.

    Args:
        name: for people: ``recompute all``.
        default: the level of blocks in groups that are not named.
        groups: for groups of blocks, by the attribute that holds them, segments from the first block to the last.
    """

    name: str
    default: Level
    groups: Mapping[str, tuple[Segment, ...]] = field(default_factory=dict)

    def segments(self, group: str, count: int) -> tuple[Segment, ...]:
        """The segments of a group of `count` blocks; the last one takes what the plan does not name."""
        found = []
        left = count
        for level, length in self.groups.get(group, ((self.default, count),)):
            found.append((level, min(left, length)))
            left -= found[-1][1]
        if left and found:
            found[-1] = found[-1][0], found[-1][1] + left
        return tuple((level, length) for level, length in found if length)

    def levels(self, group: str, count: int) -> list[Level]:
        """The level of each of the `count` blocks of a group."""
        return [level for level, length in self.segments(group, count) for _ in range(length)]


RECOMPUTE_ALL = ActivationPlan(name="recompute all", default=RECOMPUTE)
KEEP_ALL = ActivationPlan(name="keep all", default=KEEP)


@dataclass(frozen=True, kw_only=True)
class Activations:
    """The plans of a run: one for each bucket, as ``1024x768``, and one for buckets that are not named."""

    default: ActivationPlan
    buckets: Mapping[str, ActivationPlan] = field(default_factory=dict)

    def of(self, bucket: str) -> ActivationPlan:
        """The plan for one bucket."""
        return self.buckets.get(bucket, self.default)


def asked_for(process: ProcessConfig) -> ActivationPlan:
    """The plan that a job names: ``plafond.activation_plan`` or ``train.gradient_checkpointing``.

    ``auto`` is a question to the solver; without a ceiling its answer is to keep everything.
    """
    plain = RECOMPUTE_ALL if process.train.gradient_checkpointing is True else KEEP_ALL
    pinned = process.plafond.activation_plan
    if pinned is None:
        return plain
    if isinstance(pinned, str):
        return ActivationPlan(name=pinned, default=level(pinned))
    groups = {group: _segments(value) for group, value in pinned.items()}
    return ActivationPlan(name="pinned", default=plain.default, groups=groups)


def is_open(process: ProcessConfig) -> bool:
    """Whether the job leaves the plan to the solver."""
    return process.plafond.activation_plan is None and process.train.gradient_checkpointing == "auto"


def _segments(value: str | Mapping[str, int]) -> tuple[Segment, ...]:
    if isinstance(value, str):
        return ((level(value), 2**31),)
    return tuple((level(name), count) for name, count in value.items())


def level(text: str) -> Level:
    """Read a level as a job file writes it: its kind, after ``selective`` the FLOP that a kept byte has to save.

    Raises:
        ValueError: there is no such level.
    """
    kind, _, price = text.partition(" ")
    if kind == "selective":
        if not 0 <= (value := float(price)) < math.inf:
            raise ValueError(text)
        return Level(kind="selective", price=value)
    if kind in get_args(Kind) and not price:
        return Level(kind=cast(Kind, kind))
    raise ValueError(text)

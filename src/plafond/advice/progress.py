"""Progress bars of the training loop: how far it came, and whether steps became slow and stayed slow."""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import median

from plafond.advice.log import Log

_BAR = re.compile(
    rb"(\d+)/(\d+)\s*\[(?:(\d+) days?, )?([\d:]+)<[^,\]]*,\s*([\d.]+)\s*(s/it|it/s|s/step|steps?/s)"
)
_STEP_LINE = re.compile(rb"step (\d+)/(\d+)\s[^\n\r]*loss")
_DEEPSPEED = re.compile(rb"steps?: (\d+) loss: (?:nan|[\d.e+-]+) iter time \(s\): ([\d.]+)")

MOST = 50_000
"""States of a bar that are read; of more, every second, third and so on."""

POINTS = 400
"""A series is thinned to so many points."""

FEWEST = 4
"""Slow steps, in a row, that are not an accident."""

SPILL = 3.0
"""Steps that take so many times as long and stay so."""


@dataclass(frozen=True, slots=True)
class Step:
    """One state of the bar.

    Args:
        offset: where it stands in the log.
        done: steps done.
        total: steps to do.
        seconds: seconds per step since the state before.
        made: steps since then.
    """

    offset: int
    done: int
    total: int
    seconds: float
    made: int = 1


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Where steps became slow.

    Args:
        before: the last state of the bar at the old speed.
        after: a state well inside the slow part.
        fast: seconds per step before.
        slow: seconds per step from then on.
    """

    before: Step
    after: Step
    fast: float
    slow: float


def steps(log: Log) -> list[Step]:
    """The states of the training bar, in order."""
    found: list[Step] = []
    previous: tuple[int, float] | None = None
    stride = len(log.bars) // MOST + 1
    for offset, text in (*log.bars[::stride], *log.bars[-1:]):
        match = _BAR.search(text)
        if match is None:
            continue
        done, total = int(match[1]), int(match[2])
        elapsed = _elapsed(match[3], match[4])
        rate = float(match[5]) if match[5].count(b".") <= 1 and match[5] != b"." else 0.0
        seconds = rate if match[6] in (b"s/it", b"s/step") else 1 / rate if rate else 0.0
        if previous and done > previous[0]:
            # tqdm's own figure is an average over the whole run for some trainers
            measured = (elapsed - previous[1]) / (done - previous[0])
            seconds = measured if measured >= 1 else seconds
        elif previous and done == previous[0] and found:
            continue
        # a run that was resumed did not make all steps that its first state shows
        whole = previous is not None or elapsed > done * seconds / 2 >= 1
        made = done - (previous[0] if previous else 0) if whole else 1
        previous = done, elapsed
        found.append(Step(offset, done, total, seconds, max(1, made)))
    for match in _DEEPSPEED.finditer(log.searched):
        found.append(Step(log.place(match.start()), int(match[1]), 0, float(match[2])))
    if not found:
        for match in _STEP_LINE.finditer(log.searched):
            found.append(Step(log.place(match.start()), int(match[1]), int(match[2]), 0.0))
    return sorted(found, key=lambda step: step.offset)


def _elapsed(days: bytes | None, clock: bytes) -> float:
    seconds = 0.0
    for part in clock.split(b":"):
        seconds = seconds * 60 + float(part or 0)
    return seconds + 86400 * float(days or 0)


def slowdown(found: list[Step]) -> Slowdown | None:
    """The place from which steps take `SPILL` times as long, to the end of the last run; None without one."""
    run = [step for step in _last_run(found) if step.seconds > 0]
    run = run[1:] if run and run[0].made == 1 else run  # the first step warms up
    stride = -(-len(run) // POINTS) or 1
    groups = [run[index : index + stride] for index in range(0, len(run), stride)]
    speeds = [median(step.seconds for step in group) for group in groups]
    made = [sum(step.made for step in group) for group in groups]
    best: Slowdown | None = None
    for index in range(1, len(groups) - 1):
        if min(sum(made[:index]), sum(made[index:])) < FEWEST:
            continue
        fast, slow = median(speeds[:index]), median(speeds[index:])
        # "stays": a small bucket may be quick now and then, but not every other step
        stays = sorted(speeds[index:])[len(speeds[index:]) // 5]
        if slow < SPILL * fast or stays < SPILL / 2 * fast:
            continue
        if best is None or slow / fast > best.slow / best.fast:
            best = Slowdown(groups[index - 1][-1], groups[-1][-1], fast, slow)
    return best


def _last_run(found: list[Step]) -> list[Step]:
    start = 0
    for index in range(1, len(found)):
        if found[index].done < found[index - 1].done:
            start = index
    return found[start:]

"""A log with what was found in it, and which of its failures is the one that counts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from plafond.advice.facts import Facts, facts
from plafond.advice.log import Log
from plafond.advice.phases import Where, where
from plafond.advice.progress import Step, steps
from plafond.advice.signs import MEMORY, OTHER, Hit, hits, last_exception

RECOVERED = 20
"""Steps that a run makes after a failure it got over."""

ALLOCATIONS = ("device", "library", "bare", "host", "shared_memory", "handle", "refused")
ENDED = ("killed", "crashed", "segfault")
RANKS = (ALLOCATIONS, ENDED, ("gave_up", "skipped"), ("warning",))
"""Kinds of memory signs, the most telling first."""

_COMPLETED = (
    b" steps done",
    b"training complete",
    b"training finished",
    b"model saved",
    b"1 completed job",
    b"- 0 failure",
)


@dataclass(frozen=True, kw_only=True)
class Story:
    """A log with what was found in it."""

    log: Log
    facts: Facts
    steps: list[Step]
    memory: list[Hit]
    other: list[Hit]
    error: Hit | None

    def last_step(self, offset: int) -> Step | None:
        """The newest state of the training bar before a place."""
        found = None
        for step in self.steps:
            if step.offset > offset:
                break
            found = step
        return found

    def completed(self, offset: int) -> int:
        """Steps that this run had made by a place; a run that was resumed begins in the middle."""
        first = last = None
        for step in self.steps:
            if step.offset > offset:
                break
            if last is None or step.done < last.done:
                first = step
            last = step
        if first is None or last is None:
            return 0
        return last.done - (0 if first.done <= RECOVERED else first.done)

    def advanced(self, start: int, end: int) -> int:
        """Steps made between two places."""
        between = [step.done for step in self.steps if start < step.offset < end]
        return sum(max(0, after - before) for before, after in pairwise(between))

    def where(self, offset: int) -> Where | None:
        """The phase at a place."""
        step = self.last_step(offset)
        return where(self.log, offset, None if step is None else step.offset)


def story_of(log: Log) -> Story:
    """Look for everything that tells something; of several runs in one log, in the last."""
    start = max(0, log.last(b"# running job:"))
    return Story(
        log=log,
        facts=facts(log),
        steps=[step for step in steps(log) if step.offset >= start],
        memory=[hit for hit in hits(log, MEMORY) if hit.offset >= start],
        other=[hit for hit in hits(log, OTHER) if hit.offset >= start],
        error=last_exception(log),
    )


def telling(story: Story, other: Hit | None) -> Hit | None:
    """The memory sign that the failure rests on; None when there is none, or the run got over it."""
    if not story.memory:
        return None
    last = story.memory[-1]
    if other is not None and story.advanced(last.offset, other.offset) >= RECOVERED:
        return None
    cluster = [hit for hit in story.memory if story.advanced(hit.offset, last.offset) < RECOVERED]
    if all(hit.kind == "warning" for hit in cluster) and other is None:
        return None
    for rank in RANKS:
        found = [hit for hit in cluster if hit.kind in rank]
        if found:
            return found[-1]
    return None


def other_failure(story: Story) -> Hit | None:
    """The failure that has nothing to do with memory, when there is one."""
    error, signs = story.error, [hit for hit in story.other if hit.kind != "nan"]
    nan = next((hit for hit in reversed(story.other) if hit.kind == "nan"), None)
    finished = completed(story)
    if error is not None and story.advanced(error.offset, len(story.log)) >= RECOVERED:
        error = None
    if error is not None:
        near = [hit for hit in signs if hit.line.start >= error.line.start - 3000]
        same = [hit for hit in near if hit.line.start == error.line.start]
        if same or near:
            return (same or near)[-1]
        return error
    # outside a traceback a sentence may be a mere note: then the run went on
    after = story.steps[-1].offset if story.steps else -1
    ends = [hit for hit in signs if hit.offset > after]
    if ends and not finished:
        return ends[-1]
    return nan


def completed(story: Story) -> bool:
    """Whether the run says that it is done."""
    last = story.steps[-1] if story.steps else None
    if last is not None and 0 < last.total <= last.done:
        return True
    end = story.log.searched[-4000:]
    return any(sentence in end for sentence in _COMPLETED)

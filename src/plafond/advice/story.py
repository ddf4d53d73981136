"""A log with what was found in it, and which of its failures is the one that counts."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

from plafond.advice.facts import Facts, facts
from plafond.advice.log import Line, Log
from plafond.advice.phases import ANNOUNCED, Where, where
from plafond.advice.progress import Step, steps
from plafond.advice.signs import MEMORY, OTHER, Hit, hits, only_mentions
from plafond.advice.traces import Trace, exceptions

RECOVERED = 20
"""Steps that a run makes after a failure it got over."""

STEPS_AFTER = 3
"""Steps after a failure that was caught, from which on another exception has its own reason."""

AROUND = 400
"""Bytes before a traceback in which a line may say what it is about."""

ALLOCATIONS = ("device", "library", "bare", "host", "shared_memory", "handle", "refused")
NAMING = ("missing", "permission", "image", "weights", "disk")
"""Kinds of failures whose message names a file."""

SURE = ("host", "shared_memory", "refused")
"""Kinds of memory signs that do not stand in a file's name."""

ENDED = ("killed", "crashed", "segfault")
RANKS = (ALLOCATIONS, ENDED, ("gave_up", "skipped"), ("warning",))
"""Kinds of memory signs, the most telling first."""

FOLLOWS = ("processes", "cache", "missing")
"""Kinds of failures that may be what is left of a process that was ended."""

_PYTHON_ENDED = re.compile(
    rb"(?:code|status|exit\w*)[^\w\n]{0,4}[12](?!\d)|- [1-9]\d* failure",
)
_SETTING_UP = tuple(
    sentence.encode()
    for phase in ("load", "quantize", "encode_text", "cache_latents", "train")
    for sentence in ANNOUNCED[phase]
)
_ORDER = {sign.kind: place for place, sign in reversed(list(enumerate(OTHER)))}

_STARTS = (b"# running job:", b"start training lora", b"start training dreambooth", b"start finetuning")

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
    errors: list[Trace]

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
        before = self.last_step(start)
        between = [before.done] if before else []
        between += [step.done for step in self.steps if start < step.offset < end]
        return sum(max(0, after - before) for before, after in pairwise(between))

    def where(self, offset: int) -> Where | None:
        """The phase at a place."""
        place, step = bisect_left(self.log.bars, (offset, b"")), self.last_step(offset)
        newest = max(self.log.bars[place - 1][0] if place else -1, step.offset if step else -1)
        return where(self.log, offset, newest if newest >= 0 else None)

    @property
    def exception(self) -> Trace | None:
        """The exception that ended the run, not one that it got over nor a launcher's."""
        for trace in reversed(self.errors):
            if not trace.is_launchers and not self.got_over(trace):
                return trace
        return None

    def got_over(self, trace: Trace) -> bool:
        """Whether the run went on after a traceback."""
        end = trace.start if trace.error is None else trace.error.start
        made = self.advanced(end, len(self.log))
        if made >= RECOVERED or (made and not self.completed(end)):
            return True
        if completed(self) and self.steps and end < self.steps[-1].offset:
            return True
        if _PYTHON_ENDED.search(self.log.part(end, len(self.log))):
            return False
        after = self.log.line(end).start + len(self.log.line(end).text.encode())
        return any(self.log.last(sentence) > after for sentence in _SETTING_UP)

    def lived_on(self, hit: Hit) -> bool:
        """Whether steps were made after a sign that the process was ended."""
        before = self.last_step(hit.offset)
        last = self.steps[-1] if self.steps else None
        return (
            last is not None and last.offset > hit.offset and last.done > (before.done + 2 if before else 0)
        )


def story_of(log: Log) -> Story:
    """Look for everything that tells something; of several runs in one log, in the last."""
    errors = exceptions(log)
    start = _start(log, errors)
    other = [hit for hit in hits(log, OTHER) if hit.offset >= start]
    named = {hit.line.start for hit in other if hit.kind in NAMING}  # a file's name may say anything
    return Story(
        log=log,
        facts=facts(log),
        steps=[step for step in steps(log) if step.offset >= start],
        memory=[
            hit
            for hit in hits(log, MEMORY)
            if hit.offset >= start
            and not only_mentions(hit)
            and (hit.kind in SURE or hit.line.start not in named)
        ],
        other=other,
        errors=[trace for trace in errors if trace.start >= start],
    )


def _start(log: Log, errors: list[Trace]) -> int:
    """Where the last of several runs in one log begins."""
    starts = [0, *(log.last(sentence) for sentence in _STARTS)]
    newest = max(log.last(sentence) for sentence in _SETTING_UP)
    ends = [trace.error.start for trace in errors if trace.is_launchers and trace.error]
    return max(starts + [end + 1 for end in ends if end < newest])


def telling(story: Story, other: Hit | None) -> Hit | None:
    """The memory sign that the failure rests on; None when there is none, or the run got over it."""
    if not story.memory:
        return None
    signs = [hit for hit in story.memory if hit.kind not in ENDED or not story.lived_on(hit)]
    if other is not None and other.kind not in FOLLOWS and story.exception is not None:
        signs = [hit for hit in signs if hit.line == other.line or not _got_over(story, hit, other)]
    if not signs:
        return None
    last = signs[-1]
    lasted = story.advanced(last.offset, len(story.log) if other is None else other.offset) >= RECOVERED
    if lasted and (other is not None or last.kind in ("skipped", "warning") or _done_since(story, last)):
        return None
    cluster = [hit for hit in signs if story.advanced(hit.offset, last.offset) < RECOVERED]
    if all(hit.kind == "warning" for hit in cluster) and other is None:
        return None
    for rank in RANKS:
        found = [hit for hit in cluster if hit.kind in rank]
        if found:
            return found[-1]
    return None


def _got_over(story: Story, hit: Hit, other: Hit) -> bool:
    """Whether a run that ended with an exception had nothing to do with a sign any more."""
    if hit.kind in ENDED:  # who raises an exception was not ended from outside
        return not _is_kernels(hit)
    made = story.advanced(hit.offset, other.offset)
    return hit.kind != "warning" and made >= (1 if hit.kind == "skipped" else STEPS_AFTER)


def _done_since(story: Story, hit: Hit) -> bool:
    place = story.where(hit.offset)
    return completed(story) and (
        place is None or place.phase != "preview"
    )  # previews may be missing all along


def _is_kernels(hit: Hit) -> bool:
    return "killed process" in hit.line.text.lower()


def other_failure(story: Story) -> Hit | None:
    """The failure that has nothing to do with memory, when there is one."""
    trace, signs = story.exception, [hit for hit in story.other if hit.kind != "nan"]
    if trace is not None and trace.error is not None:
        return _named(story, trace.start, trace.error)
    nan = next((hit for hit in reversed(story.other) if hit.kind == "nan"), None)
    if nan is not None and story.advanced(nan.offset, len(story.log)) >= RECOVERED:
        nan = None
    # outside a traceback a sentence may be a mere note: then the run went on
    after = max(
        [story.steps[-1].offset if story.steps else -1]
        + [trace.error.start for trace in story.errors if trace.error and not trace.is_launchers]
    )
    ends = [hit for hit in signs if hit.offset > after]
    if ends and not completed(story):
        return ends[-1]
    return nan


def _named(story: Story, start: int, error: Line) -> Hit:
    """What an exception is about, by its own line, else by those of its traceback and its message."""
    same = [hit for hit in story.other if hit.line.start == error.start]
    if same:
        return min(same, key=lambda hit: _ORDER[hit.kind])
    near = [hit for hit in story.other if start - AROUND <= hit.offset <= error.start + 4 * AROUND]
    return near[-1] if near else Hit("error", error.start, error)


def completed(story: Story) -> bool:
    """Whether the run says that it is done."""
    last = story.steps[-1] if story.steps else None
    if last is not None and 0 < last.total <= last.done:
        return True
    end = story.log.searched[-4000:]
    return any(sentence in end for sentence in _COMPLETED)

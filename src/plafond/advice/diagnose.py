"""From a log to a diagnosis: what failed last, in which phase, and why.

The telling line is often not the last one: what counts is the last failure that the run did not get over.
"""

from __future__ import annotations

import re
from dataclasses import replace

from plafond.advice.allocation import Allocation, read
from plafond.advice.diagnosis import Advice, Cause, Confidence, Diagnosis
from plafond.advice.facts import Facts
from plafond.advice.ladder import remedies
from plafond.advice.log import Line, Log
from plafond.advice.progress import slowdown
from plafond.advice.regressions import Release, known
from plafond.advice.sentences import (
    BUCKET_PEAK,
    CHECKPOINTING_OFF,
    CRASHED,
    DOES_NOT_FIT,
    EMPTY,
    ENDS,
    FIGURES,
    FIRST_STEPS,
    FRAGMENTATION,
    GAVE_UP,
    GOT_OVER,
    HOST,
    LAUNCHER,
    LIBRARY,
    MISSING_CACHE,
    NO_SENSE,
    NOT_MEMORY,
    NOTHING_FAILED,
    OTHER_PROCESS,
    REFUSED,
    REGRESSION,
    REGRESSION_HOST,
    SKIPPED,
    SKIPPED_PREVIEW,
    SLOWER,
    SPILL,
    VIDEO_FRAMES,
    WARNED,
    WHEN,
    WHY,
    WHY_KNOWN,
)
from plafond.advice.signs import Hit, refusals
from plafond.advice.story import RECOVERED, Story, completed, other_failure, story_of, telling
from plafond.language.said import Said, Size
from plafond.language.speech import languages, speaker
from plafond.memory.gpus import GIB
from plafond.plan.words import NAMES

FIRST = 5
"""Steps after which every kind of memory of a step has been there once."""

_PARTS = re.compile(r"\b(transformer|unet|dit)\b|\b(?:text.?encoder|t5\w*|umt5\w*|clip|mistral|gemma)\b")

QUOTES = 6
"""Most lines that are quoted."""


def diagnose(data: bytes) -> Diagnosis:
    """Read a whole log and say what happened."""
    log = Log(data)
    if not log.data.strip():
        return Diagnosis(
            memory=False, cause="unclear", phase=None, confidence="low", summary=(Said(EMPTY),), failed=False
        )
    story = story_of(log)
    other = other_failure(story)
    hit = telling(story, other)
    if hit is not None:
        return _memory(story, hit, other)
    slow = _slow(story)
    if slow is not None and (other is None or other.kind in ("stopped", "nan")):
        return slow
    return _nothing(story) if other is None else _not_memory(story, other)


def _memory(story: Story, hit: Hit, other: Hit | None) -> Diagnosis:
    place = story.where(hit.offset)
    phase = None if place is None else place.phase
    if hit.kind in ("gave_up", "skipped"):
        phase = "train"
    if hit.kind == "refused":
        return _refused(hit)
    if hit.kind == "segfault":
        crashed = Said(CRASHED, {"when": Said(WHEN[phase])})
        return replace(_unclear(phase, crashed, [hit.line]), failed=True)
    evidence = [hit.line, *([place.line] if place else [])]
    if other is not None and other.offset > hit.offset and other.line.start != hit.line.start:
        evidence.append(other.line)
    if hit.kind in ("host", "shared_memory", "killed", "crashed"):
        found = _host(story, hit, phase, hit.kind, Allocation())
    elif hit.kind == "bare":
        found = _bare(story, hit, phase)
    else:
        found = _device(story, hit, phase)
    more = [line for line in found.evidence if line not in evidence]
    extra = _remarks(story, hit, other, phase)
    return replace(
        found,
        summary=(*found.summary, *extra),
        evidence=tuple(_distinct([*evidence[:1], *more, *evidence[1:]]))[:QUOTES],
    )


def _device(story: Story, hit: Hit, phase: str | None) -> Diagnosis:
    figures = _figures(story, hit)
    foreign, requested = figures.foreign, figures.requested or 0
    total, free, idle = figures.total or 0, figures.free or 0, figures.idle or 0
    named = bool(figures.others)
    when = _when(story, hit, phase)
    least = max(GIB, total * 8 // 100) if named else max(5 * GIB // 2, total * 15 // 100)
    if foreign >= least and total:
        said = Said(OTHER_PROCESS, {"foreign": Size(foreign), "when": when})
        sure: Confidence = "high" if named else "medium"
        return _found(story, "other_process", phase, sure, said, figures)
    if figures.requested is not None and free >= max(2 * requested, GIB):
        return _host(story, hit, phase, "commit", figures)
    beyond = total and (figures.allocated or 0) > total  # Windows lends main memory
    if figures.requested is not None and not beyond and idle >= max(requested, GIB // 2, total // 20):
        said = Said(FRAGMENTATION, {"idle": Size(idle), "requested": Size(requested), "when": when})
        sure = "high" if idle >= 2 * requested else "medium"
        return _released(story, _found(story, "fragmentation", phase, sure, said, figures), when)
    frames = story.facts.frames or 1
    if frames > 1 and phase in ("train", "cache_latents", "preview"):
        said = Said(VIDEO_FRAMES, {"when": when, "frames": frames})
        found = _found(story, "video_frames", phase, "high" if figures.requested else "medium", said, figures)
        line = story.facts.frames_line
        return _released(story, replace(found, evidence=() if line is None else (line,)), when)
    done, skipped = story.completed(hit.offset), sum(hit.kind == "skipped" for hit in story.memory)
    if phase == "train" and done > max(FIRST, skipped + 1):
        step = story.last_step(hit.offset)
        said = Said(BUCKET_PEAK, {"when": when, "steps": done})
        found = _found(story, "bucket_peak", phase, "high" if done > RECOVERED else "medium", said, figures)
        return _released(story, replace(found, evidence=(story.log.line(step.offset),) if step else ()), when)
    sure = "medium" if phase is None or hit.kind in ("handle", "warning") else "high"
    kind = _loaded_last(story, hit) if phase == "load" else ""
    found = _found(story, "does_not_fit", phase, sure, Said(DOES_NOT_FIT, {"when": when}), figures, kind=kind)
    return _released(story, found, when)


def _loaded_last(story: Story, hit: Hit) -> str:
    """Which part of the model the log named last before a failure."""
    named = list(_PARTS.finditer(story.log.around(hit.offset, 3000, 0).lower()))
    return "" if not named else "transformer" if named[-1][1] else "text_encoder"


def _figures(story: Story, hit: Hit) -> Allocation:
    """The figures of the message, or of the newest message that has some."""
    near = [other for other in story.memory if other.kind == "device" and other.offset <= hit.offset]
    for candidate in (hit, *reversed(near[-5:])):
        figures = read(story.log.passage(candidate.line.start))
        if figures.requested is not None:
            return figures
    return Allocation()


def _bare(story: Story, hit: Hit, phase: str | None) -> Diagnosis:
    """A CUDA call without a request: pinned memory at copies to the host, else the card."""
    around = story.log.around(hit.offset, 6000, 12_000).lower()
    copies = (
        "non_blocking",
        "pin_memory",
        "pinned",
        '.to("cpu"',
        ".to('cpu'",
        "cudahostalloc",
        "memory_management",
    )
    if any(word in around for word in copies):
        return _host(story, hit, phase, "pinned", Allocation())
    if phase in ("load", "quantize"):
        return replace(_host(story, hit, phase, "pinned", Allocation()), confidence="medium")
    said = Said(DOES_NOT_FIT, {"when": _when(story, hit, phase)})
    return _found(story, "does_not_fit", phase, "medium", said, Allocation())


def _host(story: Story, hit: Hit, phase: str | None, kind: str, figures: Allocation) -> Diagnosis:
    when = _when(story, hit, phase)
    sizes = {"requested": Size(figures.requested or 0), "free": Size(figures.free or 0)}
    values: dict[str, Said | Size] = {"when": when, **sizes}
    windows = story.facts.system in ("windows", "wsl")
    sure: dict[str, Confidence] = {
        "host": "high",
        "shared_memory": "high",
        "pinned": "high",
        "killed": "high" if story.log.last(b"out of memory: killed process") >= 0 else "medium",
        "commit": "medium" if windows else "low",
        "crashed": "medium",
    }
    found = _found(story, "host_ram", phase, sure[kind], Said(HOST[kind], values), figures, kind=kind)
    known_release = known(story.log, story.facts, phase, host=True)
    if known_release is None:
        return found
    release, line = known_release
    if release.package is not None:
        said = Said(REGRESSION_HOST, {"when": when})
        found = replace(found, cause="regression", confidence="medium", summary=(said,))
    return _with_release(found, release, line)


def _released(story: Story, found: Diagnosis, when: Said) -> Diagnosis:
    """The same, blamed on a release where the log shows one that is known for it."""
    known_release = known(story.log, story.facts, found.phase, host=False)
    if known_release is None:
        return found
    said = Said(REGRESSION, {"when": when})
    found = replace(found, cause="regression", confidence="medium", summary=(said, *found.summary[1:]))
    return _with_release(found, *known_release)


def _with_release(found: Diagnosis, release: Release, line: Line) -> Diagnosis:
    why = Said(WHY_KNOWN, {"effect": Said(release.effect), "source": release.source})
    advice = Advice(id="update_or_pin", why=why)
    return replace(found, evidence=(*found.evidence, line), remedies=(advice, *found.remedies))


def _found(
    story: Story,
    cause: Cause,
    phase: str | None,
    confidence: Confidence,
    said: Said,
    figures: Allocation,
    *,
    kind: str = "",
) -> Diagnosis:
    summary = [said]
    if cause != "host_ram" and None not in (figures.requested, figures.total, figures.free):
        sizes = {"requested": figures.requested, "free": figures.free, "total": figures.total}
        summary.append(Said(FIGURES, {name: Size(size or 0) for name, size in sizes.items()}))
    return Diagnosis(
        memory=True,
        cause=cause,
        phase=phase,
        confidence=confidence,
        summary=tuple(summary),
        remedies=remedies(cause, phase, story.facts, kind=kind),
        total=figures.total,
    )


def _when(story: Story, hit: Hit, phase: str | None) -> Said:
    if phase == "train" and story.steps and story.completed(hit.offset) <= FIRST:
        return Said(FIRST_STEPS)
    return Said(WHEN[phase])


def _remarks(story: Story, hit: Hit, other: Hit | None, phase: str | None) -> list[Said]:
    """What else there is to say about the failure."""
    found = []
    if hit.kind in ("library", "handle"):
        found.append(Said(LIBRARY, {"when": Said(WHEN[phase])}))
    if hit.kind == "warning":
        found.append(Said(WARNED, {"when": Said(WHEN[phase])}))
    if other is not None and other.kind in ("cache", "missing") and phase in ("cache_latents", "encode_text"):
        found.append(Said(MISSING_CACHE))
    kinds = {sign.kind for sign in story.memory}
    if "gave_up" in kinds:
        found.append(Said(GAVE_UP))
    elif "skipped" in kinds:
        found.append(Said(SKIPPED))
    if phase == "preview" and other is None and story.advanced(hit.offset, len(story.log)) >= RECOVERED:
        found.append(Said(SKIPPED_PREVIEW, {"when": Said(WHEN[phase])}))
    if phase == "train" and story.facts.checkpointing is False:
        found.append(Said(CHECKPOINTING_OFF))
    return found


def _refused(hit: Hit) -> Diagnosis:
    """plafond's own plan said no; it names the phase first."""
    text = hit.line.text
    names = [
        (name, speaker(language)(Said(said))) for language in languages() for name, said in NAMES.items()
    ]
    starts = [text.partition(before)[2] for before, _ in refusals() if before in text]
    phase = next((name for name, said in names for start in starts if start.startswith(said)), None)
    return Diagnosis(
        memory=True,
        cause="does_not_fit",
        phase=phase,
        confidence="high",
        summary=(Said(REFUSED),),
        evidence=(hit.line,),
        remedies=remedies("does_not_fit", phase, Facts()),
    )


def _slow(story: Story) -> Diagnosis | None:
    """Steps that became slow and stayed so."""
    jump = slowdown(story.steps)
    if jump is None:
        return None
    values = {"step": jump.before.done, "fast": jump.fast, "slow": jump.slow}
    evidence = (story.log.line(jump.before.offset), story.log.line(jump.after.offset))
    if story.facts.system == "linux":
        return Diagnosis(
            memory=False,
            cause="unclear",
            phase="train",
            confidence="low",
            summary=(Said(SLOWER, values),),
            evidence=evidence,
        )
    return Diagnosis(
        memory=True,
        cause="spill",
        phase="train",
        confidence="medium" if story.facts.system is None else "high",
        summary=(Said(SPILL, values),),
        evidence=evidence,
        remedies=remedies("spill", "train", story.facts),
    )


def _not_memory(story: Story, other: Hit) -> Diagnosis:
    place = story.where(other.offset)
    words = other.line.quoted
    if words.endswith(":"):  # what it says begins on the next line
        words = story.log.passage(other.line.start, 200).strip()
    return Diagnosis(
        memory=False,
        cause="not_memory",
        phase=None if place is None else place.phase,
        confidence="medium" if other.kind == "error" else "high",
        summary=(Said(NOT_MEMORY[other.kind], {"error": words[:160]}),),
        evidence=(other.line,),
        remedies=(Advice(id="not_memory", why=Said(WHY["not_memory"])),),
    )


def _nothing(story: Story) -> Diagnosis:
    """No failure: the run was completed, or its log just ends."""
    tail = story.log.tail(1)
    place = story.where(len(story.log) - 1)
    phase = None if place is None else place.phase
    if completed(story):
        summary = [Said(NOTHING_FAILED)]
        kinds = {hit.kind for hit in story.memory} - {"warning"}
        if kinds:
            summary.append(Said(SKIPPED if "skipped" in kinds else GOT_OVER))
        return Diagnosis(
            memory=False,
            cause="not_memory",
            phase=None,
            confidence="high",
            summary=tuple(summary),
            evidence=tuple(tail),
            failed=False,
        )
    launcher = next(
        (trace.error for trace in reversed(story.errors) if trace.is_launchers and trace.error), None
    )
    if launcher is not None:
        return replace(_unclear(phase, Said(LAUNCHER), [launcher]), failed=True)
    return _unclear(phase, Said(NO_SENSE) if phase is None else Said(ENDS, {"when": Said(WHEN[phase])}), tail)


def _unclear(phase: str | None, said: Said, evidence: list[Line]) -> Diagnosis:
    return Diagnosis(
        memory=False,
        cause="unclear",
        phase=phase,
        confidence="low",
        summary=(said,),
        evidence=tuple(evidence),
        failed=False,
    )


def _distinct(lines: list[Line]) -> list[Line]:
    seen: dict[int, Line] = {}
    for line in lines:
        seen.setdefault(line.start, line)
    return list(seen.values())

"""What the plan and the train command share: which ceiling is meant, and a line while the dry run works."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import platformdirs

from plafond.errors import UsageError
from plafond.language.said import N_, ExactSize, Said, Speak, Value
from plafond.memory.calibration import with_overhead
from plafond.memory.gpus import Ceiling, ceiling_for, context_overhead, parse_size
from plafond.plan.words import NAMES
from plafond.training.chatter import to_log

VIRTUAL = N_("{size} on a virtual GPU")

NO_LIMIT = 2**60
"""Bytes that no device has."""


def ceiling_of(vram: str | None, gpu: str | None, *, virtual: bool, device: str | None = None) -> Ceiling:
    """The ceiling of ``--vram`` and ``--gpu``; on a virtual GPU live bytes are all there is.

    Args:
        vram: ``--vram``.
        gpu: ``--gpu``.
        virtual: the device is a virtual GPU.
        device: the name of the real one, where it is known.

    Raises:
        UsageError: neither is given, or one cannot be read.
    """
    if virtual and vram is not None and gpu is None:
        size = parse_size(vram)
        return Ceiling(size, 0, Said(VIRTUAL, {"size": ExactSize(size)}), None)
    ceiling = ceiling_for(vram, gpu)
    named = ceiling.gpu or device
    return ceiling if virtual or named is None else with_overhead(ceiling, named)


def free_on(gpu: str, free: int) -> Said:
    """How a ceiling is described that is what a card has free at the moment."""
    return Said(N_("{size} free on {gpu}"), {"size": ExactSize(free), "gpu": gpu})


def no_ceiling(*, virtual: bool) -> Ceiling:
    """For plans that nothing limits."""
    return Ceiling(NO_LIMIT, 0 if virtual else context_overhead(), Said(N_("no ceiling")), None)


def is_virtual(device: str) -> bool:
    """Whether ``--device`` of a command that only plans means a virtual GPU.

    Raises:
        UsageError: it is none of those that are known.
    """
    if device not in ("auto", "cuda", "cpu"):
        raise UsageError(N_("--device {name}: expected auto, cuda or cpu"), name=device)
    return device == "cpu"


@contextmanager
def announced(speak: Speak = str) -> Iterator[Callable[[str, int, int], None]]:
    """A hook that names the phase being looked at, on a terminal only; what libraries print goes to a log.

    Args:
        speak: puts that line into the reader's language; by default it is English.
    """
    live = sys.stderr.isatty()
    with to_log(platformdirs.user_cache_path("plafond") / "plan-log.txt") as stream:

        def step(phase: str, index: int, count: int) -> None:
            if live:
                values: dict[str, Value] = {"number": index + 1, "count": count, "phase": Said(NAMES[phase])}
                line = speak(Said(N_("dry run {number}/{count}: {phase}"), values))
                stream.write(f"\r\x1b[K{line}")
                stream.flush()

        try:
            yield step
        finally:
            if live:
                stream.write("\r\x1b[K")
                stream.flush()

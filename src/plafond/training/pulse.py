"""Main memory while a run goes on, and what the run leaves behind so that the next one can say how it died.

Linux ends the process that takes the most when main memory is full, with a signal that no program can catch. A run
therefore writes down now and then how it is; the file is gone when it ends by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from plafond.language.said import N_, ExactSize, Said, Value
from plafond.training.run_folder import write_atomically

FILE = "running.json"
MEMORY = N_("{free} of main memory were left then, and {held} were its own")
SCARCE = N_("only {free} of main memory are left, and {held} are this run's: the system may kill it")
EVERY = 5.0
"""Seconds between two looks."""
SCARCE_SHARE = 0.02
SCARCE_BYTES = 512 * 2**20
"""Main memory is scarce when less than the smaller of the two is left."""
SUSPICIOUS = 0.05
"""A run that was killed when less than this share of main memory was left was probably killed for it."""

CGROUP = Path("/sys/fs/cgroup")
VMSTAT = Path("/proc/vmstat")


@dataclass(frozen=True, kw_only=True)
class Beat:
    """How a run was at a moment.

    Args:
        step: the last whole one.
        free: bytes of main memory that it could still have had.
        total: bytes of main memory.
        held: bytes of it that were the run's.
        kills: processes that the system had ended for want of memory since it was started; None if nobody counts.
        booted: when that was.
    """

    step: int
    free: int
    total: int
    held: int
    kills: int | None
    booted: float


def take(step: int) -> Beat:
    """How this process is now."""
    memory = psutil.virtual_memory()
    free, total = memory.available, memory.total
    limit, used = _number(CGROUP / "memory.max"), _number(CGROUP / "memory.current")
    if limit is not None and used is not None and limit < total:
        free, total = min(free, max(0, limit - used)), limit
    held = psutil.Process().memory_info().rss
    return Beat(step=step, free=free, total=total, held=held, kills=_kills(), booted=psutil.boot_time())


def end_of(last: Beat, now: Beat) -> Said:
    """How a run ended that left `last` behind, in a sentence."""
    when = (
        Said(N_("after step {step}"), {"step": last.step}) if last.step else Said(N_("before its first step"))
    )
    end = Said(N_("the run before this one ended without a word some time {when}"), {"when": when})
    sizes = {"free": ExactSize(last.free), "held": ExactSize(last.held)}
    values: dict[str, Value] = {"end": end, "memory": Said(MEMORY, sizes)}
    again = abs(now.booted - last.booted) > 60
    if again:
        return Said(N_("{end}: the machine has been restarted since"), values)
    if last.kills is not None and now.kills is not None and now.kills > last.kills:
        return Said(N_("{end}: the system killed it because main memory was full ({memory})"), values)
    if last.free < SUSPICIOUS * last.total:
        return Said(
            N_("{end}: the system probably killed it because main memory was full ({memory})"), values
        )
    return Said(N_("{end}: it was killed ({memory})"), values)


class Pulse:
    """Writes down how a run is, in a ``with`` block that says first how the one before it died, if it did.

    Args:
        folder: the run's, which is locked.
        warn: told what the user has to know.
    """

    def __init__(self, folder: Path, warn: Callable[[Said], None]):
        self.path, self.warn = folder / FILE, warn
        self._next = 0.0
        self._warned = False

    def __enter__(self) -> Pulse:
        try:
            last = Beat(**json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            last = None
        if last is not None:
            self.warn(end_of(last, take(last.step)))
        self.beat(0)
        return self

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)

    def beat(self, step: int) -> bool:
        """Write it down if it is time to; whether main memory has just become scarce, so that saving is wise."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + EVERY
        now = take(step)

        def fill(path: Path) -> None:
            path.write_text(json.dumps(asdict(now)), encoding="utf-8")

        write_atomically(self.path, fill)
        if self._warned or now.free >= min(SCARCE_BYTES, SCARCE_SHARE * now.total):
            return False
        self._warned = True
        self.warn(Said(SCARCE, {"free": ExactSize(now.free), "held": ExactSize(now.held)}))
        return True


def _kills() -> int | None:
    for path in (CGROUP / "memory.events", CGROUP / "memory" / "memory.oom_control", VMSTAT):
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdecimal():
                return int(value)
    return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None  # no such file, or "max"

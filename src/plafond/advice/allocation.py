"""The figures in an out-of-memory message: the allocators' forms of the last years, CUDA's and HIP's."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_UNITS: dict[str, int] = {"b": 1, "byte": 1, "bytes": 1} | {
    f"{letter}{infix}b": 1024**power for power, letter in enumerate("kmgt", start=1) for infix in ("", "i")
}
_SIZE = r"([\d.]+)\s*([KMGT]i?B|bytes?)"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text.replace("SIZE", _SIZE), re.IGNORECASE)


_FIGURES = {
    "requested": (_pattern(r"tried to allocate\s+SIZE"), _pattern(r"requested\s*:\s*SIZE")),
    "total": (
        _pattern(r"total capaci?ty of\s+SIZE"),
        _pattern(r"SIZE\s+total capacity"),
        _pattern(r"device limit\s*:\s*SIZE"),
    ),
    "free": (
        _pattern(r"of which\s+SIZE\s+is free"),
        _pattern(r"already allocated;\s*SIZE\s+free"),
        _pattern(r"free \(according to \w+\)\s*:\s*SIZE"),
    ),
    "process": (_pattern(r"this process has\s+SIZE\s+memory in use"),),
    "allocated": (
        _pattern(r"allocated memory\s+SIZE\s+is allocated by PyTorch"),
        _pattern(r"SIZE\s+already allocated"),
        _pattern(r"currently allocated\s*:\s*SIZE"),
    ),
    "idle": (_pattern(r"SIZE\s+is reserved by PyTorch but unallocated"),),
    "reserved": (_pattern(r"SIZE\s+reserved in total by PyTorch"),),
}
_OTHER = _pattern(r"\bprocess\s+(\d+)\s+has\s+SIZE\s+memory in use")


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What a message says about the allocation that failed; None where it does not say. All in bytes.

    Args:
        requested: the request that failed.
        total: the device.
        free: what the driver had left.
        process: what this process held, its context included.
        allocated: live tensors.
        reserved: what the caching allocator held, live and idle.
        idle: the part of it that was not live.
        others: process id and bytes of other processes on the device.
    """

    requested: int | None = None
    total: int | None = None
    free: int | None = None
    process: int | None = None
    allocated: int | None = None
    reserved: int | None = None
    idle: int | None = None
    others: tuple[tuple[int, int], ...] = field(default=())

    @property
    def foreign(self) -> int:
        """What others hold: named processes, else what is left of the device when everything known is taken off."""
        if self.others:
            return sum(size for _, size in self.others)
        mine = self.process if self.process is not None else self.reserved
        if self.total is None or self.free is None or mine is None:
            return 0
        return max(0, self.total - self.free - mine)


def read(message: str) -> Allocation:
    """Read the figures of one message."""
    found: dict[str, int] = {}
    for name, patterns in _FIGURES.items():
        for pattern in patterns:
            if match := pattern.search(message):
                found[name] = _bytes(match[1], match[2])
                break
    if "reserved" not in found and "allocated" in found and "idle" in found:
        found["reserved"] = found["allocated"] + found["idle"]
    if "idle" not in found and "allocated" in found and "reserved" in found:
        found["idle"] = max(0, found["reserved"] - found["allocated"])
    others = [(int(match[1]), _bytes(match[2], match[3])) for match in _OTHER.finditer(message)]
    if "process" not in found and others and found.get("reserved"):
        # in a container the process sees itself under its number outside
        own = min(others, key=lambda other: abs(other[1] - found["reserved"]))
        if own[1] >= found["reserved"]:
            others.remove(own)
            found["process"] = own[1]
    return Allocation(**found, others=tuple(others))


def _bytes(number: str, unit: str) -> int:
    try:
        return round(float(number) * _UNITS[unit.lower()])
    except (ValueError, OverflowError):
        return 0

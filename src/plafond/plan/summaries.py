"""What a dry run of one phase found, kept on disk so that the same question is answered at once the next time.

A summary is kept under everything that it depends on: the settings that change memory, the model's configuration, the
shape, the device that is predicted, and plafond's own source. Reading one needs no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import platformdirs

import plafond

if TYPE_CHECKING:
    from plafond.memory.allocator import Mode
    from plafond.memory.trace import Trace

CURVE_POINTS = 160


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One phase on one shape.

    Args:
        kinds: bytes of each kind of tensor at the fullest moment.
        allocated_bytes: their sum.
        reserved_bytes: what the caching allocator holds for them.
        moment: the fullest moment in words.
        flops: floating-point operations of what was traced.
        curve: fullest moments on the way, as (moment, bytes).
    """

    kinds: dict[str, int]
    allocated_bytes: int
    reserved_bytes: int
    moment: str
    flops: int
    curve: tuple[tuple[str, int], ...]


def summarise(trace: Trace, *, mode: Mode | None) -> Summary:
    """Reduce a trace; `mode` replays it through CUDA's allocator, None through none."""
    from plafond.memory.allocator import replay

    peak = trace.peak()
    reserved = peak.bytes if mode is None else replay(trace.replayable(), mode=mode).reserved_peak
    return Summary(
        kinds=peak.kinds,
        allocated_bytes=peak.bytes,
        reserved_bytes=reserved,
        moment=peak.moment,
        flops=trace.total_flops,
        curve=tuple(trace.curve(CURVE_POINTS)),
    )


def remembered(key: dict[str, Any], find: Callable[[], Summary]) -> Summary:
    """The summary kept under `key`, or what `find` finds, which is then kept."""

    def read(kept: dict[str, Any]) -> Summary:
        return Summary(**{**kept, "curve": tuple((moment, size) for moment, size in kept["curve"])})

    return kept_json(key, lambda: asdict(find()), read)


Answer = TypeVar("Answer")


def kept_json(
    key: dict[str, Any], find: Callable[[], dict[str, Any]], read: Callable[[dict[str, Any]], Answer]
) -> Answer:
    """What is kept under `key`, or what `find` finds, which is then kept; `read` makes the answer of it.

    A folder that cannot be written to only costs time.
    """
    text = json.dumps({**key, "source": _source()}, sort_keys=True, default=str)
    file = folder() / f"{hashlib.sha256(text.encode()).hexdigest()}.json"
    try:
        return read(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        pass
    found = find()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".writing")
        temporary.write_text(json.dumps(found), encoding="utf-8")
        temporary.replace(file)
    except OSError:
        pass
    return read(json.loads(json.dumps(found)))


def folder() -> Path:
    """Where summaries are kept."""
    return platformdirs.user_cache_path("plafond") / "plans"


@cache
def _source() -> str:
    """Tells one state of plafond's source from another, without reading it."""
    root = Path(plafond.__file__).parent
    stats = [(path, path.stat()) for path in sorted(root.rglob("*.py"))]
    text = ";".join(f"{path}:{stat.st_size}:{stat.st_mtime_ns}" for path, stat in stats)
    return hashlib.sha256(text.encode()).hexdigest()

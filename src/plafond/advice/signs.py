"""The sentences that failures are known by: what they say about memory, or that they are about something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from plafond.advice.log import Line, Log
from plafond.language.speech import catalogue, languages
from plafond.plan.words import NO

MOST = 200
"""Occurrences of one sentence that are looked at, from the start and from the end of a log."""

TAIL = 30
"""Last lines in which an exception without a traceback counts."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One sentence.

    Args:
        kind: what it means; the kinds of `MEMORY` and `OTHER`.
        needle: found in the lower-case log first.
        pattern: must then be found in the line.
    """

    kind: str
    needle: bytes
    pattern: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A sign where it stands."""

    kind: str
    offset: int
    line: Line


def _sign(kind: str, needle: str, pattern: str | None = None) -> Sign:
    return Sign(kind, needle.encode(), None if pattern is None else re.compile(pattern, re.IGNORECASE))


def refusals() -> Iterator[tuple[str, str]]:
    """How plafond's plan says no, in each language: what comes before the phase, and before the bytes that it needs."""
    for language in languages():
        before, _, rest = catalogue(language).get(NO, NO).partition("{place}")
        yield before, rest.partition("{needs}")[0]


def _refusals() -> Iterator[Sign]:
    for before, needs in refusals():
        pattern = rf"{re.escape(before)}.*{re.escape(needs)}[\d.,]+\s[kmg]i?[bo], "
        yield _sign("refused", before.lower(), pattern)


KILLED = r"(?:code|status|signal|code\s*=|exit\w*)[^\w\n]{0,4}(?:137|-9)\b|sigkill"
MEMORY = (
    _sign("device", "out of memory. tried to allocate", r"(?:cuda|hip|xpu|mps|gpu) out of memory"),
    _sign("device", "out of memory. tried to allocate", r"^\s*(?:torch\.)?(?:cuda\.)?outofmemoryerror"),
    _sign("device", "cuda out of memory"),
    _sign("device", "hip out of memory"),
    _sign("device", "mps backend out of memory"),
    _sign("device", "allocation on device"),
    _sign("device", "cuda_error_out_of_memory"),
    _sign("device", "outofmemoryerror", r"outofmemoryerror\s*(?:$|:)"),
    _sign("skipped", "oom during training step", r"skip"),
    _sign("gave_up", "times in a row", r"oom during training step \d+ times in a row"),
    _sign("library", "cublas_status_alloc_failed"),
    _sign("library", "cudnn_status_alloc_failed"),
    _sign("library", "cusolver_status_alloc_failed"),
    _sign("library", "rocblas_status_memory_error"),
    _sign("handle", "cublas_status_not_initialized", r"cublascreate"),
    _sign("bare", "error: out of memory", r"(?:cuda|hip|runtime|driver) error: out of memory"),
    _sign("bare", "hiperroroutofmemory"),
    _sign("warning", "memory allocation failed", r"allocat"),
    _sign(
        "warning",
        "cudacachingallocator",
        r"\b(?:retry|failed to allocate|cudamalloc\w* failed|out of memory)",
    ),
    _sign("host", "can't allocate memory", r"allocator"),
    _sign("host", "not enough memory: you tried to allocate"),
    _sign("host", "cannot allocate memory"),
    _sign("host", "std::bad_alloc"),
    _sign("host", "memoryerror", r"(?:^|[\s.])(?:_array)?memoryerror\s*(?:$|:)"),
    _sign("host", "unable to allocate", r"unable to allocate [\d.]+ [kmgt]i?b for an array"),
    _sign("host", "paging file is too small"),
    _sign("host", "os error 1455"),
    _sign("host", "winerror 1455"),
    _sign("shared_memory", "insufficient shared memory"),
    _sign("shared_memory", "unable to allocate shared memory"),
    _sign("shared_memory", "unable to open shared memory object", r"shared memory object"),
    _sign("shared_memory", "bus error", r"dataloader|worker|shared|core dumped"),
    _sign("killed", "killed process", r"out of memory|oom"),
    _sign("killed", "oom-kill"),
    _sign("killed", "oomkilled", r"oomkilled(?!\W+false)"),
    _sign("killed", "killed", r"^\s*(?:[\w./-]+:\s*line \d+:\s*\d+\s+)?killed\b"),
    _sign("killed", "killed", r"killed by signal: killed|zsh: killed|exited by signal sigkill"),
    _sign("killed", "sigkill"),
    _sign("killed", "137", KILLED),
    _sign("killed", "-9", KILLED),
    _sign("crashed", "3221225477"),
    _sign("crashed", "0xc0000005"),
    _sign("crashed", "-1073741819"),
    _sign("crashed", "access violation"),
    _sign("segfault", "segmentation fault"),
    _sign("segfault", "return code = -11"),
    _sign("segfault", "sigsegv"),
    *_refusals(),
)
"""Kinds: ``device`` the caching allocator gave up; ``library`` a library's own allocation; ``bare`` a CUDA call, often
pinned host memory; ``host`` main memory; ``killed``, ``crashed``, ``segfault`` the process ended from outside;
``skipped``, ``gave_up`` a trainer's reaction; ``warning`` an allocator's; ``refused`` plafond's plan."""

OTHER = (
    _sign("disk", "no space left on device"),
    _sign("disk", "not enough space on the disk"),
    _sign("disk", "disk quota exceeded"),
    _sign("disk", "the disk is full"),
    _sign("access", "gatedrepoerror"),
    _sign("access", "gated repo"),
    _sign("access", "401 client error"),
    _sign("access", "403 client error"),
    _sign("access", "access to model", r"restricted"),
    _sign("access", "repositorynotfounderror"),
    _sign("network", "max retries exceeded"),
    _sign("network", "read timed out", r"error|exception"),
    _sign("network", "localentrynotfounderror"),
    _sign("network", "name resolution"),
    _sign("driver", "driver version is insufficient"),
    _sign("driver", "driver on your system is too old"),
    _sign("driver", "no kernel image is available"),
    _sign("driver", "forward compatibility was attempted"),
    _sign("driver", "not compiled with cuda enabled"),
    _sign("driver", "driver/library version mismatch"),
    _sign("driver", "invalid device function"),
    _sign("driver", "no cuda gpus are available"),
    _sign("driver", "no nvidia driver"),
    _sign("device_fault", "illegal memory access"),
    _sign("device_fault", "device-side assert triggered"),
    _sign("device_fault", "unspecified launch failure"),
    _sign("device_fault", "cuda error: unknown error"),
    _sign("device_fault", "gpu is lost"),
    _sign("device_fault", "fallen off the bus"),
    _sign("dtype", "must have the same dtype"),
    _sign("dtype", "expected scalar type"),
    _sign("dtype", "expected m1 and m2 to have the same dtype"),
    _sign("dtype", "should be the same", r"input type .* and (?:bias|weight) type"),
    _sign("dtype", "expected all tensors to be on the same device"),
    _sign("dtype", "not implemented for", r"\"\w+\" not implemented for '"),
    _sign("shape", "shapes cannot be multiplied"),
    _sign("shape", "stack expects each tensor to be equal size"),
    _sign("shape", "size mismatch for"),
    _sign("shape", "must match the size of tensor"),
    _sign("nan", "loss is nan"),
    _sign("nan", "loss became nan"),
    _sign("nan", "nan detected", r"loss|latent|gradient"),
    _sign("nan", "loss=nan"),
    _sign("nan", "loss: nan"),
    _sign("nan", "not finite", r"loss|gradient"),
    _sign("nan", "non-finite", r"loss|gradient"),
    _sign("image", "cannot identify image file"),
    _sign("image", "image file is truncated"),
    _sign("image", "broken data stream"),
    _sign("image", "decompressionbomberror"),
    _sign("weights", "while deserializing header"),
    _sign("weights", "headertoolarge"),
    _sign("weights", "incomplete metadata, file not fully covered"),
    _sign("weights", "pytorchstreamreader failed"),
    _sign("cache", "not correctly cached"),
    _sign("cache", "cache file", r"(?:not found|missing|does not exist|no such)"),
    _sign("missing", "filenotfounderror"),
    _sign("missing", "no such file or directory"),
    _sign("missing", "no such folder"),
    _sign("missing", "can't load tokenizer for"),
    _sign("permission", "permissionerror"),
    _sign("permission", "permission denied"),
    _sign("empty", "no images found"),
    _sign("empty", "no data found"),
    _sign("empty", "dataset is empty"),
    _sign("config", "keyerror", r"^\s*(?:\w+\.)*keyerror:"),
    _sign("config", "validationerror", r"validationerrors?\b"),
    _sign("config", "scannererror"),
    _sign("config", "parsererror", r"yaml|parsererror:"),
    _sign("config", "jsondecodeerror"),
    _sign("config", "unrecognized arguments"),
    _sign("config", "unexpected keyword argument"),
    _sign("config", "unknown key; did you mean"),
    _sign("config", "is not supported yet", r"^plafond: "),
    _sign("install", "modulenotfounderror"),
    _sign("install", "importerror", r"importerror:"),
    _sign("install", "dll load failed"),
    _sign("install", "undefined symbol"),
    _sign("database", "database is locked"),
    _sign("stopped", "keyboardinterrupt"),
    _sign("stopped", "job stopped by user"),
)
"""What is not a matter of memory, by kind."""

_ERROR = re.compile(
    r"^(?:\[?rank\d+\]?:\s*)?(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt))\b:? ?"
)


def hits(log: Log, signs: tuple[Sign, ...]) -> list[Hit]:
    """Every occurrence of the signs, in the order of the log; at most `MOST` of each from either end."""
    found: dict[tuple[str, int], Hit] = {}
    for needle in dict.fromkeys(sign.needle for sign in signs):
        wanted = [sign for sign in signs if sign.needle == needle]
        for offset in _offsets(log, needle):
            line = log.line(offset)
            for sign in wanted:
                if _matches(sign, line):
                    found.setdefault((sign.kind, line.start), Hit(sign.kind, offset, line))
                    break
    return sorted(found.values(), key=lambda hit: hit.offset)


def _offsets(log: Log, needle: bytes) -> Iterator[int]:
    first = []
    for offset in log.find(needle):
        first.append(offset)
        yield offset
        if len(first) == MOST:
            break
    else:
        return
    end = len(log)
    for _ in range(MOST):
        offset = log.last(needle, end)
        if offset <= first[-1]:
            return
        yield offset
        end = log.line(offset).start


def _matches(sign: Sign, line: Line) -> bool:
    return sign.pattern is None or sign.pattern.search(line.text) is not None


def last_exception(log: Log) -> Hit | None:
    """The last line that ends a traceback, whatever its exception; without one, an exception among the last lines."""
    start = log.last(b"traceback (most recent call last)")
    if start < 0:
        # only the end of a log was kept
        newest = log.bars[-1][0] if log.bars else -1
        ends = [line for line in log.tail(TAIL) if line.start > newest and _ERROR.match(line.text)]
        return Hit("error", ends[-1].start, ends[-1]) if ends else None
    found = None
    for text, offset in _lines(log, start):
        match = _ERROR.match(text)
        if match:
            found = Hit("error", offset, log.line(offset))
    return found


def _lines(log: Log, start: int) -> Iterator[tuple[str, int]]:
    offset = start
    for raw in log.part(start, start + 200_000).split(b"\n"):
        yield log.line(offset).text if raw[:1].isalpha() or raw[:1] == b"[" else "", offset
        offset += len(raw) + 1

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


def _statuses(
    kind: str, statuses: str, pattern: str = r"(?:code|status|signal|exit\w*)[^\w\n]{0,4}"
) -> Iterator[Sign]:
    """Exit statuses as shells, containers and launchers report them."""
    for status in statuses.split():
        yield _sign(kind, status, rf"{pattern}(?<!\d){re.escape(status)}(?!\d)" if pattern else None)


_KILLED = (
    "processus arrêté",
    "tué",
    "getötet",
    "terminado (killed)",
    "ucciso",
    "已杀死",
    "強制終了",
    "Убито",
)
"""What shells say in other languages when a process is killed."""


def _killed_abroad() -> Iterator[Sign]:
    for word in _KILLED:
        yield _sign("killed", word, rf"^\s*(?:\S+\s?:\s?\w+\s\d+\s?:\s*\d+\s+)?{re.escape(word)}(?!\w)")


MEMORY = (
    _sign("device", "out of memory. tried to allocate", r"(?:cuda|hip|xpu|mps|gpu) out of memory"),
    _sign("device", "out of memory. tried to allocate", r"^\s*(?:torch\.)?(?:cuda\.)?outofmemoryerror"),
    _sign("device", "cuda out of memory"),
    _sign("device", "hip out of memory"),
    _sign("device", "mps backend out of memory"),
    _sign("device", "allocation on device"),
    _sign("device", "cuda_error_out_of_memory"),
    _sign("device", "ur_result_error_out_of_device_memory"),
    _sign("device", "not enough gpu video memory"),
    _sign("device", "invalid buffer size", r"invalid buffer size: [\d.]+ ?[gt]i?b"),
    _sign("device", "resource_exhausted", r"out of memory"),
    _sign("device", "no executable batch size found"),
    _sign("device", "outofmemoryerror", r"outofmemoryerror\s*(?:$|:)"),
    _sign("skipped", "oom during training step", r"skip"),
    _sign("gave_up", "times in a row", r"oom during training step \d+ times in a row"),
    _sign("library", "cublas_status_alloc_failed"),
    _sign("library", "cudnn_status_alloc_failed"),
    _sign("library", "cusolver_status_alloc_failed"),
    _sign("library", "rocblas_status_memory_error"),
    _sign("library", "cuda failure", r"cuda failure (?:\d+ )?'out of memory"),
    _sign("library", "cudaerrormemoryallocation: out of memory"),
    _sign("library", "triton error", r"triton error \[\w+\]: out of memory"),
    _sign("library", "error out of memory at line"),
    _sign("handle", "cublas_status_not_initialized", r"cublascreate"),
    _sign("handle", "hsa_status_error_out_of_resources"),
    _sign("handle", "error_out_of_resources", r"(?:ur_result|pi)_error_out_of_resources"),
    _sign("library", "failed: out of memory", r"(?:malloc|create|alloc\w*) failed: out of memory"),
    _sign("handle", "unable to find a valid cudnn algorithm"),
    _sign("bare", "error: out of memory", r"(?:cuda|hip|runtime|driver) ?error: out of memory"),
    _sign("bare", "hiperroroutofmemory"),
    _sign("warning", "memory allocation failed", r"allocat"),
    _sign(
        "warning",
        "cudacachingallocator",
        r"\b(?:retry|failed to allocate|cudamalloc\w* failed|out of memory|failed with oom)",
    ),
    _sign("host", "can't allocate memory", r"allocator"),
    _sign("host", "not enough memory: you tried to allocate"),
    _sign("host", "cannot allocate memory"),
    _sign("host", "[errno 12]"),
    _sign("host", "insufficient memory", r"cv2?|alloc"),
    _sign("host", "memory allocation of", r"memory allocation of \d+ bytes failed"),
    _sign("host", "[winerror 8]"),
    _sign("host", "[winerror 1450]"),
    _sign("host", "std::bad_alloc"),
    _sign("host", "memoryerror", r"(?:^|[\s.])(?:_array)?memoryerror\s*(?:$|:)"),
    _sign("host", "unable to allocate", r"unable to allocate [\d.]+ [kmgt]i?b for an array"),
    _sign("host", "paging file is too small"),
    _sign("host", "os error 1455"),
    _sign("host", "winerror 1455"),
    _sign("shared_memory", "insufficient shared memory"),
    _sign("shared_memory", "unable to allocate shared memory"),
    _sign("shared_memory", "unable to open shared memory object", r"object(?!.*too many open files)"),
    _sign("shared_memory", "bus error", r"dataloader|worker|shared|core dumped"),
    _sign("killed", "killed process", r"out of memory|oom"),
    _sign("killed", "oom-kill"),
    _sign("killed", "oomkilled", r"oomkilled(?!\W+false)"),
    _sign("killed", "killed", r"^\s*(?:[\w./-]+:\s*line \d+:\s*\d+\s+)?killed\b"),
    _sign("killed", "killed", r"killed by signal: killed|zsh: killed|exited by signal sigkill"),
    _sign("killed", "sigkill", r"sigkill(?!_handler)(?<!via signals\.sigkill)"),
    _sign("killed", "oom_kill", r"oom_kill event"),
    _sign("killed", "signal 9", r"(?:by|got|received) signal 9\b"),
    _sign("killed", "abruptly died"),
    *_killed_abroad(),
    *_statuses("killed", "137 -9"),
    *_statuses("shared_memory", "135 -7"),
    *_statuses("host", "3221225495 -1073741801 3221225773 -1073741523", ""),
    *_statuses("crashed", "3221225477 -1073741819 0xc0000005", ""),
    _sign("crashed", "access violation"),
    *_statuses("segfault", "139 -11"),
    *_statuses("segfault", "3221226505 -1073740791 3221225725 -1073741571 3221226356 -1073740940", ""),
    _sign("segfault", "segmentation fault"),
    _sign("segfault", "erreur de segmentation"),
    _sign("segfault", "sigsegv"),
    *_refusals(),
)
"""Kinds: ``device`` the caching allocator gave up; ``library`` a library's own allocation; ``bare`` a CUDA call, often
pinned host memory; ``host`` main memory; ``killed``, ``crashed``, ``segfault`` the process ended from outside;
``skipped``, ``gave_up`` a trainer's reaction; ``warning`` an allocator's; ``refused`` plafond's plan."""

OTHER = (
    _sign("disk", "no space left on device"),
    _sign("disk", "[errno 28]"),
    _sign("disk", "storagefull"),
    _sign("disk", "os error 112"),
    _sign("disk", "[winerror 112]"),
    _sign("disk", "[errno 122]"),
    _sign("disk", "not enough space on the disk"),
    _sign("disk", "disk quota exceeded"),
    _sign("disk", "disk is full"),
    _sign("disk", "not enough free disk space"),
    _sign("disk", "inline_container", r"unexpected pos|failed writing"),
    _sign("access", "gatedrepoerror"),
    _sign("access", "gated repo"),
    _sign("access", "401 client error"),
    _sign("access", "403 client error"),
    _sign("access", "access to model", r"restricted"),
    _sign("access", "repositorynotfounderror"),
    _sign("access", "tokennotfounderror"),
    _sign("name", "is not a valid model identifier"),
    _sign("network", "max retries exceeded"),
    _sign("network", "read timed out", r"error|exception"),
    _sign("network", "localentrynotfounderror"),
    _sign("network", "name resolution"),
    _sign("network", "getaddrinfo failed"),
    _sign("network", "couldn't connect to 'http"),
    _sign("network", "429 client error"),
    _sign("network", "server error:", r"50\d server error"),
    _sign("network", "sslerror"),
    _sign("network", "offlinemodeisenabled"),
    _sign("network", "cas service error"),
    _sign("network", "incompleteread"),
    _sign("network", "chunkedencodingerror"),
    _sign("driver", "driver version is insufficient"),
    _sign("driver", "driver on your system is too old"),
    _sign("driver", "no kernel image is available"),
    _sign("driver", "forward compatibility was attempted"),
    _sign("driver", "not compiled with cuda enabled"),
    _sign("driver", "driver/library version mismatch"),
    _sign("driver", "invalid device function"),
    _sign("driver", "no cuda gpus are available"),
    _sign("driver", "no nvidia driver"),
    _sign("driver", "cuda driver initialization failed"),
    _sign("driver", "couldn't communicate with the nvidia driver"),
    _sign("driver", "unsupported display driver"),
    _sign("driver", "the detected cuda version", r"mismatches"),
    _sign("driver", "is not compatible with the current pytorch"),
    _sign("driver", "torch.cuda.is_available() is false"),
    _sign("driver", "invalid device ordinal"),
    _sign("driver", "devices are busy or unavailable"),
    _sign("driver", "named symbol not found"),
    _sign("driver", "hiperrornobinaryforgpu"),
    _sign("driver", "device kernel image is invalid"),
    _sign("unsupported", "no operator found for"),
    _sign("unsupported", "out of resource: shared memory"),
    _sign("unsupported", "flashattention", r"only supports?"),
    _sign("unsupported", "mixed precision requires"),
    _sign("unsupported", "support bf16", r"(?:doesn't|does not) support bf16"),
    _sign("unsupported", "not currently implemented for the mps"),
    _sign("unsupported", "not supported in this architecture"),
    _sign("device_fault", "illegal memory access"),
    _sign("device_fault", "illegal instruction was encountered"),
    _sign("device_fault", "memory access fault by gpu"),
    _sign("device_fault", "misaligned address"),
    _sign("device_fault", "uncorrectable ecc error"),
    _sign("device_fault", "launch timed out"),
    _sign("device_fault", "device-side assert triggered"),
    _sign("device_fault", "unspecified launch failure"),
    _sign("device_fault", "cuda error: unknown error"),
    _sign("device_fault", "gpu is lost"),
    _sign("device_fault", "gpu hang"),
    _sign("device_fault", "fallen off the bus"),
    _sign("dtype", "must have the same dtype"),
    _sign("dtype", "expected scalar type"),
    _sign("dtype", "expected m1 and m2 to have the same dtype"),
    _sign("dtype", "should be the same", r"input type .* and (?:bias|weight) type"),
    _sign("dtype", "expected all tensors to be on the same device"),
    _sign("dtype", "not implemented for", r"\"\w+\" not implemented for '"),
    _sign("dtype", "attempting to unscale fp16 gradients"),
    _sign("dtype", "has not been allocated on mps"),
    _sign("shape", "shapes cannot be multiplied"),
    _sign("shape", "stack expects each tensor to be equal size"),
    _sign("shape", "must match the size of tensor"),
    _sign("nan", "loss is nan"),
    _sign("nan", "loss became nan"),
    _sign("nan", "nan detected", r"loss|latent|gradient"),
    _sign("nan", "loss=nan"),
    _sign("nan", "loss: nan"),
    _sign("nan", "not finite", r"loss|gradient"),
    _sign("nan", "non-finite", r"loss|gradient"),
    _sign("nan", "returned nan values"),
    _sign("nan", "no inf checks were recorded"),
    _sign("image", "cannot identify image file"),
    _sign("image", "image file is truncated"),
    _sign("image", "broken data stream"),
    _sign("image", "decompressionbomberror"),
    _sign("image", "moov atom not found"),
    _sign("image", "invalid data found when processing input"),
    _sign("weights", "while deserializing header"),
    _sign("weights", "headertoolarge"),
    _sign("weights", "incomplete metadata, file not fully covered"),
    _sign("weights", "pytorchstreamreader failed"),
    _sign("weights", "unpicklingerror"),
    _sign("weights", "unexpected eof, expected"),
    _sign("other_weights", "in loading state_dict for"),
    _sign("other_weights", "size mismatch for"),
    _sign("cache", "not correctly cached"),
    _sign("cache", "cache file", r"(?:not found|missing|does not exist|no such|could not find)"),
    _sign("encoding", "unicodedecodeerror"),
    _sign("install", "cannot open shared object file"),
    _sign("install", "error loading", r"\.dll\b"),
    _sign("install", "[winerror 1114]"),
    _sign("install", "operator torchvision::"),
    _sign("install", "cannot find a working triton"),
    _sign("install", "failed to find c compiler"),
    _sign("install", "cannot import name"),
    _sign("install", "cuda setup failed"),
    *_statuses("install", "3221225781 -1073741515 3221225785 -1073741511 3221225794 -1073741502", ""),
    _sign("missing", "filenotfounderror"),
    _sign("missing", "no such file or directory"),
    _sign("missing", "no such folder"),
    _sign("missing", "[winerror 3]"),
    _sign("missing", "can't load tokenizer for"),
    _sign("permission", "permissionerror"),
    _sign("permission", "permission denied"),
    _sign("permission", "read-only file system"),
    _sign("empty", "no images found"),
    _sign("empty", "no data found"),
    _sign("empty", "dataset is empty"),
    _sign("empty", "num_samples should be a positive"),
    _sign("config", "keyerror", r"^\s*(?:\w+\.)*keyerror:"),
    _sign("config", "validationerror", r"validationerrors?\b"),
    _sign("config", "scannererror"),
    _sign("config", "parsererror", r"yaml|parsererror:"),
    _sign("config", "jsondecodeerror"),
    _sign("config", "tomldecodeerror"),
    _sign("config", "unrecognized arguments"),
    _sign("config", "unrecognized cachingallocator option"),
    _sign("config", "unexpected keyword argument"),
    _sign("config", "unknown key; did you mean"),
    _sign("config", "is not supported yet", r"^plafond: "),
    _sign("install", "modulenotfounderror"),
    _sign("install", "importerror", r"importerror:"),
    _sign("install", "dll load failed"),
    _sign("install", "undefined symbol"),
    _sign("database", "database is locked"),
    _sign("processes", "address already in use"),
    _sign("processes", "collective operation timeout"),
    _sign("processes", "distnetworkerror"),
    _sign("processes", "brokenpipeerror"),
    _sign("processes", "connectionreseterror"),
    _sign("stopped", "keyboardinterrupt"),
    _sign("stopped", "job stopped", r"job stopped(?: by user)?\s*$"),
    _sign("stopped", "got signal:", r"got signal: (?:1|2|15)\b"),
    _sign("stopped", "signals.sigint"),
    _sign("stopped", "signals.sigterm: 15"),
    _sign("stopped", "terminated", r"^\s*(?:[\w./-]+:\s*line \d+:\s*\d+\s+)?terminated\b"),
    _sign("stopped", "due to time limit"),
    *_statuses("stopped", "143 -15 130"),
    *_statuses("stopped", "3221225786 -1073741510", ""),
)
"""What is not a matter of memory, by kind; of two on one line, the upper one."""


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
    if sign.pattern is None:
        return True
    return any(sign.pattern.search(text) for text in (line.text, line.body))


_MENTIONS = re.compile(
    r"(?:\b(?:avoid\w*|prevent\w*|if|case of|when|gets?|getting|hit|hitting|see|fix\w*|against|causes?|for|an?) "
    r"(?:you )?(?:run\w* )?|^\s*(?:#|//|--) .{0,80})"
    r"[\"'(]?(?:(?:cuda|hip|gpu) )?(?:error: )?(?:out[ -]of[ -]memory|oom)\b"
    r"|out of memory(?: \w*errors?\b(?!:)| issues?| problems?|\?)",
    re.IGNORECASE,
)


def only_mentions(hit: Hit) -> bool:
    """Whether a line speaks of running out of memory, as tips and comments do, instead of reporting it."""
    return (
        hit.kind in ("device", "bare")
        and "allocate" not in hit.line.text
        and bool(_MENTIONS.search(hit.line.text))
    )

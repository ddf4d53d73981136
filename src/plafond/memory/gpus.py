"""The catalogue of GPUs, sizes as users write them, and the ceiling that follows from either.

Nothing here looks at a real device; whoever has one measures it instead. Sizes are bytes, rates are bytes or
operations per second.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Literal

from plafond.errors import UsageError
from plafond.language.said import N_, ExactSize, Said, Value

KIB = 1024
MIB = 1024**2
GIB = 1024**3

CONTEXT_BYTES = 6 * GIB // 10
"""What a CUDA process takes beside its allocator (context, kernels), where it has not been measured. Published
figures run from 0.29 GiB (pytorch PR 86509, lazy loading) to 0.4 GiB, and grow as kernels are first used."""

DISPLAY_BYTES = GIB // 2
"""What a desktop on the same card takes: 0.3 to 1 GiB in published nvidia-smi outputs on Linux, more on Windows."""

_UNITS = {"": 1, "b": 1, "k": KIB, "kb": KIB, "kib": KIB, "m": MIB, "mb": MIB, "mib": MIB}
_UNITS |= {"g": GIB, "gb": GIB, "gib": GIB, "t": 1024 * GIB, "tb": 1024 * GIB, "tib": 1024 * GIB}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One entry of the catalogue (``assets/gpus.json``, whose notes give the sources).

    Attributes:
        name: as plafond writes it.
        aliases: other names it is found by.
        marketed_gb: the size it is sold with.
        driver_bytes: the total that nvidia-smi or rocm-smi shows.
        usable_bytes: the total that CUDA gives a process on Linux.
        usable_from: ``read`` in a published out-of-memory message, or ``derived`` from `driver_bytes`.
        compute_capability: ``(major, minor)``; None on AMD.
        bandwidth: device memory, bytes per second.
        flops: dense bf16 tensor operations per second (fp16 where there is no bf16), from the data sheet.
        link: from pinned host memory, bytes per second; an estimate.
        display: whether the card may drive a desktop.
    """

    name: str
    aliases: tuple[str, ...]
    marketed_gb: int
    driver_bytes: int
    usable_bytes: int
    usable_from: Literal["read", "derived"]
    compute_capability: tuple[int, int] | None
    bandwidth: float
    flops: float
    link: float
    display: bool


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What this process may take on the device.

    Attributes:
        bytes: the limit of the device bytes, that is of reserved memory and overhead together.
        overhead_bytes: the part of `bytes` that the allocator cannot have.
        description: where the limit comes from, for people.
        gpu: the card, when it is known.
    """

    bytes: int
    overhead_bytes: int
    description: Said
    gpu: Gpu | None

    @property
    def reserved_bytes(self) -> int:
        """The most that the allocator may reserve."""
        return max(0, self.bytes - self.overhead_bytes)


@cache
def gpus() -> tuple[Gpu, ...]:
    """The catalogue, in the order of the file."""
    text = files("plafond.assets").joinpath("gpus.json").read_text(encoding="utf-8")
    return tuple(
        Gpu(
            name=entry["name"],
            aliases=tuple(entry.get("aliases", ())),
            marketed_gb=entry["gb"],
            driver_bytes=entry["driver_mib"] * MIB,
            usable_bytes=entry["usable_mib"] * MIB,
            usable_from=entry["usable_from"],
            compute_capability=_capability(entry["compute_capability"]),
            bandwidth=entry["bandwidth"] * 1e9,
            flops=entry["tflops"] * 1e12,
            link=entry["link"] * 1e9,
            display=entry["display"],
        )
        for entry in json.loads(text)["gpus"]
    )


def find_gpu(name: str) -> Gpu:
    """The card a user means: case, spaces and the maker's words do not matter (``rtx4090``, ``NVIDIA L4``).

    Raises:
        UsageError: no card has that name, or cards of several sizes have it.
    """
    wanted = _key(name)
    by_key = _by_key()
    if wanted in by_key:
        return by_key[wanted]
    for digits in (1, 2, 3):  # "RTX 4090 24GB": the size is said though it need not be
        size = wanted[-digits - 2 : -2]
        gpu = by_key.get(wanted[: -digits - 2])
        if wanted.endswith("gb") and size.isdecimal() and gpu is not None:
            if gpu.marketed_gb == int(size):
                return gpu
            raise UsageError(
                N_("no GPU named {name}: {gpu} has {size} GB"),
                name=repr(name),
                gpu=gpu.name,
                size=gpu.marketed_gb,
            )
    sizes = {by_key[key].name for key in by_key if wanted and re.fullmatch(re.escape(wanted) + r"\d+gb", key)}
    if sizes:
        *others, last = sorted(sizes, key=lambda each: by_key[_key(each)].marketed_gb)
        if not others:
            return by_key[_key(last)]
        raise UsageError(
            N_("{name} is sold in several sizes; say {others} or {last}"),
            name=repr(name),
            others=tuple(others),
            last=last,
        )
    near = _nearest(wanted)
    if near is None:
        raise UsageError(
            N_("no GPU named {name}; `plafond gpus` lists those that are known"), name=repr(name)
        )
    raise UsageError(N_("no GPU named {name}; did you mean {near}?"), name=repr(name), near=near.name)


def catalogued(name: str) -> Gpu | None:
    """The card that a driver calls so; None when the catalogue has no such card."""
    try:
        return find_gpu(name)
    except UsageError:
        return None


def parse_size(text: str) -> int:
    """The bytes of a size as users write it: ``24GB``, ``7.5 GiB``, ``600MB``, ``25769803776``.

    A GB is read as 1024³ bytes, as in the names of graphics cards, and so is a GiB.

    Raises:
        UsageError: it is no size, or not a positive one.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        hint = text.replace(",", ".")
        if hint != text and re.fullmatch(r"\s*\d+\.\d+\s*[a-zA-Z]*\s*", hint):
            raise UsageError(
                N_("{size} is no size; did you mean {near}?"), size=repr(text), near=hint.strip()
            )
        raise UsageError(
            N_("{size} is no size; write it as 24GB, 7.5GB, 600MB or a number of bytes"), size=repr(text)
        )
    size = int(Fraction(match[1].rstrip(".")) * unit)
    if size < MIB:
        if match[2] or not size:
            raise UsageError(N_("{size} is less than 1 MB"), size=repr(text))
        near = f"{match[1].rstrip('.')}GB"
        raise UsageError(N_("{size} is less than 1 MB; did you mean {near}?"), size=repr(text), near=near)
    return size


def gib(size: int) -> str:
    """Bytes as GiB (2³⁰), or MiB (2²⁰) below a tenth of one."""
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / MIB:.1f} MiB"


def context_overhead(measured: int | None = None) -> int:
    """Bytes of the device that a process takes beside its allocator: as measured, or the planning value."""
    return CONTEXT_BYTES if measured is None else measured


def display_reserve(gpu: Gpu | None) -> int:
    """Bytes that a desktop may take on this card; none on cards without outputs."""
    return DISPLAY_BYTES if gpu is not None and gpu.display else 0


def ceiling_for(vram: str | None, gpu: str | None) -> Ceiling:
    """The ceiling of ``--vram SIZE`` and ``--gpu NAME``.

    A size is taken at its word. A card gives the bytes that CUDA shows on it, less a desktop's share where it has
    outputs. With both, the size counts, but never more than the card has.

    Args:
        vram: a size as `parse_size` reads it.
        gpu: a name as `find_gpu` reads it.

    Raises:
        UsageError: one of them cannot be read, neither is given, or nothing would be left.
    """
    card = None if gpu is None else find_gpu(gpu)
    values: dict[str, Value] = {} if card is None else {"gpu": card.name}
    if vram is not None:
        size = parse_size(vram)
        description = Said(N_("{size} as asked for"), {"size": ExactSize(size)})
        if card is not None and size > card.usable_bytes:
            size = card.usable_bytes
            values["size"] = ExactSize(size)
            description = Said(N_("{size}, all that {gpu} has for a process"), values)
        elif card is not None:
            values["size"] = ExactSize(size)
            description = Said(N_("{size} as asked for on {gpu}"), values)
    elif card is not None:
        size = card.usable_bytes - display_reserve(card)
        values["size"] = ExactSize(card.usable_bytes)
        description = Said(N_("{gpu}: {size} as CUDA shows it"), values)
        if display_reserve(card):
            values["desktop"] = ExactSize(display_reserve(card))
            description = Said(N_("{gpu}: {size} as CUDA shows it, less {desktop} for a desktop"), values)
    else:
        raise UsageError(N_('say which ceiling is meant: --vram 24GB or --gpu "RTX 4090"'))
    return Ceiling(size, context_overhead(), description, card)


def _capability(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    major, minor = text.split(".")
    return int(major), int(minor)


def _key(name: str) -> str:
    """A name without what users leave out or write differently."""
    words = re.sub(r"[^a-z0-9]", "", name.lower()).replace("mobile", "laptop")
    words = re.sub(r"nvidia|geforce|tesla|amd|radeon|instinct|generation|gpu", "", words)
    words = re.sub(r"(?<=gb)hbm\d?e?$", "", words)
    return re.sub(r"^(rtx|gtx|rx)(?=a?\d|pro)", "", words)


@cache
def _by_key() -> dict[str, Gpu]:
    return {_key(name): gpu for gpu in gpus() for name in (gpu.name, *gpu.aliases)}


def _nearest(wanted: str) -> Gpu | None:
    """The card whose name is most like one that no card has."""
    by_key = _by_key()
    close = get_close_matches(wanted, by_key, n=10, cutoff=0.5)
    if not close:
        return None
    # A number that is right outweighs letters that are alike: "4090ti" is nearer to "4090" than to "4080ti".
    numbers = re.findall(r"\d+", wanted)
    close.sort(key=lambda key: not any(number in key for number in numbers))
    return by_key[close[0]]

"""What a log tells of the job and the machine: only what is needed to leave out advice that is already followed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from plafond.advice.log import Line, Log

HEAD = 1_000_000
"""Bytes from the start of a log in which settings and versions are looked for."""

FEWEST = 5
"""Frames of the shortest video that a shape shows; fewer are a picture's channels."""

_ON = r"['\"]?\s*[:=]\s*['\"]?true\b"
_OFF = r"['\"]?\s*[:=]\s*['\"]?false\b"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a job; None is not known.

    Args:
        checkpointing: gradient checkpointing is on.
        batch: pictures or videos in a batch.
        vae_batch: pictures that are encoded together.
        cached_text: captions are encoded once.
        quantized: weights are quantised.
        frames: the most frames of a sample; above 1 it is video.
        frames_line: where that stands.
        eight_bit: the optimizer keeps bytes.
        expandable: the allocator's segments grow already, or cannot on this system.
        system: ``windows``, ``wsl`` or ``linux``.
        versions: releases by package.
    """

    checkpointing: bool | None = None
    batch: int | None = None
    vae_batch: int | None = None
    cached_text: bool | None = None
    quantized: bool | None = None
    frames: int | None = None
    frames_line: Line | None = None
    eight_bit: bool | None = None
    expandable: bool | None = None
    system: str | None = None
    versions: tuple[tuple[str, str], ...] = ()


def facts(log: Log) -> Facts:
    """Read settings, system and versions from a log."""
    text = log.searched[:HEAD].decode("latin-1")  # one character for each byte
    frames, line = _frames(log, text)
    return Facts(
        checkpointing=_switch(
            text,
            r"(?:gradient|activation)_checkpointing",
            r"--gradient_checkpointing\b|gradient checkpointing enabled|"
            r"_checkpointing['\"]?\s*[:=]\s*['\"](?:on|cpu_off|unsloth)",
        ),
        batch=_number(text, _BATCH),
        vae_batch=_number(text, _VAE_BATCH),
        cached_text=_switch(
            text,
            r"(?:cache_text_embeddings|cache_text_encoder_outputs\w*)",
            r"--cache_text_encoder_outputs\b|caching text embed|computing text embed|musubi|hv_train_network",
        ),
        quantized=_switch(text, r"quantize", r"--fp8_base\b|--base_model_precision[ =](?!no)"),
        frames=frames,
        frames_line=line,
        eight_bit=True if re.search(_EIGHT_BIT, text) else None,
        expandable=True if _EXPANDABLE.search(text) else None,
        system=_system(text),
        versions=tuple((match[1], match[2]) for match in _VERSION.finditer(text)),
    )


_BATCH = re.compile(
    r"(?:\btrain_batch_size|(?<![\w])batch_size|micro_batch_size_per_gpu|batch size per device[^:=\n]{0,60}|"
    r"instantaneous batch size per device)['\"]?\s*[:=, ]\s*['\"]?(\d{1,3})\b"
)
_EIGHT_BIT = re.compile(
    r"\b\w*(?:adam|lion|prodigy)\w*8bit\b|8-bit adam|optimizer\w*['\"]?\s*[:=]?\s*['\"]?\w*8bit"
)
_VAE_BATCH = re.compile(r"vae_(?:cache_)?batch_size['\"]?\s*[:= ]\s*(\d{1,3})\b")
_FRAMES = re.compile(
    r"(?:num_frames|target_frames|frame_buckets|video_length|max_frames)['\"]?\s*[:= ]\s*\[?((?:\d{1,4}[, ]*)+)"
    r"|\(\d{2,4}, \d{2,4}, (\d{1,4})\)|\b\d{2,4}x\d{2,4}x(\d{1,4})f?\b|\b(\d{2,4})[ -]frames?\b"
)
_EXPANDABLE = re.compile(
    r"(?<!setting )(?<!set )(?<!try )pytorch_(?:cuda_|hip_)?alloc_conf['\"]?\s*[:=]\s*['\"]?[\w:,]*"
    r"expandable_segments:true|expandable_segments not supported|expandable_segments: memory mapping"
)
_VERSION = re.compile(
    r"\b(torch|pytorch|diffusers|bitsandbytes|onetrainer|sd-scripts|musubi-tuner|simpletuner|ai-toolkit)"
    r"(?: version)?['\"]?\s*(?:==|[:=]| )\s*['\"]?v?(\d+\.\d+(?:\.\d+)?)"
)


def _switch(text: str, name: str, option: str) -> bool | None:
    found = None
    for match in re.finditer(rf"{name}(?:(?P<on>{_ON})|(?P<off>{_OFF}))", text):
        found = match["on"] is not None
    return True if found is None and re.search(option, text) else found


def _number(text: str, pattern: re.Pattern[str]) -> int | None:
    numbers = [int(match[1]) for match in pattern.finditer(text)]
    return max(numbers) if numbers else None


def _frames(log: Log, text: str) -> tuple[int | None, Line | None]:
    most, line = 0, None
    if "is_image_dataset: true" in text and "is_image_dataset: false" not in text:
        return None, None
    for match in _FRAMES.finditer(text):
        count = max(int(number) for number in re.findall(r"\d+", next(filter(None, match.groups()))))
        if match[1] is None and count < FEWEST:
            continue
        if count > most:
            most, line = count, log.line(log.place(match.start()))
    return most or None, line


def _system(text: str) -> str | None:
    if re.search(r"\bwsl2?\b|/mnt/[a-z]/", text):
        return "wsl"
    if re.search(r"\b[a-z]:[\\/](?!/)|\bwindows\b|\bwin32\b|3221225477", text):
        return "windows"
    return "linux" if re.search(r"(?<![\w.:/-])/[\w.-]+/|\blinux\b", text) else None


_AI_TOOLKIT = (b"ai-toolkit", b"ostris", b"extensions_built_in", b"sdtrainer")


def is_ai_toolkits(log: bytes) -> bool:
    """Whether a log was written by AI Toolkit: its folders and classes stand in what it prints."""
    lowered = log.lower()
    return b"plafond" not in lowered and any(mark in lowered for mark in _AI_TOOLKIT)

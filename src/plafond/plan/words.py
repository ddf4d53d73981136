"""What phases, moments and changes are called, and how a plan says no, which the doctor has to know, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plafond.language.said import N_, Said, Value

if TYPE_CHECKING:
    from plafond.data.buckets import Bucket

NAMES = {
    "cache_latents": N_("cache latents"),
    "encode_text": N_("encode text"),
    "load": N_("load"),
    "train": N_("train"),
    "preview": N_("preview"),
    "save": N_("save"),
}
"""Phases of a run."""

STAGES = {
    "loading": N_("loading"),
    "loading the VAE": N_("loading the VAE"),
    "loading the text encoders": N_("loading the text encoders"),
    "encoding text": N_("encoding text"),
    "encoding pictures": N_("encoding pictures"),
    "forward": N_("forward"),
    "backward": N_("backward"),
    "update": N_("update"),
    "preview": N_("preview"),
    "saving": N_("saving"),
}
"""What the ledger says is going on."""

NO = N_("Does not fit: {place} needs {needs}, {over} over; {fails}.")


def place(phase: str, bucket: Bucket | None) -> Said:
    """A phase, with the bucket that it is at where it has one."""
    name = Said(NAMES[phase])
    return Said(N_("{phase} at {bucket}"), {"phase": name, "bucket": str(bucket)}) if bucket else name


def moment(text: str) -> Value:
    """A moment of a trace, as ``backward of transformer_blocks.12``."""
    stage, of, block = text.partition(" of ")
    if stage not in STAGES:
        return text
    said = Said(STAGES[stage])
    return Said(N_("{stage} of {block}"), {"stage": said, "block": block}) if of else said


def shown(change: Mapping[str, tuple[Any, Any]]) -> str:
    """Settings before and after; one that stays is only written out."""
    return ", ".join(
        f"{key}: {_value(new)}" if old == new else f"{key}: {_value(old)} → {_value(new)}"
        for key, (old, new) in change.items()
    )


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""Which remedies help against which cause, in the order in which a careful person would try them."""

from __future__ import annotations

from plafond.advice.diagnosis import Advice
from plafond.advice.facts import Facts
from plafond.advice.sentences import WHY, WHY_SHARED, WHY_SMALLER_VAE_BATCH
from plafond.language.said import Said

PHASES: dict[str | None, tuple[str, ...]] = {
    "load": ("cache_text_unload_te", "stream_blocks", "quantize", "quantize_te"),
    "quantize": ("stream_blocks", "cache_text_unload_te"),
    "encode_text": ("cache_text_unload_te", "stream_blocks", "quantize_te"),
    "cache_latents": ("tiled_vae", "smaller_batch", "expandable_segments", "drop_top_bucket"),
    "train": (
        "checkpointing_on",
        "smaller_batch",
        "cache_text_unload_te",
        "expandable_segments",
        "stream_blocks",
        "quantize",
        "eight_bit_optimizer",
        "drop_top_bucket",
        "smaller_rank",
    ),
    "preview": ("cheaper_preview", "tiled_vae", "cache_text_unload_te", "stream_blocks", "quantize"),
    "save": ("expandable_segments", "stream_blocks", "smaller_rank"),
    None: (
        "checkpointing_on",
        "smaller_batch",
        "cache_text_unload_te",
        "expandable_segments",
        "stream_blocks",
    ),
}
"""Remedies in a job by the phase that died: those that leave quality untouched first."""

_BUCKET_PEAK = (
    "checkpointing_on",
    "smaller_batch",
    "expandable_segments",
    "drop_top_bucket",
    "stream_blocks",
    "quantize",
)
_HOST = ("more_host_ram", "quantize", "quantize_te")


def remedies(cause: str, phase: str | None, facts: Facts, *, kind: str = "") -> tuple[Advice, ...]:
    """Remedies for a cause, without those that the log shows to be in place.

    Args:
        cause: the diagnosis.
        phase: where it died.
        facts: what the log tells of the job.
        kind: which shape of a cause, where causes have several.
    """
    match cause:
        case "not_memory":
            names: tuple[str, ...] = ("not_memory",)
        case "unclear":
            names = ()
        case "host_ram":
            names = _HOST if phase in ("load", "quantize") else ("more_host_ram",)
        case "spill":
            names = ("cap_below_spill", *PHASES["train"])
        case "other_process":
            names = ("free_other_process", *PHASES[phase])
        case "does_not_fit" if phase == "load" and kind == "transformer":
            names = ("stream_blocks", *PHASES["load"])  # the text encoder is not there yet
        case "fragmentation":
            names = ("expandable_segments", *PHASES[phase])
        case "bucket_peak":
            names = _BUCKET_PEAK
        case "video_frames":
            names = _frames_first(phase, facts)
        case _:
            names = PHASES[phase]
    kept = (name for name in dict.fromkeys(names) if not _done(name, phase, facts))
    return tuple(Advice(id=name, why=Said(_why(name, phase, kind))) for name in kept)


def _frames_first(phase: str | None, facts: Facts) -> tuple[str, ...]:
    """Frames come before the rest, but after what costs no quality and is known to be missing."""
    first = {"cache_latents": ("tiled_vae",), "preview": ("cheaper_preview", "tiled_vae")}.get(
        phase or "", ()
    )
    if phase == "train" and facts.checkpointing is False:
        first = ("checkpointing_on",)
    return (*first, "fewer_frames", *PHASES[phase])


def _done(name: str, phase: str | None, facts: Facts) -> bool:
    """Whether the log shows that a remedy is in place already."""
    match name:
        case "checkpointing_on":
            return facts.checkpointing is True
        case "smaller_batch":
            return facts.vae_batch in (None, 1) if phase == "cache_latents" else facts.batch == 1
        case "cache_text_unload_te":
            # a cached encoder is still loaded where captions are encoded in the same run
            return facts.cached_text is True and phase == "train"
        case "expandable_segments":
            return facts.expandable is True
        case "eight_bit_optimizer":
            return facts.eight_bit is True
    return False


def _why(name: str, phase: str | None, kind: str) -> str:
    if name == "more_host_ram" and kind == "shared_memory":
        return WHY_SHARED
    if name == "smaller_batch" and phase == "cache_latents":
        return WHY_SMALLER_VAE_BATCH
    return WHY[name]

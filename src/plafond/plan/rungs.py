"""The ladder: what can be changed about a job to take less memory, in the order a careful person would try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from plafond.job.schema import ProcessConfig
from plafond.language.said import N_, Said
from plafond.plan.changes import Values

PREVIEW_SIDES = (768, 512)
"""Longest sides of cheaper previews, before there are none."""

SMALLEST_RANK = 4

EIGHT_BIT = {"adamw": "adamw8bit", "adam": "adam8bit", "lion": "lion8bit"}

FORMATS = (("qfloat8", 8, N_("eight bits")), ("uint4", 4, N_("four bits")))
"""Number formats for frozen weights, by the names that AI Toolkit knows, with their width."""

WIDTHS = {"float8": 8, "int8": 8, "nf4": 4, **{f"uint{bits}": bits for bits in range(2, 9)}}
"""Bits of the formats that weights are stored in."""

AS_MUCH_AS_FITS = Said(N_("blocks keep as much as there is room for, and recompute the rest"))

MODEL_IS_THERE = frozenset({"load", "train", "preview", "save"})
"""Phases in which the model that is trained is on the device."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """Settings to change together.

    Args:
        values: new values by dotted key.
        why: what they do, in one sentence.
    """

    values: Values
    why: Said


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One remedy.

    Args:
        id: its name in every report.
        phases: the phases whose memory it changes.
        options: from the mildest to the strongest.
        quality: ``same`` or ``may_change``.
    """

    id: str
    phases: frozenset[str]
    options: tuple[Option, ...]
    quality: str = "same"


def ladder(process: ProcessConfig) -> Iterator[Rung]:
    """The remedies that this process has not taken yet."""
    for rung in (
        _checkpointing(process),
        _leaner_plan(process),
        _smaller_batch(process),
        _text(process),
        _tiles(process),
        _previews(process),
        _streaming(process),
        _quantize(process),
        _quantize_text(process),
        _optimizer(process),
        _top_bucket(process),
        _rank(process),
    ):
        if rung.options:
            yield rung


def _checkpointing(process: ProcessConfig) -> Rung:
    asked = process.train.gradient_checkpointing is False and process.plafond.activation_plan is None
    option = Option(
        values={"train.gradient_checkpointing": True},
        why=Said(N_("blocks are recomputed in the backward pass instead of being kept")),
    )
    return Rung(id="checkpointing_on", phases=frozenset({"train"}), options=(option,) if asked else ())


def _leaner_plan(process: ProcessConfig) -> Rung:
    options = []
    pinned = process.plafond.activation_plan
    if pinned is None and process.train.gradient_checkpointing is False:
        options.append(Option(values={"train.gradient_checkpointing": "auto"}, why=AS_MUCH_AS_FITS))
    if pinned != "offload":
        why = Said(N_("blocks keep only their inputs, and these in main memory"))
        options.append(Option(values={"plafond.activation_plan": "offload"}, why=why))
    return Rung(id="leaner_plan", phases=frozenset({"train"}), options=tuple(options))


def _smaller_batch(process: ProcessConfig) -> Rung:
    size, count = process.train.batch_size, process.train.gradient_accumulation
    options = []
    if not any(data.batch_size for data in process.datasets):
        for part in (part for part in range(size - 1, 0, -1) if size % part == 0):
            micros = count * size // part
            values = {"train.batch_size": part, "train.gradient_accumulation": micros}
            options.append(Option(values=values, why=_at_a_time(part, micros)))
    return Rung(id="smaller_batch", phases=frozenset({"train"}), options=tuple(options))


def _at_a_time(pictures: int, batches: int) -> Said:
    values = {"pictures": pictures, "batches": batches}
    if pictures == 1:
        text = N_("one picture at a time; {batches} batches make one step of as many pictures as before")
    else:
        text = N_(
            "{pictures} pictures at a time; {batches} batches make one step of as many pictures as before"
        )
    return Said(text, values)


def _text(process: ProcessConfig) -> Rung:
    option = Option(
        values={"train.cache_text_embeddings": True},
        why=Said(N_("captions are encoded once and the text encoder leaves the device")),
    )
    asked = process.encodes_live and not process.train.train_text_encoder
    return Rung(id="cache_text_unload_te", phases=MODEL_IS_THERE, options=(option,) if asked else ())


def _drawn(process: ProcessConfig) -> bool:
    return bool(process.sample.samples) and not process.train.disable_sampling


def _tiles(process: ProcessConfig) -> Rung:
    option = Option(
        values={"plafond.tiled_previews": True},
        why=Said(N_("previews are decoded in overlapping tiles; training is not touched")),
    )
    asked = _drawn(process) and not process.plafond.tiled_previews
    return Rung(id="tiled_vae", phases=frozenset({"preview"}), options=(option,) if asked else ())


def _previews(process: ProcessConfig) -> Rung:
    sample, options = process.sample, []
    if _drawn(process):
        sizes = [(item.width, item.height) for item in sample.samples]
        for side in PREVIEW_SIDES:
            if max(map(max, sizes)) <= side:
                continue
            values: dict[str, Any] = {}
            for name in ("width", "height"):
                usual = getattr(sample, name)
                if usual > side:
                    values[f"sample.{name}"] = side
                for place, item in enumerate(sample.samples):
                    own = getattr(item, name)
                    if side < own != usual:
                        values[f"sample.samples.{place}.{name}"] = side
            options.append(Option(values=values, why=Said(N_("smaller previews; training is not touched"))))
        why = Said(N_("no previews; training is not touched"))
        options.append(Option(values={"train.disable_sampling": True}, why=why))
    return Rung(id="cheaper_preview", phases=frozenset({"preview"}), options=tuple(options))


def _streaming(process: ProcessConfig) -> Rung:
    model = process.model
    values: dict[str, Any] = {}
    if process.network is not None:
        if not model.layer_offloading:
            values["model.layer_offloading"] = True
        if model.layer_offloading_transformer_percent < 1:
            values["model.layer_offloading_transformer_percent"] = 1.0
        if model.layer_offloading_text_encoder_percent < 1:
            values["model.layer_offloading_text_encoder_percent"] = 1.0
    why = Said(N_("frozen blocks stay in main memory and visit the device in turn"))
    option = Option(values=values, why=why)
    phases = MODEL_IS_THERE | {"encode_text"}
    return Rung(id="stream_blocks", phases=phases, options=(option,) if values else ())


def _quantize(process: ProcessConfig) -> Rung:
    model, options = process.model, []
    have = WIDTHS.get(model.weight_format or "", 16)
    for name, width, said in FORMATS:
        if process.network is None or width >= have:
            continue
        values: dict[str, Any] = {} if model.quantize else {"model.quantize": True}
        if model.qtype != name:
            values["model.qtype"] = name
        if not model.quantize and not model.quantize_te:
            # left out, it would follow
            values["model.quantize_te"] = False
        why = Said(N_("frozen weights of the blocks take {width} each"), {"width": Said(said)})
        options.append(Option(values=values, why=why))
    return Rung(id="quantize", phases=MODEL_IS_THERE, options=tuple(options), quality="may_change")


def _quantize_text(process: ProcessConfig) -> Rung:
    model, options = process.model, []
    have = WIDTHS.get(model.text_format or "", 16)
    for name, width, said in FORMATS:
        if width >= have:
            continue
        values: dict[str, Any] = {} if model.quantize_te else {"model.quantize_te": True}
        if model.qtype_te != name:
            values["model.qtype_te"] = name
        why = Said(N_("weights of the text encoders take {width} each"), {"width": Said(said)})
        options.append(Option(values=values, why=why))
    phases = frozenset({"encode_text"}) | (MODEL_IS_THERE if process.encodes_live else frozenset())
    return Rung(id="quantize_te", phases=phases, options=tuple(options), quality="may_change")


def _optimizer(process: ProcessConfig) -> Rung:
    name = EIGHT_BIT.get(process.train.optimizer)
    why = Said(N_("the optimizer's moments take one byte each"))
    option = Option(values={"train.optimizer": name}, why=why)
    return Rung(
        id="eight_bit_optimizer",
        phases=MODEL_IS_THERE - {"load"},
        options=(option,) if name else (),
        quality="may_change",
    )


def _top_bucket(process: ProcessConfig) -> Rung:
    """Each option drops one resolution more; every data set keeps its smallest."""
    options = []
    sizes = sorted({size for data in process.datasets for size in data.resolution}, reverse=True)
    floor = max((min(data.resolution) for data in process.datasets), default=0)
    for top in (size for size in sizes if size > floor):
        values = {
            f"datasets.{place}.resolution": [size for size in data.resolution if size < top]
            for place, data in enumerate(process.datasets)
            if max(data.resolution) >= top
        }
        why = Said(N_("nothing is trained at {size} any more"), {"size": top})
        options.append(Option(values=values, why=why))
    phases = frozenset({"train", "cache_latents"})
    return Rung(id="drop_top_bucket", phases=phases, options=tuple(options), quality="may_change")


def _rank(process: ProcessConfig) -> Rung:
    options = []
    if process.network is not None and process.network.linear > SMALLEST_RANK:
        rank = process.network.linear // 2
        why = Said(N_("half the rank halves the LoRA, its gradients and the optimizer's state"))
        options.append(Option(values={"network.linear": rank}, why=why))
    return Rung(id="smaller_rank", phases=MODEL_IS_THERE, options=tuple(options), quality="may_change")

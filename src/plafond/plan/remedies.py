"""What to change when a job does not fit: a first set, in the order in which a careful person would try.

Each remedy is one change to the job that is planned again, so its saving is as true as the plan itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from plafond.job.schema import ProcessConfig
from plafond.plan.forecast import Forecaster, Plan
from plafond.plan.shapes import shapes_of

Change = dict[str, tuple[Any, Any]]

SMALL_PREVIEW = 512


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change, what it saves and what it costs.

    Args:
        id: its name in every report.
        change: dotted keys with the value before and after.
        saves_bytes: device bytes off the job's peak.
        peak_bytes: the peak that is left.
        fits: whether the job then fits.
        time_ratio: time of a training step per picture, relative to now.
        quality: ``same`` or ``may_change``.
        why: one sentence.
    """

    id: str
    change: Change
    saves_bytes: int
    peak_bytes: int
    fits: bool
    time_ratio: float
    quality: str
    why: str


@dataclass(frozen=True, kw_only=True)
class _Idea:
    id: str
    change: Change
    process: ProcessConfig
    quality: str
    why: str


def remedies(plan: Plan) -> tuple[Remedy, ...]:
    """Every change of the first set that makes the job's peak smaller."""
    return tuple(each_remedy(plan))


def each_remedy(plan: Plan) -> Iterator[Remedy]:
    """The same one by one: each takes a plan of its own."""
    for idea in _ideas(plan.process):
        again = Forecaster(idea.process, plan.ceiling, virtual=plan.virtual)
        shapes = shapes_of(idea.process, again.family)
        other = again.plan(shapes, largest_only=True)
        saved = plan.peak.device_bytes - other.peak.device_bytes
        if saved <= 0:
            continue
        yield Remedy(
            id=idea.id,
            change=idea.change,
            saves_bytes=saved,
            peak_bytes=other.peak.device_bytes,
            fits=other.peak.device_bytes <= plan.ceiling.bytes,
            time_ratio=round(_time(other) / _time(plan), 3),
            quality=idea.quality,
            why=idea.why,
        )


def _time(plan: Plan) -> float:
    """Work of a training step per pixel: fewer pixels are not a slower trainer."""
    phase = next(phase for phase in plan.phases if phase.phase == "train")
    assert phase.bucket is not None
    return plan.flops_per_picture / phase.bucket.pixels


def _ideas(process: ProcessConfig) -> Iterator[_Idea]:
    train = process.train
    if train.gradient_checkpointing is False:
        yield _train(
            process,
            "checkpointing_on",
            {"gradient_checkpointing": True},
            "same",
            "blocks are recomputed in the backward pass instead of being kept",
        )
    if train.batch_size > 1 and not any(data.batch_size for data in process.datasets):
        count = train.gradient_accumulation * train.batch_size
        yield _train(
            process,
            "smaller_batch",
            {"batch_size": 1, "gradient_accumulation": count},
            "same",
            f"one picture at a time; {count} of them still make one step",
        )
    cached = train.cache_text_embeddings or all(data.cache_text_embeddings for data in process.datasets)
    if not cached and not train.unload_text_encoder:
        yield _train(
            process,
            "cache_text_unload_te",
            {"cache_text_embeddings": True},
            "same",
            "captions are encoded once and the text encoder leaves the device",
        )
    yield from _previews(process)
    if train.optimizer in ("adamw", "adam", "lion"):
        yield _train(
            process,
            "eight_bit_optimizer",
            {"optimizer": f"{train.optimizer}8bit"},
            "may_change",
            "the optimizer's moments take one byte each",
        )
    yield from _top_bucket(process)
    if process.network is not None and process.network.linear > 4:
        rank = process.network.linear // 2
        network = process.network.model_copy(update={"linear": rank})
        yield _Idea(
            id="smaller_rank",
            change={"network.linear": (process.network.linear, rank)},
            process=process.model_copy(update={"network": network}),
            quality="may_change",
            why="half the rank halves the LoRA, its gradients and the optimizer's state",
        )


def _train(process: ProcessConfig, name: str, values: dict[str, Any], quality: str, why: str) -> _Idea:
    change = {f"train.{key}": (getattr(process.train, key), value) for key, value in values.items()}
    train = process.train.model_copy(update=values)
    datasets = process.datasets
    if "cache_text_embeddings" in values:
        datasets = tuple(data.model_copy(update={"cache_text_embeddings": True}) for data in datasets)
    other = process.model_copy(update={"train": train, "datasets": datasets})
    return _Idea(id=name, change=change, process=other, quality=quality, why=why)


def _previews(process: ProcessConfig) -> Iterator[_Idea]:
    sample = process.sample
    if process.train.disable_sampling or not sample.samples:
        return
    if max(max(item.width, item.height) for item in sample.samples) > SMALL_PREVIEW:
        small = {"width": SMALL_PREVIEW, "height": SMALL_PREVIEW}
        items = tuple(
            item.model_copy(update={side: min(getattr(item, side), SMALL_PREVIEW) for side in small})
            for item in sample.samples
        )
        change = {f"sample.{side}": (getattr(sample, side), SMALL_PREVIEW) for side in small}
        yield _Idea(
            id="cheaper_preview",
            change=change,
            process=process.model_copy(
                update={"sample": sample.model_copy(update={"samples": items, **small})}
            ),
            quality="same",
            why="smaller previews; training is not touched",
        )
        return
    yield _train(
        process, "cheaper_preview", {"disable_sampling": True}, "same", "no previews; training is not touched"
    )


def _top_bucket(process: ProcessConfig) -> Iterator[_Idea]:
    top = max((max(data.resolution) for data in process.datasets), default=0)
    change: Change = {}
    datasets = []
    for index, data in enumerate(process.datasets):
        rest = tuple(resolution for resolution in data.resolution if resolution < top)
        if not rest:
            if top in data.resolution:
                return  # this data set has nothing smaller
            rest = data.resolution
        if rest != data.resolution:
            change[f"datasets.{index}.resolution"] = (list(data.resolution), list(rest))
        datasets.append(data.model_copy(update={"resolution": rest}))
    if change:
        yield _Idea(
            id="drop_top_bucket",
            change=change,
            process=process.model_copy(update={"datasets": tuple(datasets)}),
            quality="may_change",
            why=f"nothing is trained at {top} any more",
        )

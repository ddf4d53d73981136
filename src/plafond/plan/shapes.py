"""Which pictures and batches a job will meet: what its phases are planned for."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from plafond.data.batches import Item, build_items, plan_batches
from plafond.data.buckets import Bucket, bucket_for
from plafond.data.captions import CAPTION_VARIANTS, possible_captions, preserved
from plafond.data.clips import take_frames
from plafond.data.controls import match_controls, match_openings, with_controls
from plafond.data.folder import Scan, scan
from plafond.data.masks import match_masks
from plafond.families._contract import Family
from plafond.job.dataset import DatasetConfig
from plafond.job.schema import ProcessConfig
from plafond.language.said import N_, Said, all_of

WORST_ASPECT = (2, 1)
"""Sides of the long picture that stands in when the data is not at hand."""

ASSUMED_PICTURES = N_("{where}: not here; planned for square and 2:1 pictures of every resolution")
ASSUMED_CLIPS = N_(
    "{where}: not here; planned for square and 2:1 clips of {frames} frames of every resolution"
)

reader: ContextVar[Callable[[DatasetConfig, int], Scan]] = ContextVar("reader", default=scan)
"""Reads a data set; a process that plans again and again may remember what it has read."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """What occurs.

    Args:
        batches: the largest number of items of each bucket's batches, from the largest bucket to the smallest.
        mixed: not all batches have the same shape, so a run tries the largest before its first step.
        assumed: why these shapes were assumed; None when they were read from the data.
        captions: everything that captions can turn out to be; None when the data is not at hand.
        controls: sizes of the largest control images of each bucket; None when the data is not at hand.
    """

    batches: dict[Bucket, int]
    mixed: bool
    assumed: Said | None = None
    captions: tuple[str, ...] | None = None
    controls: dict[Bucket, tuple[Bucket, ...]] | None = None


def shapes_of(process: ProcessConfig, family: Family) -> Shapes:
    """Read the headers of the job's pictures, or assume the usual shapes where a folder is not there."""
    missing = [data for data in process.datasets if not Path(data.folder_path).expanduser().exists()]
    if missing or not process.datasets:
        batches = _assumed(process, family)
        said = _said(tuple(data.folder_path for data in missing), batches)
        return Shapes(batches=batches, mixed=len(batches) > 1, assumed=said)
    read = reader.get()
    scans = [take_frames(read(config, i), family.frames) for i, config in enumerate(process.datasets)]
    scans = [match_openings(match_controls(found, family.controls), family.opened) for found in scans]
    scans = [match_masks(found) for found in scans]
    items = with_controls(build_items(scans, family.divisor), partial(family.control_size, process.model))
    plans = plan_batches(items, process.train.batch_size, process.training_seed)
    shapes = {shape for plan in plans if plan is not None for shape in plan.shapes()}
    found: dict[Bucket, int] = {}
    for shape in shapes:
        found[shape.bucket] = max(found.get(shape.bucket, 0), shape.size)
    controls: dict[Bucket, tuple[Bucket, ...]] = {}
    for item in items:
        known = controls.get(item.bucket, ())
        controls[item.bucket] = max(
            known, item.controls, key=lambda sizes: sum(size.pixels for size in sizes)
        )
    return Shapes(
        batches=_largest_first(found),
        mixed=len(shapes) > 1,
        captions=_captions(process, items),
        controls=controls,
    )


def _captions(process: ProcessConfig, items: list[Item]) -> tuple[str, ...]:
    """Every text that the encoder may be given while training, or enough versions of those that change at each draw."""
    found: dict[str, None] = {}
    alone = process.train.unload_text_encoder and not process.caches_text
    for item in {(item.picture.dataset, item.picture.name): item for item in items}.values():
        trigger = item.config.trigger_word
        captions = (
            [trigger or ""]
            if alone
            else possible_captions(
                [(item.picture, item.config)], seed=process.training_seed, variants=CAPTION_VARIANTS
            )
        )
        for caption in captions:
            kept = preserved(process.train, caption, trigger)
            found.update(dict.fromkeys([caption] if kept is None else [caption, kept]))
    return tuple(found)


def _assumed(process: ProcessConfig, family: Family) -> dict[Bucket, int]:
    found: dict[Bucket, int] = {}
    for data in process.datasets or (DatasetConfig(folder_path="."),):
        size = data.batch_size or process.train.batch_size
        frames = family.frames(family.usual_frames if data.auto_frame_count else data.num_frames)
        for resolution in data.resolution:
            for wide, high in ((1, 1), WORST_ASPECT):
                # large enough that the picture is never the smaller of the two
                side = 4 * resolution
                bucket = bucket_for(side * wide, side * high, resolution, family.divisor)
                bucket = replace(bucket, frames=frames)
                found[bucket] = max(found.get(bucket, 0), size)
    return _largest_first(found)


def _said(missing: tuple[str, ...], batches: dict[Bucket, int]) -> Said:
    """Which folders are missing, and what stands in for them."""
    where = missing or Said(N_("the job has no datasets"))
    frames = sorted({bucket.frames for bucket in batches})
    if frames == [1]:
        return Said(ASSUMED_PICTURES, {"where": where})
    return Said(ASSUMED_CLIPS, {"where": where, "frames": all_of(frames)})


def _largest_first(found: dict[Bucket, int]) -> dict[Bucket, int]:
    return dict(sorted(found.items(), key=lambda entry: (-entry[0].pixels * entry[1], entry[0])))

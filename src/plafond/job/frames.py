"""Numbers of frames and first frames that the job's model takes in another way than they are written."""

from __future__ import annotations

from plafond.families import families
from plafond.families._contract import Family
from plafond.job.dataset import DatasetConfig
from plafond.job.document import KeyPath
from plafond.job.schema import ProcessConfig
from plafond.job.source import Source
from plafond.language.said import N_

ONLY_PICTURES = N_("{arch} takes pictures only")


def warn_of_frames(process: ProcessConfig, path: KeyPath, source: Source) -> None:
    """Warn of clips for a model of pictures, and of numbers of frames that are rounded."""
    arch = process.model.arch
    family = next((each for each in families() if arch in each.archs), None)
    if family is None:
        return
    written = [((*path, "datasets", index), data.num_frames) for index, data in enumerate(process.datasets)]
    written.append(((*path, "sample"), process.sample.num_frames))
    common = process.sample.num_frames
    written += [
        ((*path, "sample", "samples", index), item.num_frames)
        for index, item in enumerate(process.sample.samples)
        if item.num_frames != common
    ]
    only_pictures = family.frames(family.usual_frames) == 1
    for place, count in written:
        taken = family.frames(count)
        if taken == count:
            continue
        said = ONLY_PICTURES if only_pictures else N_("{arch} takes {taken} frames instead of {count}")
        source.warn((*place, "num_frames"), said, arch=arch, taken=taken, count=count)
    for index, data in enumerate(process.datasets):
        if data.auto_frame_count and only_pictures:
            source.warn((*path, "datasets", index, "auto_frame_count"), ONLY_PICTURES, arch=arch)
        if data.do_i2v and not family.opens:
            no_first = N_("{arch} is not given first frames")
            source.warn((*path, "datasets", index, "do_i2v"), no_first, arch=arch)
    if not process.train.disable_sampling and _needs_first(family):
        bare = [index for index, item in enumerate(process.sample.samples) if not item.control_images]
        if bare:
            place = (*path, "sample", "samples", bare[0], "ctrl_img")
            grey = N_("{arch} draws clips from a first frame; without one it is grey")
            if len(bare) > 1:
                grey = N_(
                    "{arch} draws clips from a first frame; without one it is grey ({count} previews have none)"
                )
            source.warn(place, grey, arch=arch, count=len(bare))


def _needs_first(family: Family) -> bool:
    """Whether the model knows no clips without a given first frame."""
    return family.opened(DatasetConfig(folder_path="."), 1)

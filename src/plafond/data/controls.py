"""Control images: pictures that are given to the model beside the caption.

They are found by the names of the pictures; models that go on from a clip's first frame are given that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from plafond.data.batches import Item
from plafond.data.buckets import Bucket
from plafond.data.folder import Picture, Scan
from plafond.data.images import EXTENSIONS, read_size, show
from plafond.errors import DataError, JobError
from plafond.job.dataset import DatasetConfig
from plafond.language.said import N_, few

NAMED = 3
"""So many missing files are named in a message, the others counted."""

Opened = Callable[[DatasetConfig, int], bool]
"""Whether the model is given the first of a clip's frames: `plafond.families._contract.Family.opened`."""

SizeOf = Callable[[int, int, Bucket], Bucket]
"""From a control image's width and height and its picture's bucket to the size that the model sees."""


def match_controls(found: Scan, most: int) -> Scan:
    """Give every picture of a data set its control images, one from each folder of ``control_path``.

    A control image has its picture's name, in the same subfolder, with any extension.

    Args:
        found: the data set.
        most: so many control images does the model take.

    Raises:
        JobError: the data set names more folders than the model takes.
        DataError: a folder or a control image is missing, or is no picture.
    """
    folders = found.config.control_path
    if not folders or most == 0:
        return found
    if len(folders) > most:
        raise JobError(
            N_("expected at most {most} for this model, found {count} folders"),
            key="datasets.control_path",
            most=most,
            count=len(folders),
        )
    columns = [_column(Path(folder).expanduser(), found.pictures) for folder in folders]
    pictures = [
        replace(picture, controls=controls)
        for picture, *controls_ in zip(found.pictures, *columns, strict=True)
        for controls in [tuple(controls_)]
    ]
    return replace(found, pictures=tuple(pictures))


def match_openings(found: Scan, opened: Opened) -> Scan:
    """Give clips their own first frames as control images, and pictures themselves, where the model takes these."""
    pictures = tuple(
        replace(picture, controls=(replace(picture, frames=picture.frames[:1]),))
        if opened(found.config, max(1, len(picture.frames)))
        else picture
        for picture in found.pictures
    )
    return replace(found, pictures=pictures)


def _column(folder: Path, pictures: Iterable[Picture]) -> Iterator[Picture]:
    if not folder.is_dir():
        raise DataError(
            N_("{path}: there is no such folder; expected the data set's control images."), path=show(folder)
        )
    files = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in EXTENSIONS
    }
    wanted = [(picture, Path(picture.name).with_suffix("").as_posix()) for picture in pictures]
    missing = [show(picture.name) for picture, name in wanted if name not in files]
    if missing:
        raise DataError(
            N_("{path}: no control image for {names}; expected files of the same names."),
            path=show(folder),
            names=few(missing, NAMED),
        )
    for picture, name in wanted:
        path = files[name]
        width, height = read_size(path)
        yield replace(
            picture,
            path=path,
            name=path.relative_to(folder).as_posix(),
            root=folder,
            width=width,
            height=height,
            controls=(),
        )


def with_controls(items: Iterable[Item], size_of: SizeOf) -> list[Item]:
    """Items that know the sizes of their control images, and so share batches only with those of equal sizes."""
    return [
        replace(
            item,
            controls=tuple(
                size_of(control.width, control.height, item.bucket) for control in item.picture.controls
            ),
        )
        if item.picture.controls
        else item
        for item in items
    ]


def control_items(item: Item) -> tuple[Item, ...]:
    """An item's control images as items of their own, whose latents are made and kept like those of pictures."""
    return tuple(
        Item(control, item.config, item.resolution, bucket, item.flip_x, item.flip_y, item.crop)
        for control, bucket in zip(item.picture.controls, item.controls, strict=True)
    )

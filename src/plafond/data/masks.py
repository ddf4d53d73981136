"""Masks: how much each place of a picture counts, and what is kept of pictures that are to be completed.

Both are read once before training, cut and turned as their pictures are, and kept as bytes on the grid of the latents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from plafond.data.batches import Item
from plafond.data.folder import Picture, Scan
from plafond.data.images import EXTENSIONS, cut, named, show
from plafond.data.modes import to_rgb
from plafond.data.progress import Report, silent
from plafond.errors import DataError
from plafond.language.said import N_, Said, few
from plafond.memory.residence import host_memory

if TYPE_CHECKING:
    from torch import Tensor

NAMED = 3
"""So many pictures are named in a message, the others counted."""


def match_masks(found: Scan) -> Scan:
    """Give every picture of a data set its mask and its cut-out, from ``mask_path`` and ``inpaint_path``.

    A file belongs to the picture of its name, in the same subfolder, with any extension. Pictures without one are
    trained on as a whole.

    Raises:
        DataError: a folder is missing, or holds nothing for any of the pictures.
    """
    for field, folder in (("mask", found.config.mask_path), ("inpaint", found.config.inpaint_path)):
        if folder is not None:
            found = _matched(found, field, Path(folder).expanduser())
    return found


def _matched(found: Scan, field: str, folder: Path) -> Scan:
    if not folder.is_dir():
        raise DataError(
            N_("{path}: there is no such folder; expected the data set's masks."), path=show(folder)
        )
    files = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in EXTENSIONS
    }
    own = [files.get(Path(picture.name).with_suffix("").as_posix()) for picture in found.pictures]
    bare = [picture.name for picture, path in zip(found.pictures, own, strict=True) if path is None]
    if len(bare) == len(own):
        example = Path(found.pictures[0].name).with_suffix(".png").as_posix()
        raise DataError(
            N_("{path}: no mask for any picture; expected files such as {example}."),
            path=show(folder),
            example=show(example),
        )
    notes = found.notes
    if bare:
        text = N_("{path}: no mask for {names}; all of these pictures counts.")
        names = few([show(name) for name in bare], NAMED)
        notes += (Said(text, {"path": show(folder), "names": names}),)
    pictures = [
        replace(picture, mask=path) if field == "mask" else replace(picture, inpaint=path)
        for picture, path in zip(found.pictures, own, strict=True)
    ]
    return replace(found, pictures=tuple(pictures), notes=notes)


Masks = Mapping[Item, "Tensor"]
"""Bytes (h, w) of each item that has any."""

GridOf = Callable[[Item], tuple[int, int]]
"""Height and width of an item's latents."""


def read_masks(
    items: Iterable[Item], grid: GridOf, progress: Report = silent
) -> tuple[dict[Item, Tensor], dict[Item, Tensor]]:
    """How much each place of the items counts, and how much is kept of each place: 0 to 255.

    Args:
        items: what is trained on.
        grid: the size that they are wanted in.
        progress: told how many items are done.

    Raises:
        DataError: a mask cannot be read, or leaves nothing to learn.
    """
    wanted = [item for item in items if item.config.alpha_mask or item.picture.mask or item.picture.inpaint]
    weights: dict[Item, Tensor] = {}
    kept: dict[Item, Tensor] = {}
    opened: dict[Path, Image.Image | None] = {}
    for done, item in enumerate(sorted(wanted, key=lambda item: (item.picture.dataset, item.picture.name))):
        progress(done, len(wanted))
        picture, config = item.picture, item.config
        for path, image in _opened(picture, config.alpha_mask, opened):
            if path == picture.inpaint:
                kept[item] = _on_grid(image, item, grid(item))
                continue
            if config.invert_mask:
                image = ImageOps.invert(image)
            found = _on_grid(image, item, grid(item))
            if not found.any() and config.mask_min_value == 0.0:
                raise DataError(
                    N_("{path}: nothing is left to learn of {picture}; expected some white."),
                    path=show(path),
                    picture=show(picture.name),
                )
            weights[item] = found
    progress(len(wanted), len(wanted))
    return weights, kept


def _opened(
    picture: Picture, alpha_mask: bool, opened: dict[Path, Image.Image | None]
) -> Iterator[tuple[Path, Image.Image]]:
    """A picture's mask and cut-out as grey images; transparency is a mask where there is no other."""
    places = [(picture.mask, False)] if picture.mask else [(picture.path, True)] * alpha_mask
    places += [(picture.inpaint, True)] if picture.inpaint else []
    for path in [path for path in opened if path not in dict(places)]:
        del opened[path]  # the versions of one picture come one after the other
    for path, alpha in places:
        assert path is not None
        if path not in opened:
            opened[path] = _alpha(path) if alpha else _grey(path)
        image = opened[path]
        if image is not None:
            yield path, image


def _grey(path: Path) -> Image.Image:
    with named(path), Image.open(path) as image:
        image.load()
        return to_rgb(ImageOps.exif_transpose(image)).convert("L")


def _alpha(path: Path) -> Image.Image | None:
    with named(path), Image.open(path) as image:
        if not image.has_transparency_data:
            return None
        image.load()
        return ImageOps.exif_transpose(image).convert("RGBA").getchannel("A")


def _on_grid(image: Image.Image, item: Item, size: tuple[int, int]) -> Tensor:
    """The mean over each cell, in bytes, where the picture's latents are; the mask may have another size."""
    import torch

    height, width = size
    picture = item.picture
    across, down = image.width / picture.width, image.height / picture.height
    left, top, right, bottom = cut(picture.width, picture.height, item.bucket, item.crop)
    box = (left * across, top * down, min(right * across, image.width), min(bottom * down, image.height))
    small = np.array(image.resize((width, height), Image.Resampling.BOX, box=box))
    flipped = [axis for axis, flip in ((-1, item.flip_x), (-2, item.flip_y)) if flip]
    with host_memory():
        return torch.from_numpy(small).flip(flipped).contiguous()


def as_weights(mask: Tensor, least: float) -> Tensor:
    """Bytes (h, w) as float32 weights (1, h, w) up to 1, of which black counts `least`."""
    return (least + (1 - least) * mask.float() / 255).unsqueeze(0)

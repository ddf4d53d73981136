"""Reading pictures: the size from the header, the pixels in full, and the tensor that the VAE sees."""

from __future__ import annotations

import os
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from plafond.data.buckets import Bucket
from plafond.data.modes import to_rgb
from plafond.errors import BEHIND, DataError
from plafond.language.said import N_, Said

if TYPE_CHECKING:
    import torch

# Pictures between one and two times Pillow's limit are large but legitimate photographs; above it Pillow
# raises.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

NOT_PICTURES = frozenset({"BUFR", "EPS", "FLI", "GRIB", "HDF5", "IPTC", "MPEG", "WMF"})
"""What Pillow registers beside pictures: documents, vector drawings, video and stubs without a reader."""

DECODE_ERRORS = (
    OSError,  # UnidentifiedImageError and truncated data included
    SyntaxError,  # a broken PNG or TIFF structure
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    EOFError,
    OverflowError,
    MemoryError,
    RuntimeError,  # AVIF
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)
"""Everything that Pillow's readers raise on bad bytes."""


def _formats() -> tuple[frozenset[str], frozenset[str]]:
    Image.init()
    formats = frozenset(Image.OPEN) - NOT_PICTURES
    return formats, frozenset(ext for ext, name in Image.registered_extensions().items() if name in formats)


FORMATS, EXTENSIONS = _formats()
"""Pillow's names of the formats that are read, and their extensions (lower case, with the dot)."""


def show(path: str | os.PathLike[str]) -> str:
    """`path` for a message: names that are not valid UTF-8 stay printable."""
    return os.fsencode(path).decode("utf-8", errors="replace")


def read_size(path: Path) -> tuple[int, int]:
    """Width and height in pixels as a viewer shows the picture (EXIF applied), from the header alone.

    Raises:
        DataError: the file is no picture; the message names it.
    """
    with named(path), Image.open(path, formats=list(FORMATS)) as image:
        width, height = image.size
        # Pillow's TIFF reader has already swapped the sides.
        turned = image.format != "TIFF" and _orientation(image, path) in (5, 6, 7, 8)
    if not (width and height):
        raise DataError(
            N_("{path}: the header says {width}x{height} pixels; expected a picture with an area."),
            path=show(path),
            width=width,
            height=height,
        )
    return (height, width) if turned else (width, height)


def load_rgb(path: Path, data: bytes | None = None, *, side: int | None = None) -> Image.Image:
    """The fully decoded picture as 8-bit RGB, upright; the first frame of an animation.

    Args:
        path: the file; it names the picture in messages.
        data: its bytes when the caller has read them already.
        side: so many pixels on the longer side are enough, which makes JPEG faster.

    Raises:
        DataError: the bytes cannot be decoded to the end; the message names the file.
    """
    with (
        named(path),
        Image.open(BytesIO(data) if data is not None else path, formats=list(FORMATS)) as image,
    ):
        if side is not None:
            image.draft(None, (side, side))
        image.load()
        return to_rgb(ImageOps.exif_transpose(image))


def cut(
    width: int, height: int, bucket: Bucket, crop: tuple[float, float]
) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of what a bucket takes of a picture of that size, in pixels."""
    scale = max(bucket.width / width, bucket.height / height)
    across, down = min(width, bucket.width / scale), min(height, bucket.height / scale)
    left, top = (width - across) * crop[0], (height - down) * crop[1]
    return left, top, min(left + across, width), min(top + down, height)


def to_pixels(
    image: Image.Image,
    bucket: Bucket,
    *,
    flip_x: bool = False,
    flip_y: bool = False,
    crop: tuple[float, float] = (0.5, 0.5),
) -> torch.Tensor:
    """`image` (RGB) resized to cover `bucket` and cropped to it: float32 (3, H, W) in [-1, 1].

    `crop` places the cut on the overlapping axis: 0 is left or top, 0.5 the centre, 1 right or bottom.
    Resizing and cropping are one antialiased (bicubic) resampling, so that no rounding of the intermediate
    size bends the picture.
    """
    import torch  # reading headers does without it

    box = cut(image.width, image.height, bucket, crop)
    resized = image.resize((bucket.width, bucket.height), Image.Resampling.BICUBIC, box=box)
    pixels = torch.from_numpy(np.array(resized)).permute(2, 0, 1).to(torch.float32) / 127.5 - 1.0
    flipped = [axis for axis, flip in ((-1, flip_x), (-2, flip_y)) if flip]
    return pixels.flip(flipped).contiguous()


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Turns what Pillow raises into a DataError that names `path`, what was found and what is expected."""
    try:
        yield
    except DECODE_ERRORS as error:
        raise DataError(BEHIND, place=show(path), text=_found(path, error)) from error


def _found(path: Path, error: BaseException) -> Said:
    if isinstance(error, FileNotFoundError):
        return Said(N_("the file is not there any more; expected a picture."))
    if isinstance(error, PermissionError):
        return Said(N_("the file may not be read; expected a picture that this user can open."))
    if isinstance(error, Image.DecompressionBombError):
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0) // 1_000_000
        text = N_("the picture is too large to be opened safely; expected at most {limit} megapixels.")
        return Said(text, {"limit": limit})
    if path.is_file() and path.stat().st_size == 0:
        return Said(N_("the file is empty (0 bytes); expected a picture."))
    if isinstance(error, UnidentifiedImageError):
        return Said(
            N_("the content is not a picture; expected JPEG, PNG, WebP or another format that Pillow opens.")
        )
    text = N_("the picture data is broken or cut off ({reason}); expected a file that decodes to the end.")
    return Said(text, {"reason": _reason(error)})


def _reason(error: BaseException) -> str:
    """The reader's own words; its numbers and addresses are of no use to the user."""
    words = str(error).partition("\n")[0].partition(" (")[0].strip(" .'\"")
    return words or type(error).__name__


def _orientation(image: Image.Image, path: Path) -> int:
    """The EXIF orientation (1 to 8), without decoding the picture."""
    # PngImageFile.getexif decodes everything in search of a late chunk; the base class reads the header's.
    tag = Image.Image.getexif(image).get(ExifTags.Base.Orientation)
    if tag is None and image.format == "PNG":
        tag = _late_exif(path).get(ExifTags.Base.Orientation)
    return tag if isinstance(tag, int) else 1


def _late_exif(path: Path) -> Image.Exif:
    """The EXIF block of a PNG that stores it behind its pixels, found by hopping from chunk to chunk."""
    exif = Image.Exif()
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8:
            length, kind = struct.unpack(">I4s", head)
            if kind == b"eXIf":
                exif.load(b"Exif\0\0" + file.read(length))
                break
            file.seek(length + 4, os.SEEK_CUR)
    return exif

"""Clips: their size, length and rate from the header, which of their frames are trained on, and these frames.

Files are read by PyAV, which is loaded when the first clip is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from plafond.data.chance import chance
from plafond.data.images import show
from plafond.data.modes import to_rgb
from plafond.errors import BEHIND, DataError
from plafond.language.said import N_, Inside, Said, few

if TYPE_CHECKING:
    from plafond.data.folder import Picture, Scan
    from plafond.job.dataset import DatasetConfig

EXTENSIONS = frozenset(
    {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".wmv", ".flv", ".mpg", ".mpeg", ".ts", ".gif"}
)
"""Files that PyAV reads; a GIF is a picture where no clips are wanted."""

SPARE = 2
"""A header may promise so many frames more than there are: the last one stands in for them."""

BITS = 0.4
"""Bits per pixel of written clips: what keeps the marks of compression out of sight."""

Frames = Callable[[int], int]
"""How many of so many frames a model takes: `plafond.families._contract.Family.frames`."""

EXPECTED = N_("expected mp4, webm, mov, mkv, gif or another format that PyAV reads")


@dataclass(frozen=True)
class Clip:
    """What a clip's header says.

    Args:
        count: frames.
        rate: frames per second.
    """

    count: int
    rate: float

    @property
    def seconds(self) -> float:
        """How long it is shown."""
        return self.count / self.rate


def read_header(path: Path) -> tuple[int, int, Clip]:
    """Width and height in pixels as a player shows the clip, its length and rate; one frame is decoded for it.

    Raises:
        DataError: the file is no clip; the message names it.
    """
    with _opened(path) as container:
        stream = container.streams.video[0]
        first = next(container.decode(stream))
        rate = float(stream.average_rate or stream.guessed_rate or 0)
        count = int(stream.frames)
        if not count and rate and container.duration:
            count = round(container.duration / 1_000_000 * rate)
        width, height = first.width, first.height
        if first.rotation % 180:
            width, height = height, width
    if not (rate > 0 and count > 0):
        raise DataError(
            N_("{path}: the header does not say how long the clip is; {expected}."),
            path=show(path),
            expected=Said(EXPECTED),
        )
    return width, height, Clip(count, rate)


def read_frames(path: Path, numbers: Sequence[int], data: bytes | None = None) -> Iterator[Image.Image]:
    """Frames of a clip as 8-bit RGB, upright, decoded one after the other.

    Args:
        path: the file; it names the clip in messages.
        numbers: which frames, counted from 0, in rising order; one may come several times.
        data: the file's bytes when the caller has read them already.

    Raises:
        DataError: the clip ends before the last of them, or cannot be decoded up to there.
    """
    waiting = list(numbers)
    image, held = None, 0
    with _opened(path, data) as container:
        for number, frame in enumerate(container.decode(container.streams.video[0])):
            held = number + 1
            # the last frames may be missing, so the newest one is kept
            if waiting and (number == waiting[0] or number >= numbers[-1] - SPARE):
                image = _upright(frame)
            while waiting and waiting[0] == number and image is not None:
                yield image
                waiting.pop(0)
            if not waiting:
                return
    if image is None or waiting[-1] >= held + SPARE:
        raise DataError(
            N_(
                "{path}: the clip ends after {held} frames, but frame {wanted} is to be trained on; expected a clip"
                " that decodes to the end."
            ),
            path=show(path),
            held=held,
            wanted=waiting[-1] + 1,
        )
    for _ in waiting:
        yield image


def write_clip(frames: Sequence[Image.Image], rate: int, path: Path) -> None:
    """Write frames of even sides as an MP4 of H.264, or of MPEG-4 where there is no encoder for it."""
    import av

    codec = next((name for name in ("libx264", "libopenh264") if name in av.codecs_available), "mpeg4")
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = round(BITS * rate * frames[0].width * frames[0].height)
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(frame), format="rgb24")))
        container.mux(stream.encode(None))


def take_frames(found: Scan, frames: Frames) -> Scan:
    """Choose the frames of every clip of a data set; clips that are too short are left out and named.

    Raises:
        DataError: nothing is left.
    """
    kept: list[Picture] = []
    problems: list[Said] = []
    for picture in found.pictures:
        numbers: tuple[int, ...] | Said = (
            () if picture.clip is None else _chosen(picture, found.config, frames)
        )
        if isinstance(numbers, Said):
            problems.append(Said(BEHIND, {"place": show(picture.path), "text": numbers}))
        else:
            kept.append(replace(picture, frames=numbers))
    if not kept:
        raise DataError(
            N_("{path}: nothing is left to train on ({problems})."),
            path=show(found.config.folder_path),
            problems=few([Inside(problem) for problem in problems], 1),
        )
    return replace(found, pictures=tuple(kept), problems=(*found.problems, *problems))


def _chosen(picture: Picture, config: DatasetConfig, frames: Frames) -> tuple[int, ...] | Said:
    """Numbers of the frames that a clip is trained on, or what is wrong with it."""
    clip = picture.clip
    assert clip is not None
    if frames(config.num_frames) == 1 and not (config.auto_frame_count and frames(clip.count) > 1):
        return Said(N_("a clip; expected pictures for this model and these settings."))
    if config.auto_frame_count:
        wanted = frames(int(clip.seconds * config.fps))
        if not config.trim_auto_frame_count_tail:
            return _spread(clip.count, wanted)
        pace = clip.rate / config.fps
        return tuple(min(round(place * pace), clip.count - 1) for place in range(wanted))
    wanted = frames(config.num_frames)
    if clip.count < wanted:
        text = N_(
            "{count} frames; expected at least {wanted}, as num_frames says, or auto_frame_count: true, which takes"
            " clips at their own lengths."
        )
        return Said(text, {"count": clip.count, "wanted": wanted})
    step = max(1, round(clip.rate / config.fps))
    room = clip.count - 1 - (wanted - 1) * step
    if config.shrink_video_to_frames or room < 0:
        return _spread(clip.count, wanted)
    # drawn once, so that the latent can be cached
    start = chance("clip", picture.name).randint(0, room)
    return tuple(start + place * step for place in range(wanted))


def _spread(count: int, wanted: int) -> tuple[int, ...]:
    """Numbers from the first frame to the last at even distances."""
    if wanted == 1:
        return (0,)
    return tuple(round(place * (count - 1) / (wanted - 1)) for place in range(wanted))


def _upright(frame: Any) -> Image.Image:
    clear = any(component.is_alpha for component in frame.format.components)
    kind = "rgba" if clear else "rgb24"
    image = to_rgb(Image.fromarray(np.asarray(frame.to_ndarray(format=kind)), "RGBA" if clear else "RGB"))
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image


@contextmanager
def _opened(path: Path, data: bytes | None = None) -> Iterator[Any]:
    """The clip in PyAV; turns what that raises into a DataError that names the file."""
    import av

    try:
        with av.open(str(path) if data is None else BytesIO(data)) as container:
            if not container.streams.video:
                raise DataError(
                    N_("{path}: the file holds no moving picture; {expected}."),
                    path=show(path),
                    expected=Said(EXPECTED),
                )
            yield container
    except (av.FFmpegError, StopIteration, MemoryError) as error:
        raise DataError(BEHIND, place=show(path), text=_found(path, error)) from error


def _found(path: Path, error: BaseException) -> Said:
    if isinstance(error, FileNotFoundError):
        return Said(N_("the file is not there any more; expected a clip."))
    if isinstance(error, PermissionError):
        return Said(N_("the file may not be read; expected a clip that this user can open."))
    if path.is_file() and path.stat().st_size == 0:
        return Said(N_("the file is empty (0 bytes); expected a clip."))
    reason = getattr(error, "strerror", None) or type(error).__name__
    text = N_("the clip is broken or cut off ({reason}); {expected}.")
    return Said(text, {"reason": reason, "expected": Said(EXPECTED)})

"""Clips small enough for tests."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np

CODECS = {".mp4": "libx264", ".mov": "libx264", ".mkv": "libx264", ".webm": "libvpx-vp9", ".gif": "gif"}


def make_clip(path: Path, *, count: int = 21, size: tuple[int, int] = (64, 48), turned: int = 0) -> Path:
    """A clip at 8 frames a second. The red of its left half is 12 times the frame's number.

    Args:
        path: its ending says which container.
        count: frames.
        size: width and height as stored.
        turned: how a player turns it, in degrees against the clock.
    """
    width, height = size
    codec = CODECS[path.suffix]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=8)
        stream.width, stream.height = width, height
        stream.pix_fmt = "rgb8" if codec == "gif" else "yuv420p"
        stream.options = {"crf": "10"} if codec != "gif" else {}
        if turned:
            stream.set_display_rotation(turned)
        for number in range(count):
            pixels = np.zeros((height, width, 3), np.uint8)
            pixels[:, : width // 2, 0] = 12 * number % 256
            pixels[: height // 4, :, 1] = 200
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path

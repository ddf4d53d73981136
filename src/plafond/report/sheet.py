"""A contact sheet: each prompt's preview before and after training, side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from plafond.data.clips import read_frames, read_header
from plafond.data.images import EXTENSIONS

MARGIN = 12
CELL = 224
"""Longer side of a preview on the sheet, in pixels."""
TEXT = 13


def contact_sheet(
    target: Path, prompts: Sequence[str], columns: Sequence[tuple[str, Sequence[Path | None]]]
) -> None:
    """Write a PNG with one row per prompt and one titled column per moment.

    Args:
        target: the file to write.
        prompts: what each row was asked for.
        columns: title ("before", "after 300 steps") and one preview per prompt; None leaves a gap.
    """
    font = ImageFont.load_default(TEXT)
    bold = ImageFont.load_default(TEXT + 3)
    label = 210
    width = label + len(columns) * (CELL + MARGIN) + 2 * MARGIN
    top = MARGIN + TEXT + 14
    sheet = Image.new("RGB", (width, top + len(prompts) * (CELL + MARGIN) + MARGIN), "white")
    draw = ImageDraw.Draw(sheet)
    for column, (title, _) in enumerate(columns):
        draw.text((label + MARGIN + column * (CELL + MARGIN), MARGIN), title, fill="black", font=bold)
    for row, prompt in enumerate(prompts):
        y = top + row * (CELL + MARGIN)
        lines = textwrap.wrap(prompt, width=29)[:12]
        draw.multiline_text((MARGIN, y + 2), "\n".join(lines), fill="black", font=font, spacing=5)
        for column, (_, previews) in enumerate(columns):
            path = previews[row]
            if path is None:
                continue
            picture = _shown(path)
            scale = CELL / max(picture.size)
            size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
            picture = picture.resize(size, Image.Resampling.LANCZOS)
            x = label + MARGIN + column * (CELL + MARGIN)
            sheet.paste(picture, (x + (CELL - size[0]) // 2, y + (CELL - size[1]) // 2))
    sheet.save(target, format="PNG")


def _shown(path: Path) -> Image.Image:
    """A preview; of a clip the frame in the middle."""
    if path.suffix.lower() not in EXTENSIONS:
        _, _, clip = read_header(path)
        return next(iter(read_frames(path, (clip.count // 2,))))
    with Image.open(path) as file:
        return file.convert("RGB")

"""Make the demo photographs: crops and variations of Chelsea the cat (scikit-image, CC0), with captions."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import skimage.data
from PIL import Image, ImageEnhance, ImageOps


@dataclass(frozen=True)
class Variation:
    """One photograph: ``box`` is (left, top, right, bottom) in the 451 x 300 original, ``size`` the result's."""

    caption: str
    box: tuple[int, int, int, int]
    size: tuple[int, int]
    flip: bool = False
    turn: float = 0.0
    brightness: float = 1.0
    colour: float = 1.0
    contrast: float = 1.0


TRAINING = (
    Variation("a photo of chelsea cat", (75, 0, 375, 300), (256, 256)),
    Variation("a photo of chelsea cat, close-up of the face", (125, 25, 325, 225), (256, 256)),
    Variation("a photo of chelsea cat, looking to the side", (75, 0, 375, 300), (256, 256), flip=True),
    Variation("a wide photo of chelsea cat, cushions behind", (0, 0, 451, 300), (384, 256)),
    Variation("a wide photo of chelsea cat, brown background", (0, 20, 451, 280), (400, 232), flip=True),
    Variation("a tall photo of chelsea cat", (120, 0, 320, 300), (208, 312)),
    Variation("a tall photo of chelsea cat, bright light", (140, 0, 340, 300), (192, 288), True, 0.0, 1.15),
    Variation("portrait of chelsea cat, head tilted", (100, 20, 350, 270), (256, 256), turn=6.0),
    Variation("portrait of chelsea cat, head tilted to the left", (100, 20, 350, 270), (240, 240), True, 5.0),
    Variation("a dark photo of chelsea cat", (85, 5, 375, 295), (224, 224), brightness=0.75, contrast=1.1),
    Variation("chelsea cat, close-up of the eyes and nose", (135, 65, 305, 205), (272, 224)),
    Variation("chelsea cat, soft pale colours", (90, 0, 390, 300), (200, 200), colour=0.6, contrast=0.9),
    Variation("chelsea cat, warm vivid colours", (60, 0, 360, 300), (256, 256), True, colour=1.35),
    Variation("a small photo of chelsea cat", (75, 0, 375, 300), (128, 128), brightness=1.08),
)
HELD_OUT = (
    Variation("a photo of chelsea cat, face and ears", (105, 0, 345, 240), (256, 256), turn=-3.0),
    Variation("a wide photo of chelsea cat", (40, 10, 451, 290), (352, 240), brightness=0.92),
    Variation("a tall photo of chelsea cat, looking ahead", (130, 0, 330, 290), (200, 288), colour=1.15),
    Variation("portrait of chelsea cat, close-up", (115, 20, 335, 240), (224, 224), True, contrast=1.1),
)

LICENCE = """\
# Origin and licence

All photographs in this folder are crops and variations, made by `examples/make_photos.py`, of one
photograph: "Chelsea the cat" by Stefan van der Walt, from `skimage.data.chelsea` in scikit-image.
The photographer released it under CC0 (no copyright restrictions); so are these variations.
"""


def render(original: Image.Image, variation: Variation) -> Image.Image:
    """Apply ``variation`` to the original photograph."""
    picture = original
    if variation.turn:
        left, top, right, bottom = variation.box
        centre = ((left + right) / 2, (top + bottom) / 2)
        # Mirrored borders, so that turning brings no black corners in.
        margin = 60
        wide = Image.new("RGB", (original.width + 2 * margin, original.height + 2 * margin))
        for x, mirror_x in (
            (margin - original.width, True),
            (margin, False),
            (margin + original.width, True),
        ):
            for y, mirror_y in (
                (margin - original.height, True),
                (margin, False),
                (margin + original.height, True),
            ):
                tile = ImageOps.mirror(original) if mirror_x else original
                wide.paste(ImageOps.flip(tile) if mirror_y else tile, (x, y))
        pivot = (centre[0] + margin, centre[1] + margin)
        turned = wide.rotate(variation.turn, Image.Resampling.BICUBIC, center=pivot)
        picture = turned.crop((margin, margin, margin + original.width, margin + original.height))
    picture = picture.resize(variation.size, Image.Resampling.LANCZOS, box=variation.box)
    if variation.flip:
        picture = ImageOps.mirror(picture)
    picture = ImageEnhance.Brightness(picture).enhance(variation.brightness)
    picture = ImageEnhance.Color(picture).enhance(variation.colour)
    return ImageEnhance.Contrast(picture).enhance(variation.contrast)


def write(folder: Path, variations: tuple[Variation, ...]) -> None:
    """Write ``variations`` as numbered jpg files with a caption file beside each, and the licence."""
    folder.mkdir(parents=True, exist_ok=True)
    original = Image.fromarray(skimage.data.chelsea())
    for number, variation in enumerate(variations, start=1):
        path = folder / f"chelsea-{number:02d}.jpg"
        render(original, variation).save(path, quality=92)
        path.with_suffix(".txt").write_text(variation.caption + "\n")
    (folder / "LICENCE.md").write_text(LICENCE)


def main() -> None:
    """Write ``photos`` and ``photos-heldout`` beside this script, or where ``--out`` says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    out = parser.parse_args().out
    write(out / "photos", TRAINING)
    write(out / "photos-heldout", HELD_OUT)


if __name__ == "__main__":
    main()

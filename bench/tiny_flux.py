"""Does the tiny Flux base draw what captions say? Measured on pixels, on captions it was never trained on.

Draws the 40 held-out captions through FluxPipeline and checks, on each picture, the background colour, the
colour and place of the object, and its shape. Nothing is told to the measure but the picture. The same
measure is run on freshly rendered scenes first: that row says how far it can be trusted.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import FluxPipeline
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from skimage.color import rgb2lab
from skimage.measure import label, regionprops
from skimage.transform import resize
from sklearn.svm import SVC

from plafond.assets import scenes

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "src" / "plafond" / "assets" / "tiny-flux"
TRAINING_SCENES = 16_000
TARGETS = {"background colour": 0.90, "object colour and place": 0.80, "shape": 0.60}
MASK_SIDE = 20

_TONES = [
    (name, rgb) for name in scenes.BACKGROUNDS for rgb in (scenes.BACKGROUNDS[name], scenes.second_tone(name))
]
_NAMES = list(scenes.BACKGROUNDS)
_TONE_NAME = np.array([_NAMES.index(name) for name, _ in _TONES])
_TONE_LAB = rgb2lab(np.array([rgb for _, rgb in _TONES], np.uint8)[None])[0]


@dataclass(frozen=True)
class Seen:
    """What the measure finds in a picture: names, and the object's mask resized to MASK_SIDE squared."""

    background: str
    colour: str
    place: str
    mask: NDArray[np.float64]


def look(picture: Image.Image) -> Seen:
    """Name the background colour, then the largest patch of another colour and where it is.

    Every pixel takes the name of the nearest tone in CIELAB. The background is the commonest name.
    """
    lab = rgb2lab(np.asarray(picture.convert("RGB")))
    distance = np.linalg.norm(lab[:, :, None] - _TONE_LAB, axis=-1)
    names = _TONE_NAME[distance.argmin(-1)]
    background = int(np.bincount(names.ravel(), minlength=len(_NAMES)).argmax())
    regions = [
        (region, colour)
        for colour in range(len(_NAMES))
        if colour != background
        for region in regionprops(label(names == colour))
    ]
    if not regions:
        return Seen(_NAMES[background], "", "", np.zeros((MASK_SIDE, MASK_SIDE)))
    region, colour = max(regions, key=lambda found: found[0].area)
    top, left, bottom, right = region.bbox
    height, width = names.shape
    centre = ((left + right) / 2 / width, (top + bottom) / 2 / height)
    place = min(scenes.PLACES, key=lambda p: np.hypot(*np.subtract(scenes.PLACES[p], centre)))
    mask = resize(region.image.astype(float), (MASK_SIDE, MASK_SIDE), anti_aliasing=True)
    return Seen(_NAMES[background], _NAMES[colour], place, mask)


def train_shape_classifier(count: int = 1500) -> SVC:
    """A support-vector classifier of object masks, trained on ``count`` rendered scenes."""
    masks, kinds = [], []
    for scene, picture in rendered(count, seed=1_000_000):
        masks.append(look(picture).mask.ravel())
        kinds.append(scene.objects[0].kind)
    return SVC(C=10.0).fit(masks, kinds)


def rendered(count: int, seed: int) -> list[tuple[scenes.Scene, Image.Image]]:
    """``count`` one-object scenes and their renders, from seeds the training set does not use."""
    found: list[tuple[scenes.Scene, Image.Image]] = []
    while len(found) < count:
        rng = random.Random(seed)
        seed += 1
        scene = scenes.sample_scene(rng)
        if len(scene.objects) == 1:
            found.append((scene, scenes.render(scene, rng)))
    return found


def measure(
    wanted: Sequence[scenes.Scene], pictures: Sequence[Image.Image], classifier: SVC
) -> dict[str, NDArray[np.bool_]]:
    """For each quantity of TARGETS, which pictures are right."""
    right: dict[str, list[bool]] = {name: [] for name in TARGETS}
    for scene, picture in zip(wanted, pictures, strict=True):
        seen, item = look(picture), scene.objects[0]
        right["background colour"].append(seen.background == scene.background)
        right["object colour and place"].append((seen.colour, seen.place) == (item.colour, item.place))
        right["shape"].append(classifier.predict([seen.mask.ravel()])[0] == item.kind)
    return {name: np.array(values) for name, values in right.items()}


def assert_never_trained_on(wanted: Sequence[scenes.Scene]) -> None:
    """Check, over the whole training set, that no wanted combination occurs in it."""
    held = {(scene.objects[0], scene.background) for scene in wanted}
    for seed in range(TRAINING_SCENES):
        scene = scenes.sample_scene(random.Random(seed))
        assert not any((item, scene.background) in held for item in scene.objects), seed


def draw(
    pipeline: FluxPipeline, captions: list[str], steps: int, guidance: float, seed: int
) -> list[Image.Image]:
    """One 128 x 128 picture per caption, each from its own seed."""
    pictures: list[Image.Image] = []
    for start in range(0, len(captions), 10):
        batch = captions[start : start + 10]
        generators = [torch.Generator().manual_seed(seed + start + k) for k in range(len(batch))]
        pictures += pipeline(
            batch,
            height=128,
            width=128,
            num_inference_steps=steps,
            guidance_scale=guidance,
            max_sequence_length=32,
            generator=generators,
        ).images
    return pictures


def write_sheet(path: Path, captions: list[str], pictures: list[Image.Image], columns: int = 10) -> None:
    """The pictures with their captions underneath."""
    font = ImageFont.load_default(size=10)
    cell_width, cell_height = 136, 176
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * cell_width, rows * cell_height), "white")
    pen = ImageDraw.Draw(sheet)
    for k, (text, picture) in enumerate(zip(captions, pictures, strict=True)):
        x, y = k % columns * cell_width + 4, k // columns * cell_height + 4
        sheet.paste(picture, (x, y))
        lines = [""]
        for word in text.split():
            if font.getlength(f"{lines[-1]} {word}") > 128:
                lines.append("")
            lines[-1] = f"{lines[-1]} {word}".strip()
        pen.multiline_text((x, y + 130), "\n".join(lines[:3]), fill="black", font=font, spacing=1)
    sheet.save(path, optimize=True)


def main() -> None:
    """Print the table and write the sheet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--count", type=int, default=40, help="held-out captions")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=3.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sheet", type=Path, default=ROOT / "docs" / "tiny_flux.png")
    arguments = parser.parse_args()

    wanted = scenes.held_out_scenes(arguments.count)
    assert_never_trained_on(wanted)
    words = random.Random(0)
    captions = [scenes.caption(scene, words) for scene in wanted]
    classifier = train_shape_classifier()
    control = rendered(400, seed=2_000_000)
    trusted = measure([scene for scene, _ in control], [picture for _, picture in control], classifier)

    pipeline = FluxPipeline.from_pretrained(arguments.checkpoint)
    pipeline.set_progress_bar_config(disable=True)
    start = time.perf_counter()
    pictures = draw(pipeline, captions, arguments.steps, arguments.guidance, arguments.seed)
    seconds = (time.perf_counter() - start) / len(pictures)
    right = measure(wanted, pictures, classifier)

    print(f"{arguments.count} held-out captions, {arguments.steps} steps, guidance {arguments.guidance}")
    print(f"{'measured on pixels':<26}{'drawn':>8}{'target':>8}{'rendered control':>18}")
    for name, target in TARGETS.items():
        print(f"{name:<26}{right[name].mean():>8.1%}{target:>8.0%}{trusted[name].mean():>18.1%}")
    print(f"{seconds:.2f} s a picture")
    photo_captions = [photo.captions[0] for photo in scenes.PHOTOS]
    photos = draw(pipeline, photo_captions, arguments.steps, arguments.guidance, arguments.seed)
    write_sheet(arguments.sheet, captions + photo_captions, pictures + photos)


if __name__ == "__main__":
    main()

"""Captioned pictures the tiny Flux base is trained on: drawn scenes and free photographs.

A scene is one or two flat shapes on a coloured background. Everything is a pure function of a
``random.Random``: the same seed gives the same caption and the same pixels. Some combinations of
shape, colour, place and background colour are *held out*: :func:`is_held_out` decides it from a
hash, and :func:`sample_scene` never returns a scene that contains one of them.
"""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance

RGB = tuple[int, int, int]

SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "star", "cross", "ring")

COLOURS: dict[str, RGB] = {
    "red": (212, 36, 40),
    "orange": (245, 140, 25),
    "yellow": (246, 222, 50),
    "green": (40, 155, 65),
    "blue": (45, 85, 212),
    "purple": (128, 52, 168),
    "pink": (246, 142, 188),
    "white": (245, 245, 245),
    "black": (20, 20, 24),
}
"""Object colours, sRGB in 0..255."""

BACKGROUNDS: dict[str, RGB] = {**COLOURS, "gray": (128, 128, 128)}
"""Background colours, sRGB in 0..255."""

PATTERNS: tuple[str, ...] = ("plain", "striped", "checked", "dotted", "gradient", "cloudy")

PLACES: dict[str, tuple[float, float]] = {
    "centre": (0.5, 0.5),
    "left": (0.26, 0.5),
    "right": (0.74, 0.5),
    "top": (0.5, 0.26),
    "bottom": (0.5, 0.74),
    "top left": (0.26, 0.26),
    "top right": (0.74, 0.26),
    "bottom left": (0.26, 0.74),
    "bottom right": (0.74, 0.74),
}
"""Centre of an object as (x, y) fractions of the picture."""

_PLACE_WEIGHTS = (20, 15, 15, 15, 15, 5, 5, 5, 5)
_PATTERN_WEIGHTS = (40, 15, 12, 12, 12, 9)
_OPPOSITE = (("left", "right"), ("top", "bottom"))
_HELD_OUT_ONE_IN = 20
_SUPERSAMPLING = 3

# Pairs that a thumbnail does not tell apart reliably are not drawn on one another.
_TOO_CLOSE = frozenset({("white", "gray"), ("orange", "red"), ("red", "orange")})


@dataclass(frozen=True)
class Shape:
    """One object: ``kind`` in SHAPES, ``colour`` in COLOURS, ``place`` in PLACES."""

    kind: str
    colour: str
    place: str


@dataclass(frozen=True)
class Scene:
    """One or two objects on a background: ``background`` in BACKGROUNDS, ``pattern`` in PATTERNS."""

    objects: tuple[Shape, ...]
    background: str
    pattern: str


def is_held_out(shape: Shape, background: str) -> bool:
    """Whether this shape+colour+place+background colour is kept out of training (about 1 in 20)."""
    key = "|".join((shape.kind, shape.colour, shape.place, background))
    return hashlib.sha256(key.encode()).digest()[0] % _HELD_OUT_ONE_IN == 0


def _drawable(colour: str, background: str) -> bool:
    return colour != background and (colour, background) not in _TOO_CLOSE


def held_out_scenes(count: int, seed: int = 0) -> list[Scene]:
    """``count`` one-object scenes whose combinations are held out, with all patterns, in random order."""
    rng = random.Random(seed)
    found = [Shape(kind, colour, place) for kind, colour, place in product(SHAPES, COLOURS, PLACES)]
    pairs = [(s, b) for s in found for b in BACKGROUNDS if _drawable(s.colour, b) and is_held_out(s, b)]
    rng.shuffle(pairs)
    if count > len(pairs):
        raise ValueError(f"only {len(pairs)} combinations are held out")
    return [Scene((s,), b, rng.choices(PATTERNS, _PATTERN_WEIGHTS)[0]) for s, b in pairs[:count]]


def sample_scene(rng: random.Random) -> Scene:
    """A training scene: one object, or two on opposite sides in one case out of six; never a held-out one."""
    while True:
        background = rng.choice(list(BACKGROUNDS))
        pattern = rng.choices(PATTERNS, _PATTERN_WEIGHTS)[0]
        if rng.random() < 1 / 6:
            places = list(rng.choice(_OPPOSITE))
            rng.shuffle(places)
        else:
            places = rng.choices(list(PLACES), _PLACE_WEIGHTS)
        objects = tuple(Shape(rng.choice(SHAPES), rng.choice(list(COLOURS)), place) for place in places)
        if all(_drawable(o.colour, background) and not is_held_out(o, background) for o in objects):
            return Scene(objects, background, pattern)


def _place_words(place: str, rng: random.Random) -> str:
    if place == "centre":
        return rng.choice(("in the centre", "in the middle", "in the center"))
    if " " in place:
        return rng.choice((f"in the {place}", f"in the {place} corner"))
    side = ("on the {}", "on the {} side") if place in ("left", "right") else ("at the {}", "near the {}")
    return rng.choice(side).format(place)


def _with_article(words: str) -> str:
    return f"an {words}" if words.startswith("o") else f"a {words}"


def _background_words(scene: Scene, rng: random.Random) -> str:
    colour, pattern = scene.background, scene.pattern
    backdrop = f"{colour} background"
    if pattern == "plain":
        return rng.choice((backdrop, f"on {_with_article(backdrop)}", f"plain {backdrop}"))
    if pattern == "gradient":
        return rng.choice((f"{colour} gradient background", f"on {_with_article(colour)} gradient"))
    return rng.choice((f"{colour} {pattern} background", f"on a {pattern} {backdrop}"))


def caption(scene: Scene, rng: random.Random) -> str:
    """A short English caption of ``scene``; ``rng`` picks the wording."""
    things = []
    for item in scene.objects:
        things.append(f"{_with_article(item.colour)} {item.kind} {_place_words(item.place, rng)}")
    return f"{' and '.join(things)}, {_background_words(scene, rng)}"


def second_tone(colour: str) -> RGB:
    """The darker (for black: lighter) tone that patterns mix with the background colour."""
    strength = {"white": 0.20, "pink": 0.22, "yellow": 0.22}.get(colour, 0.30)
    red, green, blue = BACKGROUNDS[colour]
    if colour == "black":
        return 62, 62, 68
    keep = 1 - strength
    return round(red * keep), round(green * keep), round(blue * keep)


def _jitter(colour: RGB, rng: random.Random, amount: int = 7) -> RGB:
    red, green, blue = (min(255, max(0, c + rng.randint(-amount, amount))) for c in colour)
    return red, green, blue


def _background(scene: Scene, side: int, rng: random.Random) -> Image.Image:
    """A ``side`` x ``side`` RGB picture of the background alone."""
    first = _jitter(BACKGROUNDS[scene.background], rng)
    second = _jitter(second_tone(scene.background), rng)
    picture = Image.new("RGB", (side, side), first)
    draw = ImageDraw.Draw(picture)
    if scene.pattern == "striped":
        width = side * rng.uniform(0.08, 0.11)
        start = rng.uniform(0, 2 * width)
        for k in range(-1, math.ceil(side / width / 2) + 1):
            draw.rectangle((start + 2 * k * width, 0, start + (2 * k + 1) * width, side), fill=second)
    elif scene.pattern == "checked":
        cell = side / rng.choice((6, 7, 8))
        count = math.ceil(side / cell)
        for i, j in product(range(count), range(count)):
            if (i + j) % 2:
                draw.rectangle((i * cell, j * cell, (i + 1) * cell, (j + 1) * cell), fill=second)
    elif scene.pattern == "dotted":
        step = side / rng.choice((5, 6))
        radius = step * 0.27
        for i, j in product(range(7), range(7)):
            x, y = (i + 0.5) * step, (j + 0.5) * step
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=second)
    elif scene.pattern in ("gradient", "cloudy"):
        if scene.pattern == "gradient":
            mask = Image.linear_gradient("L").resize((side, side))
        else:
            cells = bytes(rng.randrange(256) for _ in range(64))
            mask = Image.frombytes("L", (8, 8), cells).resize((side, side), Image.Resampling.BICUBIC)
        picture.paste(Image.new("RGB", (side, side), second), (0, 0), mask)
    return picture


def _outline(kind: str, radius: float, angle: float) -> list[tuple[float, float]]:
    """Polygon of ``kind`` around (0, 0), turned by ``angle`` radians; empty for the round shapes."""
    if kind == "square":
        polar = [(radius * 1.15, math.pi / 4 + k * math.pi / 2) for k in range(4)]
    elif kind == "triangle":
        polar = [(radius * 1.12, -math.pi / 2 + k * 2 * math.pi / 3) for k in range(3)]
    elif kind == "star":
        polar = [(radius * (1.12 if k % 2 == 0 else 0.45), -math.pi / 2 + k * math.pi / 5) for k in range(10)]
    elif kind == "cross":
        arm = radius * 0.33
        corners = [(arm, radius), (arm, arm), (radius, arm)]
        polar = []
        for quarter in range(4):
            for x, y in corners:
                polar.append((math.hypot(x, y), math.atan2(y, x) - quarter * math.pi / 2))
    else:
        return []
    return [(r * math.cos(t + angle), r * math.sin(t + angle)) for r, t in polar]


def render(scene: Scene, rng: random.Random, size: int = 128) -> Image.Image:
    """Draw ``scene`` as a ``size`` x ``size`` RGB picture; ``rng`` sets sizes, small shifts and tones.

    Objects are 44 to 64 px across at the default size (a little less when there are two).
    """
    side = size * _SUPERSAMPLING
    picture = _background(scene, side, rng)
    draw = ImageDraw.Draw(picture)
    for item in scene.objects:
        diameter = rng.uniform(0.36, 0.46) if len(scene.objects) > 1 else rng.uniform(0.36, 0.50)
        radius = diameter * side / 2
        x, y = (side * (c + rng.uniform(-0.02, 0.02)) for c in PLACES[item.place])
        angle = math.radians(rng.uniform(-6, 6))
        fill = _jitter(COLOURS[item.colour], rng)
        box = (x - radius, y - radius, x + radius, y + radius)
        if item.kind == "circle":
            draw.ellipse(box, fill=fill)
        elif item.kind == "ring":
            draw.ellipse(box, outline=fill, width=round(radius * 0.38))
        else:
            draw.polygon([(x + dx, y + dy) for dx, dy in _outline(item.kind, radius, angle)], fill=fill)
    return picture.resize((size, size), Image.Resampling.BOX)


@dataclass(frozen=True)
class Photo:
    """A free photograph: the package file it comes from, its licence and its captions."""

    name: str
    package: str
    file: str
    licence: str
    captions: tuple[str, ...]


PHOTOS: tuple[Photo, ...] = (
    Photo(
        "astronaut",
        "skimage",
        "astronaut.png",
        "public domain (NASA)",
        (
            "a photo of an astronaut",
            "portrait of an astronaut, a woman in an orange suit",
            "an astronaut smiling in front of a flag",
        ),
    ),
    Photo(
        "coffee",
        "skimage",
        "coffee.png",
        "CC0 (Rachel Michetti)",
        ("a photo of a cup of coffee", "a cup of coffee on a wooden table", "coffee with a spoon on a table"),
    ),
    Photo(
        "rocket",
        "skimage",
        "rocket.jpg",
        "public domain (SpaceX)",
        ("a photo of a rocket", "a rocket launch at night", "a rocket taking off in the dark"),
    ),
    Photo(
        "hubble",
        "skimage",
        "hubble_deep_field.jpg",
        "public domain (NASA)",
        ("a photo of galaxies", "stars and galaxies in deep space", "the night sky with many galaxies"),
    ),
    Photo(
        "retina",
        "skimage",
        "retina.jpg",
        "CC0 (Mikael Häggström)",
        ("a photo of a retina", "the inside of an eye, a retina", "an orange retina on a black background"),
    ),
    Photo(
        "brick",
        "skimage",
        "brick.png",
        "CC0 (CC0Textures)",
        ("a photo of a brick wall", "a wall of gray bricks", "brick texture"),
    ),
    Photo(
        "grass",
        "skimage",
        "grass.png",
        "CC0 (Linolafett)",
        ("a photo of grass", "gray grass, black and white", "grass texture"),
    ),
    Photo(
        "camera",
        "skimage",
        "camera.png",
        "CC0 (Lav Varshney)",
        ("a photo of a man with a camera", "a cameraman, black and white", "a man with a camera on a field"),
    ),
    Photo(
        "china",
        "sklearn",
        "china.jpg",
        "CC BY 2.0 (danielbuechele)",
        ("a photo of a temple", "a chinese temple with a blue roof", "a palace in china under the sky"),
    ),
    Photo(
        "flower",
        "sklearn",
        "flower.jpg",
        "CC BY 2.0 (vultilion)",
        ("a photo of a flower", "a flower close up", "an orange flower on a dark background"),
    ),
)


def _photo_path(photo: Photo) -> Path:
    if photo.package == "skimage":
        import skimage.data

        return Path(skimage.data.__file__).parent / photo.file
    import sklearn.datasets

    return Path(sklearn.datasets.__file__).parent / "images" / photo.file


@cache
def load_photo(photo: Photo) -> Image.Image:
    """The photograph as RGB, shrunk so that its short side is 256 px at most."""
    picture = Image.open(_photo_path(photo)).convert("RGB")
    scale = 256 / min(picture.size)
    if scale < 1:
        size = (round(picture.width * scale), round(picture.height * scale))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    return picture


def render_photo(photo: Photo, rng: random.Random, size: int = 128) -> Image.Image:
    """A ``size`` x ``size`` RGB crop of the photograph: 85 to 100 % of its middle square, tones jittered."""
    picture = load_photo(photo)
    short = min(picture.size)
    side = short * rng.uniform(0.85, 1.0)
    left = (picture.width - side) / 2 + rng.uniform(-0.5, 0.5) * (short - side)
    top = (picture.height - side) / 2 + rng.uniform(-0.5, 0.5) * (short - side)
    box = (left, top, left + side, top + side)
    crop = picture.resize((size, size), Image.Resampling.LANCZOS, box=box)
    for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        crop = enhancer(crop).enhance(rng.uniform(0.92, 1.08))
    return crop


def scene_sample(seed: int, size: int = 128) -> tuple[Image.Image, Scene]:
    """Training scene number ``seed`` and its ``size`` x ``size`` RGB picture."""
    rng = random.Random(seed)
    scene = sample_scene(rng)
    return render(scene, rng, size), scene


def photo_sample(seed: int, size: int = 128) -> tuple[Image.Image, Photo]:
    """Training photograph crop number ``seed`` (``size`` x ``size`` RGB); the photographs take turns."""
    photo = PHOTOS[seed % len(PHOTOS)]
    return render_photo(photo, random.Random(seed), size), photo


def dead_leaves(rng: random.Random, size: int = 128) -> Image.Image:
    """Overlapping random discs, boxes and textured patches: edges and tones at every scale.

    It gives the autoencoder far more variety of local structure than ten photographs hold.
    """
    noise = np.random.default_rng(rng.randrange(2**32))
    canvas: NDArray[np.float32] = np.empty((size, size, 3), np.float32)
    canvas[:] = noise.uniform(0, 255, 3)
    rows, columns = np.mgrid[0:size, 0:size].astype(np.float32)
    for _ in range(rng.randint(10, 50)):
        radius = size * 0.04 / max(0.08, rng.random())
        x, y, angle = rng.uniform(0, size), rng.uniform(0, size), rng.uniform(0, math.pi)
        u = (columns - x) * math.cos(angle) + (rows - y) * math.sin(angle)
        v = (rows - y) * math.cos(angle) - (columns - x) * math.sin(angle)
        stretch = rng.uniform(0.3, 1.0)
        if rng.random() < 0.6:
            distance = np.sqrt(u**2 + (v / stretch) ** 2) - radius
        else:
            distance = np.maximum(np.abs(u), np.abs(v) / stretch) - radius
        alpha = np.clip(0.5 - distance / rng.choice((1.0, 1.0, 4.0)), 0, 1)[..., None]
        colour = noise.uniform(0, 255, 3).astype(np.float32)
        texture = np.float32(0)
        if rng.random() < 0.5:
            wave = rng.uniform(8, 45) * np.sin(u * rng.uniform(0.1, 1.2) + v * rng.uniform(0, 0.6))
            texture = wave[..., None] * noise.uniform(0.3, 1, 3)
        shade = (u / max(radius, 1) * rng.uniform(-25, 25))[..., None]
        canvas = canvas * (1 - alpha) + (colour + shade + texture) * alpha
    return Image.fromarray(np.clip(canvas, 0, 255).astype(np.uint8))

"""Training set of the tiny Flux transformer: pictures and captions, rendered once, then encoded once."""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from plafond.assets import scenes
from plafond.assets.tiny_tokenizers import (
    CLIP_LENGTH,
    COMMON_WORDS,
    T5_LENGTH,
    build_clip_tokenizer,
    build_t5_tokenizer,
)
from plafond.assets.tiny_vae import encode

SCENE_COUNT = 16_000
PHOTO_COUNT = 1_200
PHOTO_SHARE = 0.18
WORDINGS = 3
STRAY_WORDS_SHARE = 0.15
EMPTY_SHARE = 0.10


def _picture(seed: int, kind: str) -> NDArray[np.uint8]:
    sample = scenes.scene_sample if kind == "scene" else scenes.photo_sample
    return np.asarray(sample(seed)[0])


def render_pictures(
    path: Path, kind: str, count: int, workers: int = 2, block: int = 1000
) -> NDArray[np.uint8]:
    """Pictures 0 to ``count`` of ``kind`` ("scene" or "photo"), (count, 128, 128, 3), kept in ``path``.

    ``path`` is filled block by block; a run that was cut goes on with the first missing block.
    """
    done_path = path.with_suffix(".done")
    done = int(done_path.read_text()) if done_path.exists() else 0
    mode = "r+" if done else "w+"
    pictures: np.memmap[Any, np.dtype[np.uint8]]
    pictures = np.lib.format.open_memmap(path, mode, np.uint8, (count, 128, 128, 3))
    with ProcessPoolExecutor(workers) as pool:
        for start in range(done, count, block):
            seeds = range(start, min(start + block, count))
            pictures[start : seeds.stop] = list(pool.map(partial(_picture, kind=kind), seeds, chunksize=50))
            pictures.flush()
            done_path.write_text(str(seeds.stop))
            print(f"rendered {seeds.stop} of {count} {kind} pictures", flush=True)
    return pictures


def with_stray_words(text: str, rng: random.Random) -> str:
    """``text`` with one or two words the scenes never use put in anywhere.

    It gives the tokens no scene mentions a neutral meaning, so a caption with new words still draws.
    """
    words = text.split(" ")
    for _ in range(rng.randint(1, 2)):
        if rng.random() < 0.7:
            stray = rng.choice(COMMON_WORDS)
        else:
            stray = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789'é-ü", k=rng.randint(2, 7)))
        words.insert(rng.randint(0, len(words)), stray)
    return " ".join(words)


def captions_of(kind: str, seed: int) -> list[str]:
    """WORDINGS captions of picture number ``seed`` of ``kind``, some of them with stray words."""
    rng = random.Random(f"{kind} {seed}")
    if kind == "scene":
        scene = scenes.sample_scene(random.Random(seed))
        texts = [scenes.caption(scene, rng) for _ in range(WORDINGS)]
    else:
        photo = scenes.PHOTOS[seed % len(scenes.PHOTOS)]
        texts = [rng.choice(photo.captions) for _ in range(WORDINGS)]
    return [with_stray_words(t, rng) if rng.random() < STRAY_WORDS_SHARE else t for t in texts]


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str], length: int) -> Tensor:
    """Token ids (len(texts), length), cut and padded exactly as FluxPipeline does."""
    ids = tokenizer(
        texts, padding="max_length", max_length=length, truncation=True, return_tensors="pt"
    ).input_ids
    return torch.as_tensor(ids)


def pack(latents: Tensor) -> Tensor:
    """Latents (N, C, H, W) as Flux tokens (N, H/2 * W/2, 4C)."""
    n, c, h, w = latents.shape
    return latents.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(n, h * w // 4, c * 4)


def unpack(tokens: Tensor) -> Tensor:
    """Inverse of :func:`pack` for square pictures: (N, L, 4C) to (N, C, 2 sqrt(L), 2 sqrt(L))."""
    n, length, channels = tokens.shape
    side, c = round(length**0.5), channels // 4
    return tokens.view(n, side, side, c, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(n, c, side * 2, side * 2)


@dataclass
class Batch:
    """A training batch: clean packed latents (N, 64, 64) and both tokenizers' ids (N, length)."""

    latents: Tensor
    clip_ids: Tensor
    t5_ids: Tensor

    def ids(self) -> tuple[Tensor, Tensor]:
        """Token ids of the CLIP and of the T5 tokenizer."""
        return self.clip_ids, self.t5_ids


class TrainingSet:
    """Packed, normalised latents of all pictures (bfloat16) and the token ids of their captions."""

    def __init__(self, work: Path, vae: AutoencoderKL) -> None:
        path = work / "latents.pt"
        if not path.exists():
            torch.save(_encode_all(work, vae), path)
        stored = torch.load(path)
        self.latents: dict[str, Tensor] = {kind: stored[kind] for kind in ("scene", "photo")}
        self.shift: float = stored["shift"]
        self.scale: float = stored["scale"]
        clip, t5 = build_clip_tokenizer(), build_t5_tokenizer()
        self.empty = token_ids(clip, [""], CLIP_LENGTH), token_ids(t5, [""], T5_LENGTH)
        self.ids: dict[str, tuple[Tensor, Tensor]] = {}
        for kind, latents in self.latents.items():
            texts = [text for seed in range(len(latents)) for text in captions_of(kind, seed)]
            self.ids[kind] = token_ids(clip, texts, CLIP_LENGTH), token_ids(t5, texts, T5_LENGTH)

    def batch(self, size: int, empty_share: float = EMPTY_SHARE) -> Batch:
        """``size`` random samples; ``empty_share`` of the captions are replaced by the empty one."""
        photos = round(size * PHOTO_SHARE)
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for kind, count in (("scene", size - photos), ("photo", photos)):
            index = torch.randint(len(self.latents[kind]), (count,))
            wording = index * WORDINGS + torch.randint(WORDINGS, (count,))
            parts.append((self.latents[kind][index], self.ids[kind][0][wording], self.ids[kind][1][wording]))
        latents, clip_ids, t5_ids = (torch.cat(p) for p in zip(*parts, strict=True))
        empty = torch.rand(size) < empty_share
        clip_ids[empty], t5_ids[empty] = self.empty
        return Batch(latents, clip_ids, t5_ids)


def _encode_kind(vae: AutoencoderKL, pictures: NDArray[np.uint8], kind: str, block: int = 50) -> Tensor:
    """Latents (count, 16, 16, 16) of ``pictures`` (count, 128, 128, 3), in bfloat16, on two cores."""

    def latents_from(start: int) -> Tensor:
        pixels = torch.from_numpy(np.array(pictures[start : start + block]))
        return encode(vae, pixels.permute(0, 3, 1, 2)).bfloat16()

    blocks = []
    with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for done, latents in enumerate(pool.map(latents_from, range(0, len(pictures), block))):
            blocks.append(latents)
            if done % 20 == 0:
                print(f"encoded {done * block} of {len(pictures)} {kind} pictures", flush=True)
    return torch.cat(blocks)


def _encode_all(work: Path, vae: AutoencoderKL) -> dict[str, Tensor | float]:
    """Render and encode the training set; shift and scale make the latents zero-mean, unit-variance."""
    found: dict[str, Tensor] = {}
    for kind, count in (("scene", SCENE_COUNT), ("photo", PHOTO_COUNT)):
        pictures = render_pictures(work / f"{kind}s.npy", kind, count)
        found[kind] = _encode_kind(vae, pictures[:count], kind)
    sample = found["scene"][:4000].float()
    shift, scale = sample.mean().item(), 1 / sample.std().item()
    packed = {kind: pack((latents.float() - shift) * scale).bfloat16() for kind, latents in found.items()}
    return {**packed, "shift": shift, "scale": scale}

"""Preview pictures: before training, every few steps, and at the end."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn

from plafond.data.clips import write_clip
from plafond.data.images import load_rgb
from plafond.data.text import Question
from plafond.families._contract import Family, TextEmbedding, control
from plafond.job.sample import SampleItem
from plafond.job.schema import ProcessConfig
from plafond.memory.residence import host_memory, move_in, move_out
from plafond.model.checkpoint import Source
from plafond.training.ema import Ema
from plafond.training.embeddings import about_preview, preview_controls, send
from plafond.training.run_folder import RunFolder, write_atomically
from plafond.training.trainee import Trainee

TILE = 512
"""Longest side of a tile, in pixels."""
SIDES = ("tile_sample_min_size", "tile_latent_min_size")
"""Where an image autoencoder keeps the side of a tile, in pixels and in latents."""

PIL_FORMATS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}


class Previewer:
    """Draws the job's previews with the model as it is at the moment.

    Attributes:
        tiled: decode pictures in overlapping tiles, which takes less memory; the job's choice at first.
        read: gives the pixels of control images.
    """

    def __init__(
        self,
        trainee: Trainee,
        family: Family,
        process: ProcessConfig,
        source: Source,
        vae: Callable[[], nn.Module],
        texts: Mapping[Question, TextEmbedding],
        folder: RunFolder,
        device: torch.device,
        dtype: torch.dtype,
    ):
        self.trainee, self.family, self.process, self.source = trainee, family, process, source
        self.tiled = process.plafond.tiled_previews
        self.read: Callable[[Path], Tensor] = read_control
        self.vae, self.texts, self.folder, self.device, self.dtype = vae, texts, folder, device, dtype

    def due(self, step: int, *, first: bool) -> bool:
        """Whether previews are made after this many updates; `first` is true before a run's first step."""
        train, sample = self.process.train, self.process.sample
        if train.disable_sampling or not sample.samples:
            return False
        if first:
            return train.force_first_sample or (step == 0 and not train.skip_first_sample)
        return step >= sample.sample_start_step and step % sample.sample_every == 0

    def draw(
        self, step: int, ema: Ema | None, progress: Callable[[int, int], None], stopped: Callable[[], bool]
    ) -> list[Path]:
        """Draw and save every preview, or those until `stopped` says so; `progress` is told how many are done."""
        items = self.process.sample.samples
        written: list[Path] = []
        with self.ready(ema) as vae:
            for index, item in enumerate(items):
                if stopped():
                    break
                progress(index, len(items))
                picture = self.picture(item, vae)
                if isinstance(picture, list):
                    target = self.folder.sample(step, index, "mp4")
                    write_atomically(target, partial(write_clip, picture, item.fps))
                else:
                    target = self.folder.sample(step, index, self.process.sample.format)
                    write_atomically(target, partial(_save, picture, extension=self.process.sample.format))
                written.append(target)
        progress(len(items), len(items))
        return written

    @contextmanager
    def ready(self, ema: Ema | None) -> Iterator[nn.Module]:
        """The model as it is shown, averaged if there is an average; gives the autoencoder, on the device."""
        self.trainee.transformer.eval()
        vae = move_in(self.vae(), self.device)
        try:
            with tiles(vae) if self.tiled else nullcontext(), ema.applied() if ema else nullcontext():
                yield vae
        finally:
            move_out(vae)

    def picture(self, item: SampleItem, vae: nn.Module) -> Image | list[Image]:
        """Draw one preview: a picture, or the frames of a clip."""
        if item.seed < 0:
            item = item.model_copy(update={"seed": secrets.randbelow(2**31)})
        text = dict(self.texts[about_preview(self.family, item, item.prompt)])
        if self.family.guided(item):
            negative = self.texts[about_preview(self.family, item, item.neg)]
            text.update({f"negative_{name}": tensor for name, tensor in negative.items()})
        for place, path in enumerate(preview_controls(self.family, item)):
            text[control(place)] = self.read(path)
        text = send(text, self.device, self.dtype)
        with torch.no_grad(), self.trainee.drawing(item.network_multiplier):
            return self.family.preview(self.trainee.transformer, vae, self.source, item, text)


@contextmanager
def tiles(vae: nn.Module) -> Iterator[None]:
    """Let an autoencoder of diffusers work in tiles of at most `TILE` pixels a side; one that cannot works as ever."""
    enable = getattr(vae, "enable_tiling", None)
    if not callable(enable):
        yield
        return
    # image autoencoders take the side of the pictures they were trained on for a tile: 1024, a whole preview
    known = {name: getattr(vae, name) for name in SIDES if isinstance(getattr(vae, name, None), int)}
    if known and known[SIDES[0]] > TILE:
        scale = known[SIDES[0]] // known[SIDES[1]]
        vae.tile_sample_min_size, vae.tile_latent_min_size = TILE, TILE // scale  # type: ignore[assignment]
    enable()
    try:
        yield
    finally:
        vae.disable_tiling()  # type: ignore[operator]
        for name, value in known.items():
            setattr(vae, name, value)


def read_control(path: Path) -> Tensor:
    """A control image's pixels, bytes (3, H, W) in main memory."""
    with host_memory():
        return torch.from_numpy(np.array(load_rgb(path))).permute(2, 0, 1)


def _save(picture: Image, path: Path, extension: str) -> None:
    picture.save(path, format=PIL_FORMATS[extension], quality=95)

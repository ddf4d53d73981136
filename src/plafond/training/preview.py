"""Preview pictures: before training, every few steps, and at the end."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
from PIL.Image import Image
from torch import nn

from plafond.families._contract import Family, TextEmbedding
from plafond.job.sample import SampleItem
from plafond.job.schema import ProcessConfig
from plafond.memory.residence import move_in, move_out
from plafond.model.checkpoint import Source
from plafond.training.ema import Ema
from plafond.training.embeddings import send
from plafond.training.run_folder import RunFolder, write_atomically
from plafond.training.trainee import Trainee

PIL_FORMATS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}


class Previewer:
    """Draws the job's previews with the model as it is at the moment."""

    def __init__(
        self,
        trainee: Trainee,
        family: Family,
        process: ProcessConfig,
        source: Source,
        vae: Callable[[], nn.Module],
        texts: dict[str, TextEmbedding],
        folder: RunFolder,
        device: torch.device,
        dtype: torch.dtype,
    ):
        self.trainee, self.family, self.process, self.source = trainee, family, process, source
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
            with ema.applied() if ema else nullcontext():
                yield vae
        finally:
            move_out(vae)

    def picture(self, item: SampleItem, vae: nn.Module) -> Image:
        """Draw one preview."""
        if item.seed < 0:
            item = item.model_copy(update={"seed": secrets.randbelow(2**31)})
        text = dict(self.texts[item.prompt])
        if self.family.guided(item):
            text.update({f"negative_{name}": tensor for name, tensor in self.texts[item.neg].items()})
        text = send(text, self.device, self.dtype)
        with torch.no_grad(), self.trainee.drawing(item.network_multiplier):
            return self.family.preview(self.trainee.transformer, vae, self.source, item, text)


def _save(picture: Image, path: Path, extension: str) -> None:
    picture.save(path, format=PIL_FORMATS[extension], quality=95)

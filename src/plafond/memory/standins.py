"""What a dry run is given in place of data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from plafond.data.batches import Item
from plafond.data.buckets import Bucket
from plafond.data.folder import Picture
from plafond.families._contract import Family, TextEmbedding
from plafond.job.dataset import DatasetConfig
from plafond.job.schema import ProcessConfig

PROMPT = "a photo"
"""Any prompt: a dry run's tokenizers give the greatest length."""
BLANK = (1024, 1024)
"""Size of a control image that is not at hand; families look at a fixed area, whatever the shape."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What is known of a job's data beside its buckets.

    Args:
        captions: tokens of the longest caption; None for as many as the model takes.
        shortest: tokens of the shortest one; batches of several are taken to have one of these.
        previews: the same of the prompts of previews.
        controls: sizes of the control images of each bucket; None when the data is not at hand.
    """

    captions: int | None = None
    shortest: int | None = None
    previews: int | None = None
    controls: Mapping[Bucket, tuple[Bucket, ...]] | None = None

    def batch(self, size: int) -> list[int | None]:
        """Tokens of the captions of the batch that takes the most: where lengths differ, some models need a mask."""
        if size > 1 and self.shortest != self.captions:
            return [self.shortest, *[self.captions] * (size - 1)]
        return [self.captions] * size

    @property
    def longest(self) -> int | None:
        """Tokens of the longest prompt that is encoded."""
        return None if self.captions is None or self.previews is None else max(self.captions, self.previews)


def unfilled(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A CPU tensor of any size that takes no memory."""
    return torch.zeros((), dtype=dtype).expand(shape)


def pixels_of(bucket: Bucket) -> tuple[int, ...]:
    """Shape of the pixels of one picture or clip."""
    frames = (bucket.frames,) if bucket.frames > 1 else ()
    return (1, 3, *frames, bucket.height, bucket.width)


def stand_in(embedding: TextEmbedding, dtype: torch.dtype) -> TextEmbedding:
    """An embedding as the caches hold it: numbers without memory of their own, integers as they are."""
    return {
        name: unfilled(*tensor.shape, dtype=dtype) if tensor.is_floating_point() else tensor
        for name, tensor in embedding.items()
    }


def ask_blank(family: Family, encoders: Any, controls: int) -> TextEmbedding:
    """What the encoders say to a prompt, with so many blank control images if they look at them."""
    if controls and family.sees_controls:
        return family.encode_seen(encoders, PROMPT, [Image.new("RGB", BLANK) for _ in range(controls)])
    return family.encode_text(encoders, [PROMPT])[0]


def blank_control(path: Path) -> Tensor:
    """In the place of `plafond.training.preview.read_control`."""
    return torch.zeros((3, *BLANK), dtype=torch.uint8)


def training_controls(process: ProcessConfig, family: Family, frames: int = 1) -> int:
    """The most control images that a picture of this job, or a clip of so many frames, has."""
    if any(family.opened(data, frames) for data in process.datasets):
        return 1
    return min(family.controls, max((len(data.control_path) for data in process.datasets), default=0))


def control_buckets(process: ProcessConfig, family: Family, bucket: Bucket) -> list[Bucket]:
    """Sizes of the control images of a picture of `bucket`, which are taken to have its shape."""
    size = family.control_size(process.model, bucket.width, bucket.height, bucket)
    return [size] * training_controls(process, family, bucket.frames)


def item_of(process: ProcessConfig, bucket: Bucket) -> Item:
    """An item of this bucket, of the data set that takes the most passes."""
    default = DatasetConfig(folder_path=".")
    config = max(process.datasets, key=lambda data: data.prior_reg, default=default)
    here = Path()
    picture = Picture(here, "picture", here, bucket.width, bucket.height, "", None, 1, 0)
    return Item(picture, config, bucket.width, bucket)


def without_files(process: ProcessConfig) -> ProcessConfig:
    """The process without a LoRA file to start from: its weights have no data here."""
    if process.network is None or not process.network.pretrained_lora_path:
        return process
    network = process.network.model_copy(update={"pretrained_lora_path": None})
    return process.model_copy(update={"network": network})

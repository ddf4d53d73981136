"""Text embeddings of all prompts, made once before training so that the text encoder can be unloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from plafond.data.cache import Settings, TensorCache, Tensors, cache_key
from plafond.data.clips import read_frames
from plafond.data.digests import digest_of
from plafond.data.images import load_rgb, show
from plafond.data.progress import Report, silent
from plafond.errors import DataError, NonFiniteError
from plafond.language.said import N_
from plafond.memory.residence import host_memory

FOLDER = "_t_e_cache"
"""The cache folder beside the first data set."""

EncodeText = Callable[[list["Question"]], list[Tensors]]
"""From prompts to one mapping of named tensors each, without a batch dimension."""


@dataclass(frozen=True)
class Illustrated:
    """A prompt that the text encoder reads together with pictures.

    Args:
        prompt: the words.
        pictures: files.
        flip_x: the pictures are mirrored left to right.
        flip_y: and top to bottom.
        frame: the files are clips, of which this frame is looked at.
    """

    prompt: str
    pictures: tuple[Path, ...]
    flip_x: bool = False
    flip_y: bool = False
    frame: int | None = None

    def load(self) -> list[Image.Image]:
        """The pictures, decoded.

        Raises:
            DataError: one cannot be decoded.
        """
        found = [
            load_rgb(path) if self.frame is None else next(read_frames(path, [self.frame]))
            for path in self.pictures
        ]
        flips = [
            way
            for way, wanted in (
                (Image.Transpose.FLIP_LEFT_RIGHT, self.flip_x),
                (Image.Transpose.FLIP_TOP_BOTTOM, self.flip_y),
            )
            if wanted
        ]
        for way in flips:
            found = [picture.transpose(way) for picture in found]
        return found


Question = str | Illustrated
"""What a text encoder is asked."""


class TextStore(Mapping[Question, Tensors]):
    """The embeddings of every prompt, by prompt."""

    def __init__(self, disk: TensorCache | None) -> None:
        self._disk = disk
        self._keys: dict[Question, str] = {}
        self._memory: dict[Question, Tensors] = {}

    def __contains__(self, prompt: object) -> bool:
        return prompt in self._keys

    def __iter__(self) -> Iterator[Question]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, prompt: Question) -> Tensors:
        """The tensors of `prompt` on the CPU, in the types that the encoder returned."""
        key = self._keys[prompt]
        if self._disk is None:
            return self._memory[prompt]
        tensors = self._disk.get(key)
        if tensors is None:
            raise DataError(
                N_(
                    "{path}: the cached embedding of {prompt} was removed or damaged during the run; run the same"
                    " command again to make it anew."
                ),
                path=show(self._disk.path(key)),
                prompt=repr(prompt),
            )
        return tensors


def cache_text(
    prompts: Iterable[Question],
    encode: EncodeText,
    *,
    signature: Settings,
    folder: Path | None = None,
    progress: Report = silent,
) -> TextStore:
    """Encode every distinct prompt once; those that an earlier run has cached are not encoded again.

    Prompts are encoded one at a time: padding to a neighbour's length must not change a cached embedding.

    Args:
        prompts: may hold doubles.
        encode: the text encoders.
        signature: everything beside the prompt that an embedding depends on: models, weights, types, lengths.
        folder: where embeddings are kept for later runs, as `cache.cache_folder` gives it; None: in memory.
        progress: told how many prompts are done.

    Raises:
        NonFiniteError: the encoder returned something else than numbers.
        OutOfSpaceError: the disk is full.
    """
    distinct = list(dict.fromkeys(prompts))
    disk = TensorCache(folder) if folder is not None else None
    store = TextStore(disk)
    progress(0, len(distinct))
    for done, prompt in enumerate(distinct, start=1):
        key = _key(signature, prompt)
        if disk is None:
            store._memory[prompt] = _encode(encode, prompt)
        elif disk.get(key) is None:
            disk.put(key, _encode(encode, prompt))
        store._keys[prompt] = key
        progress(done, len(distinct))
    return store


def _key(signature: Settings, question: Question) -> str:
    if isinstance(question, str):
        return cache_key(signature, "text", question)
    seen = [digest_of(path.read_bytes()) for path in question.pictures]
    frame = () if question.frame is None else (question.frame,)
    return cache_key(signature, "text", question.prompt, question.flip_x, question.flip_y, *frame, *seen)


def _encode(encode: EncodeText, prompt: Question) -> Tensors:
    (encoded,) = encode([prompt])
    with host_memory():
        tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in encoded.items()}
        finite = {name: bool(torch.isfinite(tensor).all()) for name, tensor in tensors.items()}
    for name in tensors:
        if not finite[name]:
            raise NonFiniteError(
                N_(
                    "The text encoder returned NaN or infinity in {name} for {prompt}; expected numbers, which bf16"
                    " or float32 instead of float16 usually gives."
                ),
                name=name,
                prompt=repr(prompt),
            )
    return tensors

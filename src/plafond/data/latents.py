"""Latents of all pictures, made once before training and kept in memory or on disk.

Every picture is decoded here in full, or was when its latent was cached; so this is also where broken ones
are found, before the plan of batches is drawn up. A latent on disk is found by the bytes of its picture: an
edited picture is simply another one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from plafond.data.batches import Item
from plafond.data.cache import Settings, TensorCache, cache_folder, cache_key
from plafond.data.clips import read_frames
from plafond.data.digests import Digests, digest_of
from plafond.data.folder import Picture
from plafond.data.images import load_rgb, show, to_pixels
from plafond.data.progress import Report, silent
from plafond.errors import DataError, NonFiniteError
from plafond.language.said import N_, Said
from plafond.memory.residence import host_memory

FOLDER = "_latent_cache"
"""The cache folder beside the pictures."""

READERS = min(4, os.cpu_count() or 1)
"""Threads that decode pictures ahead of the encoder."""

Encode = Callable[[torch.Tensor], torch.Tensor]
"""From pixels, float32 (1, 3, H, W) in [-1, 1], or (1, 3, frames, H, W) of a clip, to latents (1, ...)."""


class LatentStore(Mapping[Item, torch.Tensor]):
    """The latent of every item whose picture could be decoded.

    Attributes:
        problems: one sentence for each picture that could not, for the end of the run.
    """

    def __init__(self) -> None:
        self.problems: tuple[Said, ...] = ()
        self._keys: dict[Item, str] = {}
        self._memory: dict[str, torch.Tensor] = {}
        self._disk: dict[str, TensorCache] = {}

    def __contains__(self, item: object) -> bool:
        return item in self._keys

    def __iter__(self) -> Iterator[Item]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, item: Item) -> torch.Tensor:
        """The latent of `item` on the CPU, without a batch dimension, in the type that the encoder"
        " returned."""
        key = self._keys[item]
        if key in self._memory:
            return self._memory[key]
        tensors = self._disk[key].get(key)
        if tensors is None:
            raise DataError(
                N_(
                    "{path}: the cached latent of {picture} was removed or damaged during the run; run the same"
                    " command again to make it anew."
                ),
                path=show(self._disk[key].path(key)),
                picture=show(item.picture.name),
            )
        return tensors["latent"]

    def surviving(self, items: Iterable[Item]) -> list[Item]:
        """Those of `items` that have a latent, in the same order."""
        return [item for item in items if item in self._keys]


def cache_latents(
    items: Iterable[Item],
    encode: Encode,
    *,
    signature: Settings,
    to_disk: bool | None = None,
    folder: Path | None = None,
    progress: Report = silent,
) -> LatentStore:
    """Make the latent of every item; those that are cached or the same as another's are not made again.

    Pictures are encoded one at a time, so that a latent never depends on which others were missing.

    Args:
        items: what will be trained on.
        encode: the VAE.
        signature: everything beside the pixels that a latent depends on: model, weights, type, scaling.
        to_disk: keep latents beside the pictures, in `FOLDER`, for later runs; None asks each data set.
        folder: where `FOLDER` stands instead of beside the pictures.
        progress: told how many versions of pictures are done.

    Raises:
        NonFiniteError: the encoder returned something else than numbers.
        OutOfSpaceError: the disk is full.
    """
    store = LatentStore()
    problems: list[Said] = []
    tasks = _tasks(items, to_disk, folder)
    done, total = 0, sum(len(task.versions) for task in tasks)
    progress(done, total)
    for task, loaded in _ahead(tasks, signature):
        if isinstance(loaded, DataError):
            problems.append(loaded.said)
            done += len(task.versions)
            progress(done, total)
            continue
        for key, version, pixels in loaded:
            if key not in store._memory and key not in store._disk:
                if pixels is not None:
                    latent = _encode(encode, pixels, version[0])
                    if task.cache is None:
                        store._memory[key] = latent
                    else:
                        task.cache.put(key, {"latent": latent})
                if task.cache is not None:
                    store._disk[key] = task.cache
            store._keys.update(dict.fromkeys(version, key))
            done += 1
            progress(done, total)
    for digests in {id(task.digests): task.digests for task in tasks}.values():
        digests.save()
    store.problems = tuple(problems)
    return store


@dataclass(frozen=True)
class _Task:
    """One picture: the items that share each of its versions, and where its latents are kept (None: in"
    " memory)."""

    picture: Picture
    versions: list[list[Item]]
    cache: TensorCache | None
    digests: Digests


def _tasks(items: Iterable[Item], to_disk: bool | None, place: Path | None) -> list[_Task]:
    caches: dict[Path, tuple[TensorCache, Digests]] = {}
    versions: dict[tuple[Path, Path, bool, tuple[int, ...]], dict[tuple[object, ...], list[Item]]] = {}
    for item in items:
        on_disk = item.config.cache_latents_to_disk if to_disk is None else to_disk
        version = (item.bucket, item.flip_x, item.flip_y, item.crop)
        kept = (item.picture.path, item.picture.root, on_disk, item.picture.frames)
        versions.setdefault(kept, {}).setdefault(version, []).append(item)
    in_memory, tasks = Digests(None), []
    for (_, root, on_disk, _), by_version in versions.items():
        if on_disk and root not in caches:
            folder = cache_folder(place or root, FOLDER)
            caches[root] = TensorCache(folder), Digests(folder)
        groups = list(by_version.values())
        cache, digests = caches[root] if on_disk else (None, in_memory)
        tasks.append(_Task(groups[0][0].picture, groups, cache, digests))
    return tasks


_Loaded = list[tuple[str, list[Item], torch.Tensor | None]]
"""Key, items and pixels of each version; no pixels where the latent is cached."""


def _load(task: _Task, signature: Settings) -> _Loaded | DataError:
    """Decode the picture unless all of its versions are cached. Runs in a thread."""
    path = task.picture.path
    try:
        if task.cache is not None:
            digest = task.digests.of(path)
            keys = [_key(version[0], digest, signature) for version in task.versions]
            if all(task.cache.get(key) is not None for key in keys):
                return [(key, version, None) for key, version in zip(keys, task.versions, strict=True)]
        # The hash is that of the bytes that are decoded, whatever is written to the file meanwhile.
        data = path.read_bytes()
        digest = digest_of(data)
        keys = [_key(version[0], digest, signature) for version in task.versions]
        cached = [task.cache is not None and task.cache.get(key) is not None for key in keys]
        missing = [version[0] for version, known in zip(task.versions, cached, strict=True) if not known]
        pixels = _pixels(task.picture, missing, data)
    except OSError as error:
        return DataError(
            N_("{path}: cannot be read ({reason}); expected a picture."),
            path=show(path),
            reason=str(error.strerror),
        )
    except DataError as error:
        return error
    return [
        (key, version, None if known else pixels.pop(0))
        for key, version, known in zip(keys, task.versions, cached, strict=True)
    ]


def _pixels(picture: Picture, versions: list[Item], data: bytes) -> list[torch.Tensor]:
    """The pixels of each version; of a clip no frame is kept at its own size, and grey ones follow its last."""
    images = (
        read_frames(picture.path, picture.frames, data) if picture.frames else (load_rgb(picture.path, data),)
    )
    made: list[list[torch.Tensor]] = [[] for _ in versions]
    for image in images:
        if image.size != (picture.width, picture.height):
            raise DataError(
                N_(
                    "{path}: now {now} pixels, but {then} when the folder was read; expected it to stay the same"
                    " during the start."
                ),
                path=show(picture.path),
                now=f"{image.width}x{image.height}",
                then=f"{picture.width}x{picture.height}",
            )
        for item, frames in zip(versions, made, strict=True):
            frames.append(
                to_pixels(image, item.bucket, flip_x=item.flip_x, flip_y=item.flip_y, crop=item.crop)
            )
    return [
        _clip(frames, item.bucket.frames) if picture.frames else frames[0]
        for item, frames in zip(versions, made, strict=True)
    ]


def _clip(frames: list[torch.Tensor], count: int) -> torch.Tensor:
    """Frames (3, H, W) and as many grey ones as are missing, (3, count, H, W)."""
    clip = torch.stack(frames, dim=1)
    return torch.nn.functional.pad(clip, (0, 0, 0, 0, 0, count - len(frames)))


def _key(item: Item, digest: str, signature: Settings) -> str:
    """Which latent: the frames of a clip count, a picture has none."""
    crop, frames = item.crop, item.picture.frames
    return cache_key(signature, "latent", digest, str(item.bucket), item.flip_x, item.flip_y, *crop, *frames)


def _encode(encode: Encode, pixels: torch.Tensor, item: Item) -> torch.Tensor:
    encoded = encode(pixels.unsqueeze(0))
    with host_memory():
        latent = encoded[0].detach().to("cpu", copy=True)
        finite = bool(torch.isfinite(latent).all())
    if not finite:
        raise NonFiniteError(
            N_(
                "{path}: the VAE returned NaN or infinity at {bucket}; expected numbers, which bf16 or float32"
                " instead of float16 usually gives."
            ),
            path=show(item.picture.path),
            bucket=str(item.bucket),
        )
    return latent


def _ahead(tasks: list[_Task], signature: Settings) -> Iterator[tuple[_Task, _Loaded | DataError]]:
    """Results of `_load` in the order of `tasks`, read a few pictures ahead and no more: pixels are large."""
    with ThreadPoolExecutor(READERS, thread_name_prefix="decode") as pool:
        waiting: deque[tuple[_Task, Future[_Loaded | DataError]]] = deque()
        for task in tasks:
            waiting.append((task, pool.submit(_load, task, signature)))
            # a clip's pixels are those of many pictures
            if len(waiting) > (1 if task.picture.frames else READERS):
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()

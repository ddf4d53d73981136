"""Tensors on disk, found again by what they were made from.

A key is a hash of everything that the tensors depend on (the bytes of the picture, the settings, the model),
so that a file is right for ever or never asked for again: nothing has to be invalidated. Files are written to
a temporary name and renamed when complete, so runs that are killed or that share a folder never see half of
one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import platformdirs
import safetensors.torch
import torch
from safetensors import SafetensorError

from plafond.data.images import show
from plafond.errors import OutOfSpaceError, PlafondError
from plafond.language.said import N_

logger = logging.getLogger(__name__)

VERSION = 1
"""Part of every key. Raised whenever the same inputs make other tensors."""

STALE_SECONDS = 24 * 3600.0
"""A temporary file this old was left by a run that was killed."""

Settings = Mapping[str, str | int | float]
Tensors = dict[str, torch.Tensor]

_TEMPORARY = ".writing-"


def cache_key(settings: Settings, *parts: str | int | float | None) -> str:
    """The key of tensors that depend on `settings` and `parts` alone: 64 hexadecimal digits."""
    text = json.dumps([VERSION, sorted(settings.items()), parts], ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def cache_folder(beside: Path, name: str) -> Path:
    """The folder `name` inside `beside`; in the user's cache folder when `beside` may not be written to.

    Keys do not depend on the folder, so data sets that share the user's folder do not get in each other's
    way.
    """
    folder = beside / name
    try:
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, prefix=_TEMPORARY):
            pass
    except OSError as error:
        if error.errno in _FULL:
            raise _out_of_space(folder) from error
        folder = platformdirs.user_cache_path("plafond") / name
        folder.mkdir(parents=True, exist_ok=True)
    return folder


class TensorCache:
    """Named tensors by key in the files of one folder, safe to share between runs.

    Args:
        folder: made when it is not there.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._sweep()

    def path(self, key: str) -> Path:
        """Where the tensors of `key` are or would be."""
        return self.folder / f"{key}.safetensors"

    def get(self, key: str) -> Tensors | None:
        """The tensors of `key` on the CPU; None when there are none or their file is damaged."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("%s: cannot be read (%s); it is made again.", show(path), error.strerror)
            return None
        tensors = _unpack(key, data)
        if tensors is None:
            logger.warning("%s: the cached file is damaged; it is made again.", show(path))
        return tensors

    def put(self, key: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Store `tensors` (any device, any layout) under `key`, completely or not at all.

        Raises:
            OutOfSpaceError: the disk is full.
            PlafondError: the folder cannot be written to.
        """
        try:
            write_whole(self.path(key), _pack(key, tensors))
        except OSError as error:
            if error.errno in _FULL:
                raise _out_of_space(self.folder) from error
            raise PlafondError(
                N_(
                    "{path}: the cache cannot be written to ({reason}); expected a folder that this user can write"
                    " to."
                ),
                path=show(self.folder),
                reason=str(error.strerror),
            ) from error

    def _sweep(self) -> None:
        """Remove what killed runs left behind; a young file may belong to a run that is still writing."""
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            try:
                if time.time() - path.stat().st_mtime > STALE_SECONDS:
                    path.unlink()
            except OSError:
                continue  # another run was quicker, or the folder is read-only


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def _out_of_space(folder: Path) -> OutOfSpaceError:
    return OutOfSpaceError(
        N_(
            "{path}: the disk is full, so the cache cannot grow; free some space and run the same command again."
        ),
        path=show(folder),
    )


def write_whole(path: Path, data: bytes) -> None:
    """Give `path` the content `data` in one instant: readers see the old file or all of the new one."""
    temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            temporary.replace(path)
        except PermissionError:
            # Windows refuses while another run reads the file, which then holds the same tensors.
            if not path.is_file():
                raise
    finally:
        temporary.unlink(missing_ok=True)


def _pack(key: str, tensors: Mapping[str, torch.Tensor]) -> bytes:
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    data: bytes = safetensors.torch.save(plain, metadata={"key": key, "checksum": _checksum(plain)})
    return data


def _unpack(key: str, data: bytes) -> Tensors | None:
    try:
        tensors = safetensors.torch.load(data)
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length])["__metadata__"]
        intact = metadata["key"] == key and metadata["checksum"] == _checksum(tensors)
    except (SafetensorError, ValueError, KeyError, TypeError):
        return None
    return tensors if intact else None


def _checksum(tensors: Tensors) -> str:
    """A hash of names, types, shapes and bytes: safetensors itself notices only a wrong length."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

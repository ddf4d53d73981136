"""Files that come from a browser: what is taken, how much of it, and that it is what its name says."""

from __future__ import annotations

import lzma
import os
import re
import secrets
import shutil
import zipfile
import zlib
from asyncio import to_thread
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from plafond.data.encodings import decode
from plafond.data.images import EXTENSIONS, load_rgb, show
from plafond.data.metadata import LIST_EXTENSIONS, read_list
from plafond.errors import DataError, OutOfSpaceError, PlafondError
from plafond.language.said import N_, ExactSize, Said, Value
from plafond.memory.gpus import GIB, MIB
from plafond.training.run_folder import out_of_space
from plafond.web.places import OutsideError, inside, is_inside, valid_name

TEXTS = frozenset({".txt", ".caption"})
VIDEOS = frozenset({".mp4", ".m4v", ".mov", ".webm", ".mkv", ".avi"})
LIMITS = {"picture": 256 * MIB, "text": MIB, "list": 64 * MIB, "video": 8 * GIB, "archive": 16 * GIB}
"""Most bytes of a file of each kind."""

MOST_ENTRIES = 100_000
"""Files in an archive."""

LEFT_BEHIND = re.compile(r"\.[^.]|__MACOSX$")
"""What systems leave in archives: hidden files and folders."""

SPARE = GIB
"""Bytes that uploads leave free on the disk."""

ENOUGH = 256
"""Pixels that are decoded of a picture's side to see that it is whole."""

_SIGNS = {b"ftyp": 4, b"\x1aE\xdf\xa3": 0, b"AVI ": 8}
"""Where the containers of videos say what they are."""


class TooLargeError(PlafondError):
    """A file is larger than what is taken."""

    exit_code = 2


class ExistsError(PlafondError):
    """Another file has the name already."""

    exit_code = 2


@dataclass
class Taken:
    """What came of an upload.

    Attributes:
        added: names of files that are new or have changed.
        same: names of files that were there already, byte for byte.
        refused: one sentence for each file that was not taken.
    """

    added: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    refused: list[Said] = field(default_factory=list)


def kind_of(name: str) -> str:
    """What a file is by its name.

    Raises:
        DataError: nothing that a data set can use.
    """
    suffix = PurePosixPath(name).suffix.lower()
    for kind, suffixes in (
        ("picture", EXTENSIONS),
        ("text", TEXTS),
        ("list", LIST_EXTENSIONS),
        ("video", VIDEOS),
        ("archive", {".zip"}),
    ):
        if suffix in suffixes:
            return kind
    raise DataError(
        N_(
            "{name}: {kind} is not taken; expected pictures (JPEG, PNG, WebP and more), captions (.txt), videos (MP4,"
            " WebM) or a .zip of these"
        ),
        name=name,
        kind=suffix or Said(N_("a file without an extension")),
    )


async def receive(folder: Path, name: str, body: AsyncIterator[bytes], *, replace: bool) -> Taken:
    """Write a file that comes in pieces into a data set; nothing is there before all of it has come.

    Args:
        folder: the data set.
        name: the file's own name.
        body: its bytes.
        replace: take the place of another file of that name.

    Raises:
        OutsideError: `name` is no name.
        DataError: it is not what its name says, or nothing that a data set can use.
        TooLargeError: it is larger than what is taken.
        ExistsError: another file has the name, and `replace` is not set.
        OutOfSpaceError: the disk is nearly full.
    """
    name = valid_name(name)
    kind = kind_of(name)
    with _temporary(folder, name) as temporary:
        with temporary.open("wb") as file:
            size = 0
            async for piece in body:
                size += len(piece)
                _refuse_too_much(name, size, LIMITS[kind])
                _refuse_full(folder, len(piece))
                with out_of_space(folder / name):
                    file.write(piece)
        if kind == "archive":
            return await to_thread(unpack, temporary, folder, replace=replace)
        taken = Taken()
        await to_thread(_keep, temporary, folder / name, kind, taken, folder=folder, replace=replace)
        return taken


def unpack(archive: Path, folder: Path, *, replace: bool) -> Taken:
    """Put the files of a zip archive into a data set, in the subfolders that it has them in.

    Entries that lead out of the folder, links, and what a data set cannot use are refused one by one.

    Raises:
        DataError: it is no archive, or one with a password.
        TooLargeError: it unpacks to more than what is taken.
    """
    taken = Taken()
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = [entry for entry in opened.infolist() if not entry.is_dir()]
            if len(entries) > MOST_ENTRIES:
                raise TooLargeError(
                    N_("the archive holds {count} files; at most {most} are taken"),
                    count=len(entries),
                    most=MOST_ENTRIES,
                )
            total = sum(entry.file_size for entry in entries)
            _refuse_too_much(Said(N_("the archive, unpacked")), total, LIMITS["archive"])
            _refuse_full(folder, total)
            for entry in entries:
                if any(map(LEFT_BEHIND.match, entry.filename.split("/"))):
                    continue
                try:
                    _entry(opened, entry, folder, taken, replace=replace)
                except (OutsideError, DataError, TooLargeError, ExistsError) as error:
                    taken.refused.append(error.said)
    except (
        zipfile.BadZipFile,
        EOFError,
        RuntimeError,
    ) as error:  # the last of a password or an unknown method
        raise DataError(N_("the archive cannot be unpacked: {reason}"), reason=str(error)) from error
    return taken


def _entry(
    opened: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, taken: Taken, *, replace: bool
) -> None:
    if (entry.external_attr >> 16) & 0o170000 == 0o120000:
        raise OutsideError(N_("{name}: links in archives are not taken"), name=entry.filename)
    names = [valid_name(part) for part in PurePosixPath(entry.filename).parts]
    kind = kind_of(names[-1])
    if kind == "archive":
        raise DataError(N_("{name}: archives in archives are not taken"), name=entry.filename)
    target = inside(folder, "/".join(names))
    target.parent.mkdir(parents=True, exist_ok=True)
    with _temporary(target.parent, names[-1]) as temporary:
        with _readable(entry), opened.open(entry) as source, temporary.open("wb") as file:
            _copy(source, file, entry.filename, min(LIMITS[kind], entry.file_size))
        _keep(temporary, target, kind, taken, folder=folder, replace=replace)


def _copy(source: IO[bytes], file: IO[bytes], name: str, limit: int) -> None:
    """Copy, but never more than the archive's own directory promised."""
    size = 0
    while piece := source.read(MIB):
        size += len(piece)
        _refuse_too_much(name, size, limit)
        file.write(piece)


def _keep(temporary: Path, target: Path, kind: str, taken: Taken, *, folder: Path, replace: bool) -> None:
    name = target.relative_to(folder).as_posix()
    _check(temporary, name, kind, folder)
    if os.path.lexists(target):
        if not target.is_symlink() and _equal(temporary, target):
            taken.same.append(name)
            return
        if not replace:
            raise ExistsError(N_("{name}: another file has this name"), name=name)
    temporary.replace(target)
    taken.added.append(name)


@contextmanager
def _readable(entry: zipfile.ZipInfo) -> Iterator[None]:
    """Refuse an entry whose bytes are damaged; each way of compression has an error of its own."""
    try:
        yield
    except (zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's; bzip2's have no number
        raise DataError(
            N_("{name}: the archive is damaged there: {reason}"), name=entry.filename, reason=str(error)
        ) from error


def _check(path: Path, name: str, kind: str, folder: Path) -> None:
    """Refuse a file whose content is something else than its name says."""
    if kind == "picture":
        with _as(name, path):
            load_rgb(path, side=ENOUGH)
    elif kind == "video":
        with path.open("rb") as file:
            head = file.read(16)
        if not any(head[place : place + len(sign)] == sign for sign, place in _SIGNS.items()):
            raise DataError(
                N_("{name}: the content is not a video; expected MP4, WebM, MKV or AVI"), name=name
            )
    else:
        text, encoding = decode(path.read_bytes())
        if "\0" in text or (encoding == "cp1252" and any(ord(mark) < 9 for mark in text)):
            raise DataError(N_("{name}: the content is not a text"), name=name)
        if kind == "list":
            _check_list(path, name, folder)


def _check_list(path: Path, name: str, folder: Path) -> None:
    """A list may only name pictures of its own data set."""
    named = path.with_name(f"{path.name}{PurePosixPath(name).suffix.lower()}")
    path.rename(named)
    try:
        with _as(name, named):
            rows, _ = read_list(named)
    finally:
        named.rename(path)
    for row in rows:
        if not is_inside(row.path, (folder,)):
            raise OutsideError(
                N_("{name}: it names {path}, which is not in this data set"), name=name, path=show(row.path)
            )


@contextmanager
def _as(name: str, path: Path) -> Iterator[None]:
    """Name a file in errors as its owner knows it, not where it lies for the time being."""
    try:
        yield
    except DataError as error:
        raise DataError(error.said.rewritten(lambda text: text.replace(show(path), name))) from error


def _equal(first: Path, second: Path) -> bool:
    if first.stat().st_size != second.stat().st_size:
        return False
    with first.open("rb") as a, second.open("rb") as b:
        while piece := a.read(MIB):
            if piece != b.read(MIB):
                return False
    return True


@contextmanager
def _temporary(folder: Path, name: str) -> Iterator[Path]:
    """A file beside the target that is gone afterwards, unless it was renamed."""
    path = folder / f".{secrets.token_hex(8)}{PurePosixPath(name).suffix}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _refuse_too_much(name: Value, size: int, limit: int) -> None:
    if size > limit:
        text = N_("{name}: it is larger than {most}, which is the most that is taken")
        raise TooLargeError(text, name=name, most=ExactSize(limit))


def _refuse_full(folder: Path, more: int) -> None:
    if shutil.disk_usage(folder).free < SPARE + more:
        raise OutOfSpaceError(
            N_("the disk of {folder} is nearly full; nothing more is taken"), folder=show(folder)
        )

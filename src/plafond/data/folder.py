"""From a data folder to its pictures and captions. Only headers are read: thousands of files take seconds.

What a folder may hold:

- pictures with a caption file of the same stem beside them, in any depth of subfolders; beside them clips, where the
  data set's settings ask for frames;
- subfolders named as in kohya's trainer, ``10_name``: seen 10 times per epoch, and ``name`` is the caption of
  pictures that have none. Up to three digits, so that a folder named after a year keeps its meaning;
- ``metadata.jsonl``, ``metadata.csv`` or ``metadata.json`` with captions for the pictures beside it.

Instead of a folder, such a list may be given itself; then its entries are the data set.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from plafond.data import clips
from plafond.data.encodings import read_text
from plafond.data.images import EXTENSIONS, read_size, show
from plafond.data.metadata import LIST_EXTENSIONS, LIST_NAMES, Row, read_list
from plafond.data.walk import walk
from plafond.errors import DataError
from plafond.language.said import N_, Inside, Said, Value, all_of, few

if TYPE_CHECKING:
    from plafond.job.dataset import DatasetConfig

FOREIGN_EXTENSIONS = frozenset(
    {".heic", ".heif", ".jxl", ".svg", ".eps", ".pdf", ".psb", ".xcf", ".kra"}
    | {".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf"}
)
"""Pictures to a person, but nothing that Pillow opens: naming them beats losing them in silence."""

_REPEATS = re.compile(r"([1-9]\d{0,2})_(.*)")


@dataclass(frozen=True)
class Picture:
    """One picture or clip of a data set.

    Args:
        path: the file.
        name: its path relative to `root` with forward slashes; unique in its data set and the same on every
            machine.
        root: the data set's folder, where caches live.
        width: in pixels, as a viewer shows the picture (EXIF orientation applied).
        height: likewise.
        caption: as written, before trigger words and tag shuffling; empty when there is none.
        caption_file: where the caption was read from; None for a default.
        repeats: how often it is seen per epoch.
        dataset: index of its data set in the job.
        controls: its control images (see `plafond.data.controls`).
        mask: a picture of how much each place counts (see `plafond.data.masks`).
        inpaint: a picture whose transparency is the hole that is to be filled.
        clip: length and rate of a clip; None for a picture.
        frames: numbers of the clip's frames that are trained on (see `plafond.data.clips`); empty for a picture.
    """

    path: Path
    name: str
    root: Path
    width: int
    height: int
    caption: str
    caption_file: Path | None
    repeats: int
    dataset: int
    controls: tuple[Picture, ...] = ()
    mask: Path | None = None
    inpaint: Path | None = None
    clip: clips.Clip | None = None
    frames: tuple[int, ...] = ()


@dataclass(frozen=True)
class Scan:
    """What a data set holds.

    Args:
        config: the data set's settings.
        pictures: in the order of their names.
        problems: one sentence for each thing that is not used, or not as its owner may think.
        notes: one sentence for each thing that is used and worth knowing.
    """

    config: DatasetConfig
    pictures: tuple[Picture, ...]
    problems: tuple[Said, ...]
    notes: tuple[Said, ...]


@dataclass
class _Found:
    """A file that may be a picture, with what its folder says about it."""

    path: Path
    repeats: int
    class_name: str
    siblings: dict[str, str]  # the files in its folder, by their names and by these in lower case
    row: Row | None = None


@dataclass
class _Log:
    problems: list[Said] = field(default_factory=list)
    notes: list[Said] = field(default_factory=list)

    def problem(self, text: str, **values: Value) -> None:
        """Something that is not used, or not as its owner may think."""
        self.problems.append(Said(text, values))

    def note(self, text: str, **values: Value) -> None:
        """Something that is used and worth knowing."""
        self.notes.append(Said(text, values))


def scan(config: DatasetConfig, index: int = 0) -> Scan:
    """Find the pictures of data set number `index` of a job.

    Raises:
        DataError: the folder is missing or holds nothing to train on; the message says what was looked for.
    """
    if not config.folder_path.strip():  # Path("") would be the working directory
        raise DataError(
            N_("datasets[{index}].folder_path: found an empty text; expected a folder of pictures."),
            index=index,
        )
    source, log = Path(config.folder_path).expanduser(), _Log()
    if source.is_dir():
        root, found = source, _search(source, config, log)
    elif source.is_file() and source.suffix.lower() in LIST_EXTENSIONS:
        root, found = source.parent, _listed(source, config, log)
    else:
        raise DataError(_missing(source))
    found.sort(key=lambda one: (one.path.as_posix().casefold(), one.path.as_posix()))
    pictures = [picture for one in found if (picture := _picture(one, root, index, config, log))]
    if not pictures:
        raise DataError(_empty(source, found, log.problems))
    _name_bare(source, pictures, config.caption_ext, log)
    return Scan(config, tuple(pictures), tuple(log.problems), tuple(log.notes))


def _picture(one: _Found, root: Path, index: int, config: DatasetConfig, log: _Log) -> Picture | None:
    ending, clip = one.path.suffix.lower(), None
    if ending in clips.EXTENSIONS - EXTENSIONS and not config.has_clips:
        log.problem(N_("{path}: a clip; expected a picture, or num_frames above 1."), path=show(one.path))
        return None
    try:
        if ending in clips.EXTENSIONS and config.has_clips:
            width, height, clip = clips.read_header(one.path)
        else:
            width, height = read_size(one.path)
    except DataError as error:
        log.problems.append(error.said)
        return None
    caption, caption_file = _caption(one, config, log)
    return Picture(
        path=one.path,
        name=_name(one.path, root),
        root=root,
        width=width,
        height=height,
        caption=caption,
        caption_file=caption_file,
        repeats=one.repeats * config.num_repeats,
        dataset=index,
        # a GIF of one frame is a picture
        clip=clip if clip is not None and (clip.count > 1 or ending not in EXTENSIONS) else None,
    )


def _name(path: Path, root: Path) -> str:
    try:
        return Path(os.path.relpath(path, root)).as_posix()
    except ValueError:  # a list on one Windows drive that names a picture on another
        return path.as_posix()


def _search(root: Path, config: DatasetConfig, log: _Log) -> list[_Found]:
    """Every file below `root` whose extension promises a picture."""
    found: list[_Found] = []
    wanted = EXTENSIONS | clips.EXTENSIONS if config.has_clips else EXTENSIONS
    left_out: list[str] = []
    other = [
        *config.control_path,
        *(path for path in (config.mask_path, config.inpaint_path) if path is not None),
    ]
    closed = {Path(os.path.realpath(Path(folder).expanduser())) for folder in other}
    for folder, names in walk(root, closed, log.problems):
        repeats, class_name = _kohya(folder.relative_to(root))
        siblings = {name.lower(): name for name in reversed(names)} | {name: name for name in names}
        rows = _metadata(folder, siblings, log)
        pictures = [name for name in names if Path(name).suffix.lower() in wanted]
        left_out += [name for name in names if Path(name).suffix.lower() in clips.EXTENSIONS - wanted]
        for name in pictures:
            path = folder / name
            if path.is_file():
                found.append(_Found(path, repeats, class_name, siblings, rows.get(path)))
            elif path.is_symlink():
                text = N_("{path}: a link to a file that is not there; expected a picture.")
                log.problem(text, path=show(path))
        if repeats > 1 and pictures:
            text = N_("{path}: each picture is seen {repeats} times per epoch, as its name says.")
            log.note(text, path=show(folder), repeats=repeats)
        _name_foreign(folder, names, log)
        _name_same_stem(folder, pictures, config.caption_ext, log)
    if left_out:
        text = N_("{path}: a clip is left out (for instance {clip}); num_frames above 1 trains on clips.")
        if len(left_out) > 1:
            text = N_(
                "{path}: {count} clips are left out (for instance {clip}); num_frames above 1 trains on clips."
            )
        log.problem(text, path=show(root), count=len(left_out), clip=show(left_out[0]))
    return found


def _kohya(relative: Path) -> tuple[int, str]:
    """Repeats and class name of the nearest folder called like ``10_name``; 1 and nothing without one."""
    for part in reversed(relative.parts):
        if match := _REPEATS.fullmatch(part):
            return int(match[1]), match[2].strip()
    return 1, ""


def _metadata(folder: Path, siblings: dict[str, str], log: _Log) -> dict[Path, Row]:
    rows: dict[Path, Row] = {}
    for name in LIST_NAMES:
        if name not in siblings:
            continue
        try:
            listed, problems = read_list(folder / siblings[name])
        except DataError as error:
            log.problems.append(error.said)
            continue
        log.problems += problems
        for row in listed:
            if not row.path.is_file():
                log.problem(N_("{place}: {path} is not there."), place=row.place, path=show(row.path))
            elif row.path in rows:
                text = N_("{place}: {path} is listed twice; the first caption is used.")
                log.problem(text, place=row.place, path=show(row.path))
            else:
                rows[row.path] = row
    return rows


def _listed(source: Path, config: DatasetConfig, log: _Log) -> list[_Found]:
    """The entries of a list that is itself the data set; naming a picture twice shows it twice."""
    rows, problems = read_list(source)
    log.problems += problems
    found = []
    for row in rows:
        if row.path.is_file():
            # An entry's own caption wins here: the list was chosen, the file beside the picture only found.
            caption = row.path.with_suffix(config.caption_ext).name
            beside = not (row.caption or row.short) and row.path.with_name(caption).is_file()
            siblings = {caption: caption} if beside else {}
            found.append(_Found(row.path, 1, "", siblings, row))
        else:
            text = N_("{place}: {path} is not there; expected a picture.")
            log.problem(text, place=row.place, path=show(row.path))
    return found


def _caption(one: _Found, config: DatasetConfig, log: _Log) -> tuple[str, Path | None]:
    """The caption file beside the picture, else its entry in a list, the default, the folder's class."""
    stem, ext = one.path.stem, config.caption_ext
    # The extension may be in capitals; a stem in other capitals may belong to another picture.
    name = one.siblings.get(stem + ext) or one.siblings.get((stem + ext).lower())
    if name is not None and Path(name).stem == stem:
        path = one.path.with_name(name)
        try:
            text, encoding = read_text(path)
        except DataError as error:
            log.problems.append(error.said)
        else:
            if encoding == "cp1252":
                log.note(N_("{path}: not UTF-8, read as Windows-1252."), path=show(path))
            if text:
                return text, path
    if one.row is not None:
        text = (
            (one.row.short if config.use_short_captions else None) or one.row.caption or one.row.short or ""
        )
        if text:
            return text, None
    return (config.default_caption or one.class_name).strip(), None


def _name_bare(source: Path, pictures: list[Picture], caption_ext: str, log: _Log) -> None:
    bare = [picture for picture in pictures if not picture.caption]
    if bare:
        log.note(
            N_(
                "{path}: {bare} of {all} pictures have no caption (for instance {picture}, expected in {file})."
            ),
            path=show(source),
            bare=len(bare),
            all=len(pictures),
            picture=show(bare[0].name),
            file=show(bare[0].path.with_suffix(caption_ext).name),
        )


def _name_foreign(folder: Path, names: Iterable[str], log: _Log) -> None:
    for name in names:
        if (ext := Path(name).suffix.lower()) in FOREIGN_EXTENSIONS - EXTENSIONS:
            text = N_("{path}: {ext} pictures cannot be opened; convert it to JPEG, PNG or WebP.")
            log.problem(text, path=show(folder / name), ext=ext)


def _name_same_stem(folder: Path, pictures: Iterable[str], caption_ext: str, log: _Log) -> None:
    by_stem = defaultdict(list)
    for name in pictures:
        by_stem[Path(name).stem].append(show(name))
    for stem, names in by_stem.items():
        if len(names) > 1:
            text = N_(
                "{path}: {names} share one stem and so one caption file ({file}); all are used, rename them if their"
                " captions differ."
            )
            log.problem(text, path=show(folder), names=all_of(names), file=show(stem + caption_ext))


def _missing(source: Path) -> Said:
    path = show(source)
    if source.exists():
        lists = tuple(sorted(LIST_EXTENSIONS))
        text = N_("{path}: found a file; expected a folder of pictures or a list of them ({lists}).")
        return Said(text, {"path": path, "lists": lists})
    nearby = (
        [path.name for path in source.parent.iterdir() if path.is_dir()] if source.parent.is_dir() else []
    )
    close = get_close_matches(source.name, nearby, n=1)
    if not close:
        return Said(N_("{path}: there is no such folder; expected a folder of pictures."), {"path": path})
    text = N_("{path}: there is no such folder (did you mean {near}?); expected a folder of pictures.")
    return Said(text, {"path": path, "near": show(source.parent / close[0])})


def _empty(source: Path, found: list[_Found], problems: list[Said]) -> Said:
    inside = [Inside(problem) for problem in problems]
    if found:
        text = N_("{path}: none of its {count} pictures can be read ({problems}).")
        return Said(text, {"path": show(source), "count": len(found), "problems": few(inside, 1)})
    where = Said(N_("in all subfolders"))
    if inside:
        where = Said(N_("in all subfolders ({problem})"), {"problem": inside[0]})
    text = N_(
        "{path}: no pictures were found; looked for .jpg, .jpeg, .png, .webp and {count} more extensions that Pillow"
        " opens, {where}."
    )
    return Said(text, {"path": show(source), "count": len(EXTENSIONS) - 4, "where": where})

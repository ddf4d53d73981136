"""The run's folder: ``<training_folder>/<name>/`` and what stands in it.

::

    <name>_000000250.safetensors   a save at step 250
    <name>.safetensors             the final weights
    samples/                       previews: <unix ms>__<step>_<index>.jpg
    resume/                        optimizer state and weights of the newest saves
    config.yaml                    the job as it was run
    log.txt                        what plafond and its libraries had to say
    metrics.jsonl                  one line per step
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import Any

from plafond.errors import OutOfSpaceError, UsageError
from plafond.language.said import N_


class RunFolder:
    """Paths of one run, and the lock that keeps two processes out of one folder.

    Args:
        training_folder: where runs are.
        name: the run's.
        parts: a save is a file for each of these, with their names behind its own; one file without any.
    """

    def __init__(self, training_folder: str | Path, name: str, parts: Sequence[str] = ()):
        self.name, self.parts = name, tuple(f"_{part}" for part in parts) or ("",)
        self.path = Path(training_folder).expanduser() / name
        self.samples = self.path / "samples"
        self.resume = self.path / "resume"
        self.log = self.path / "log.txt"
        self.metrics = self.path / "metrics.jsonl"
        self.final = self.path / f"{name}.safetensors"

    def milestone(self, step: int) -> Path:
        """The weights saved at a step."""
        return self.path / f"{self.name}_{step:09d}.safetensors"

    def milestones(self) -> list[tuple[int, Path]]:
        """Saves that exist (files, or folders of full fine-tunes), by step. Other files of that prefix are not ours."""
        endings = "|".join(map(re.escape, self.parts))
        pattern = re.compile(re.escape(self.name) + rf"_(\d{{9}})(?:{endings})(\.safetensors)?")
        found = [(pattern.fullmatch(path.name), path) for path in self.path.glob(f"{self.name}_*")]
        return sorted((int(match[1]), path) for match, path in found if match)

    def keep_newest(self, count: int) -> None:
        """Delete saves beyond those of the newest `count` steps."""
        found = self.milestones()
        newest = sorted({step for step, _ in found})[-count:]
        for step, path in found:
            if step not in newest:
                remove(path)

    def finals(self) -> list[Path]:
        """The final weights that exist."""
        files = (self.final.with_stem(f"{self.name}{part}") for part in self.parts)
        return [path for path in files if path.exists()]

    def sample(self, step: int, index: int, extension: str) -> Path:
        """A new preview file, named as AI Toolkit names them."""
        return self.samples / f"{time.time_ns() // 1_000_000}__{step:09d}_{index}.{extension}"

    def previews(self) -> dict[int, dict[int, Path]]:
        """Preview files by step and index; of several for one place, the newest."""
        pattern = re.compile(r"\d+__(\d{9})_(\d+)\.\w+")
        found: dict[int, dict[int, Path]] = {}
        for path in sorted(self.samples.glob("*__*")):
            if match := pattern.fullmatch(path.name):
                found.setdefault(int(match[1]), {})[int(match[2])] = path
        return found

    def set_aside(self) -> Path | None:
        """Rename an existing folder out of the way (``--fresh``); nothing is deleted."""
        if not self.path.exists():
            return None
        name = f"{self.name}-before-{time.strftime('%Y%m%d-%H%M%S')}"
        names = chain(
            [name], (f"{name}-{number}" for number in count(2))
        )  # there may be another of this second
        target = next(path for path in map(self.path.with_name, names) if not path.exists())
        self.path.rename(target)
        return target

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; the lock dies with it.

        Raises:
            UsageError: another process is training into this folder.
        """
        from filelock import FileLock, Timeout

        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise UsageError(
                N_("{path} is in use by another plafond train; stop it or choose another --name"),
                path=self.path,
            ) from error
        try:
            yield
        finally:
            lock.release()

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add one line to ``metrics.jsonl``."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """All complete lines of ``metrics.jsonl``; a line torn by a crash is left out."""
        if not self.metrics.exists():
            return []
        rows = []
        for line in self.metrics.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return rows

    def rewind_metrics(self, step: int) -> None:
        """Drop lines after `step`: they will be written again."""
        kept = [json.dumps(row) for row in self.read_metrics() if row.get("step", 0) <= step]
        write_atomically(self.metrics, lambda path: _write_text(path, "".join(line + "\n" for line in kept)))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def write_atomically(target: Path, write: Callable[[Path], None]) -> None:
    """Write a file or folder so that a crash at any instant leaves the old one or the new one.

    Args:
        target: where it shall be; replaced if it exists.
        write: writes to the temporary path that it is given.

    Raises:
        OutOfSpaceError: the disk is full; the temporary file is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with out_of_space(target):
            write(temporary)
            _sync(temporary)
        temporary.replace(target)
        _sync(target.parent)
    finally:
        remove(temporary)


def in_order_of_time(logs: Iterable[Path]) -> list[Path]:
    """Those of some logs that are there; what was written last comes last."""
    return sorted(filter(Path.is_file, logs), key=lambda path: path.stat().st_mtime)


@contextmanager
def out_of_space(target: Path) -> Iterator[None]:
    """Turn "no space left", however a library words it, into one sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        # safetensors and torch.save report the system's error only in their text
        text = str(error).lower()
        if not (full or "no space left" in text or "os error 28" in text or "file write failed" in text):
            raise
        raise OutOfSpaceError(
            N_("the disk is full: {path} was not written; the last complete save is intact"), path=target
        ) from error


def remove(path: Path) -> None:
    """Delete a file or a folder of ours, if it exists."""
    if path.is_dir():
        for child in path.iterdir():
            remove(child)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    if path.is_dir():
        for child in path.iterdir():
            if child.is_file():
                _sync_file(child)
    if os.name == "posix" or path.is_file():
        _sync_file(path)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

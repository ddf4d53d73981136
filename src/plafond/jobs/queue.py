"""What can be done with jobs, by the terminal, the page and the API alike: add, change, start, stop, clone, remove."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from plafond.errors import UsageError
from plafond.job.editing import set_value
from plafond.job.reading import job_of
from plafond.job.schema import Job
from plafond.jobs.run import RunFiles, process_of
from plafond.jobs.store import (
    ACTIVE,
    DRAFT,
    GC_TEST,
    IDLE,
    QUEUED,
    RUNNING,
    STOPPED,
    STOPPING,
    Entry,
    Store,
    folder_taken,
)
from plafond.language.said import N_, Said
from plafond.training.run_folder import RunFolder

ALREADY = N_("job {number} is {state} already")


@dataclass(frozen=True, slots=True)
class Where:
    """On what a job runs.

    Args:
        device: ``cpu`` or ``cuda:N``.
        vram: the ceiling as ``--vram``.
        gpu: the ceiling as ``--gpu``.
    """

    device: str
    vram: str | None = None
    gpu: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> Where:
        """Where a job runs now."""
        return cls(entry.device, entry.vram, entry.gpu)


def read(text: str, *, suffix: str, folder: Path, overrides: tuple[str, ...] = (), name: str = "job") -> Job:
    """A job from its text, as it would be run in `folder`.

    Raises:
        PlafondError: it cannot be run as written.
    """
    return job_of(text, folder / f"{name}{suffix}", overrides=overrides)


def run_folders(job: Job, folder: Path) -> list[str]:
    """Where each process of a job writes, as absolute paths."""
    found = []
    for process in job.processes:
        base = Path(process.training_folder).expanduser()
        found.append(str((folder / base / (process.name or job.name)).resolve()))
    return found


def add(
    store: Store,
    text: str,
    *,
    suffix: str,
    folder: Path,
    where: Where,
    overrides: tuple[str, ...] = (),
) -> Entry:
    """Add a job without queueing it. A job whose run folder is known and at rest takes the new text and settings.

    Raises:
        PlafondError: the job cannot be run as written.
        UsageError: the run folder belongs to a job that is queued or running.
    """
    job = read(text, suffix=suffix, folder=folder, overrides=overrides)
    folders = run_folders(job, folder)
    values = {
        "name": job.name,
        "text": text,
        "suffix": suffix,
        "folder": str(folder),
        "run_folder": folders[0],
        "run_folders": folders,
        "steps": _steps(job),
        "overrides": list(overrides),
        **asdict(where),
    }
    known = store.of_run(folders[0])
    if known is not None and store.change(known.id, IDLE, **values):
        return store.job(known.id)
    return store.add(**values)


def change(store: Store, entry: Entry, text: str, where: Where) -> Entry:
    """Give a job another text, device or ceiling.

    Raises:
        PlafondError: it cannot be run as written.
        UsageError: a process works on it, or its run folder belongs to another job.
    """
    job = read(text, suffix=entry.suffix, folder=Path(entry.folder), overrides=tuple(entry.overrides))
    folders = run_folders(job, Path(entry.folder))
    other = store.of_run(folders[0])
    if other is not None and other.id != entry.id:
        raise folder_taken(other)
    values = {"text": text, "name": job.name, "run_folder": folders[0], "run_folders": folders}
    if not store.change(entry.id, (*IDLE, QUEUED), **values, **asdict(where), steps=_steps(job)):
        raise UsageError(N_("job {number} is running; stop it before it is changed"), number=entry.id)
    return store.job(entry.id)


def start(
    store: Store, entry: Entry, *, force: bool = False, fresh: bool = False, front: bool = False
) -> Entry:
    """Queue a job; one that was stopped, failed or done goes on where it was saved.

    Args:
        store: the jobs.
        entry: the job.
        force: run it although the plan says that it does not fit.
        fresh: set its earlier run aside first; nothing is deleted.
        front: in front of the others that wait.

    Raises:
        UsageError: it is queued or running already.
    """
    if entry.state not in IDLE:
        raise UsageError(ALREADY, number=entry.id, state=Said(entry.state))
    if fresh:
        for path in map(Path, entry.run_folders):
            RunFolder(path.parent, path.name).set_aside()
    files = RunFiles(store.home.run(entry.id))
    # what an earlier attempt was told, and said
    for file in (files.stop, files.ended):
        file.unlink(missing_ok=True)
    values = {"queued": time.time(), "message": "", "code": None, "fruitless": 0, "force": force}
    if not store.enqueue(entry.id, IDLE, front=front, **values):
        raise UsageError(ALREADY, number=entry.id, state=_state(store, entry))
    return store.job(entry.id)


def to_front(store: Store, entry: Entry) -> Entry:
    """Put a job that waits in front of the others.

    Raises:
        UsageError: it does not wait.
    """
    if not store.enqueue(entry.id, (QUEUED,), front=True):
        raise UsageError(
            N_("job {number} is {state}, not queued"), number=entry.id, state=_state(store, entry)
        )
    return store.job(entry.id)


def stop(store: Store, entry: Entry) -> Entry:
    """Take a job out of the queue, or ask its process to save and stop, as Ctrl-C does.

    Raises:
        UsageError: nobody works on it.
    """
    if store.change(entry.id, (QUEUED,), state=STOPPED if entry.attempts else DRAFT):
        return store.job(entry.id)
    if not store.change(entry.id, ACTIVE, state=STOPPING):
        raise UsageError(
            N_("job {number} is {state}, not running"), number=entry.id, state=_state(store, entry)
        )
    files = RunFiles(store.home.run(entry.id))
    files.folder.mkdir(parents=True, exist_ok=True)
    files.stop.touch()
    return store.job(entry.id)


def kill(store: Store, entry: Entry) -> Entry:
    """End the process of a job at once; what was saved last is kept.

    Raises:
        UsageError: nobody works on it, or its process is not known yet.
    """
    entry = stop(store, entry) if entry.state in (QUEUED, RUNNING) else entry
    if entry.state not in ACTIVE:
        return entry
    process = RunFiles(store.home.run(entry.id))
    known = process.read(process.process) or {"pid": entry.pid, "started": entry.pid_started}
    running = process_of(known["pid"], known["started"])
    if running is not None:
        with suppress(psutil.NoSuchProcess):
            running.kill()
    return store.job(entry.id)


def gc_test(store: Store, entry: Entry) -> Entry:
    """Queue the experiment of turning checkpointing off for a job; its run folder is not touched.

    Raises:
        UsageError: it is queued or running already.
    """
    first = Path(entry.run_folder)
    folder = str(first.parent / "gc-test" / first.name)
    same = {
        name: getattr(entry, name)
        for name in ("text", "suffix", "folder", "device", "vram", "gpu", "overrides")
    }
    values = {
        "name": f"{entry.name} · gc-test",
        "steps": 0,
        "parent": entry.id,
        "run_folders": [folder],
        **same,
    }
    known = store.of_run(folder)
    if known is None:
        known = store.add(kind=GC_TEST, run_folder=folder, **values)
    else:
        store.change(known.id, IDLE, **values)
    return start(store, known)


def clone(store: Store, entry: Entry) -> Entry:
    """The same job under a name that is free, not queued.

    Raises:
        UsageError: its text does not let its name be changed.
    """
    job = read(entry.text, suffix=entry.suffix, folder=Path(entry.folder), overrides=tuple(entry.overrides))
    name = free_name(store, job, Path(entry.folder))
    text = set_value(entry.text, ("config", "name"), name, suffix=entry.suffix)
    return add(
        store,
        text,
        suffix=entry.suffix,
        folder=Path(entry.folder),
        where=Where.of(entry),
        overrides=tuple(entry.overrides),
    )


def free_name(store: Store, job: Job, folder: Path) -> str:
    """The job's name, with a number behind it that no other job and no run folder has."""
    stem = re.sub(r"-\d+$", "", job.name)
    for number in range(2, 10_000):
        name = f"{stem}-{number}"
        (first, *_) = run_folders(replace(job, name=name), folder)
        if store.of_run(first) is None and not Path(first).exists():
            return name
    raise UsageError(N_("{name} was cloned too often; give the new job a name of its own"), name=job.name)


def forget(store: Store, entry: Entry, *, files: bool = False) -> None:
    """Remove a job from the list.

    Args:
        store: the jobs.
        entry: the job.
        files: delete its run folders, too.

    Raises:
        UsageError: it is queued or running.
    """
    if not store.delete(entry.id):
        raise UsageError(
            N_("job {number} is {state}; stop it first"), number=entry.id, state=_state(store, entry)
        )
    shutil.rmtree(store.home.run(entry.id), ignore_errors=True)
    if files:
        for path in map(Path, entry.run_folders):
            if not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)


def _state(store: Store, entry: Entry) -> Said:
    """A job's state now."""
    return Said(store.job(entry.id).state)


def _steps(job: Job) -> int:
    return sum(process.train.steps for process in job.processes)

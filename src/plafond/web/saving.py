"""Writing a job that was edited on the page, or sent to its API, into the queue."""

from __future__ import annotations

from pathlib import Path

from plafond.errors import UsageError
from plafond.job.reading import job_of
from plafond.job.schema import Job
from plafond.job.wording import expanded
from plafond.jobs import queue
from plafond.jobs.queue import Where
from plafond.jobs.store import Entry
from plafond.language.said import N_, Said
from plafond.web.draft import Check
from plafond.web.site import Site


def folder_of(site: Site, entry: Entry | None) -> Path:
    """Where the relative paths of a job start: the home folder, or where its user stood in the terminal."""
    return site.home.path if entry is None else Path(entry.folder)


def checker(site: Site, entry: Entry | None = None) -> Check:
    """What refuses a job that reads or writes where the page may not; what a job of the terminal has already may stay.

    Args:
        site: the page's.
        entry: the job as it is, when it is not a new one.
    """
    folder = folder_of(site, entry)
    known: Job | None = None
    if entry is not None and folder != site.home.path:
        known = job_of(entry.text, Path(f"job{entry.suffix}"), overrides=entry.overrides)

    def check(job: Job) -> None:
        site.places.check(job, folder, known)

    return check


def save(site: Site, text: str, suffix: str, where: Where, entry: Entry | None = None) -> Entry:
    """Add a job or change one; it is not queued by this.

    Raises:
        PlafondError: it cannot be run as written, or may not be by this page.
        UsageError: another job has its name, or a process works on it.
    """
    folder = folder_of(site, entry)
    overrides = () if entry is None else tuple(entry.overrides)
    job = queue.read(text, suffix=suffix, folder=folder, overrides=overrides)
    checker(site, entry)(job)
    if entry is not None:
        return queue.change(site.store, entry, text, where)
    other = site.store.of_run(queue.run_folders(job, folder)[0])
    if other is not None:
        raise UsageError(
            N_("there is a job {name} already ({state}); give this one another name"),
            name=repr(other.name),
            state=Said(other.state),
        )
    return queue.add(site.store, text, suffix=suffix, folder=folder, where=where)


def refuse_missing(job: Job, folder: Path) -> None:
    """Say before a job is queued that a folder of pictures is not there.

    Raises:
        JobError: with its key and line.
    """
    for index, process in enumerate(job.processes):
        for number, data in enumerate(process.datasets):
            for key, path in (
                ("folder_path", data.folder_path),
                *(("control_path", one) for one in data.control_path),
            ):
                if not (folder / expanded(path)).exists():
                    raise job.error(
                        f"datasets.{number}.{key}", N_("no such folder: {path}"), process=index, path=path
                    )

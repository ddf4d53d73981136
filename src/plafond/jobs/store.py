"""Jobs in SQLite: written ahead, so that readers and writers do not wait for each other, and synced at each commit.

Every change is one statement that names the states it may start from. So two processes can never both take a job, and
there is nothing to repair after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from filelock import FileLock
from sqlalchemy import JSON, Engine, create_engine, delete, event, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column

from plafond.errors import PlafondError, UsageError
from plafond.jobs.home import Home
from plafond.language.said import N_, Said

VERSION = 1
"""Of the tables, as SQLite's ``user_version``."""

DRAFT, QUEUED, RUNNING, STOPPING = N_("draft"), N_("queued"), N_("running"), N_("stopping")
STOPPED, DONE, FAILED = N_("stopped"), N_("done"), N_("failed")
STATES = (DRAFT, QUEUED, RUNNING, STOPPING, STOPPED, DONE, FAILED)

ACTIVE = (RUNNING, STOPPING)
"""A process works on the job, or did until it was killed."""

IDLE = (DRAFT, STOPPED, DONE, FAILED)
"""Nobody works on the job or is about to."""

TRAIN, GC_TEST = "train", "gc_test"

PLACE = ("device", "vram", "gpu", "force")
"""What decides where a job may run, and beside which others."""

PATIENCE = 30.0
"""Seconds to wait for another process's transaction, which takes milliseconds."""


class NoJobError(UsageError):
    """There is no job of that number."""


class _Base(MappedAsDataclass, DeclarativeBase):
    pass


class Entry(_Base, kw_only=True):
    """One job of the queue. Times are seconds since 1970.

    Args:
        id: its number.
        name: name of the job and of its run.
        kind: ``train``, or ``gc_test`` for the experiment of another job.
        parent: the job that an experiment belongs to.
        text: the job file.
        suffix: of the job file; tells YAML from JSON.
        folder: where relative paths of the job start.
        run_folder: of its first process; no two jobs share it.
        run_folders: of all its processes.
        steps: of all its processes.
        device: ``cpu`` or ``cuda:N``.
        vram: the ceiling as ``--vram``.
        gpu: the ceiling as ``--gpu``.
        overrides: ``--set`` of the command line.
        force: run it although the plan says that it does not fit.
        state: one of `STATES`.
        position: its place in the queue; smaller ones come first.
        attempts: how often a process was started for it.
        fruitless: how many of the last attempts died without a word and without having got further.
        reached: steps that were saved when the last attempt started.
        pid: of the process that works on it.
        pid_started: when that process was started, by its own account; a number may be given to another process later.
        code: exit code of the last attempt.
        message: what the last attempt had to say when it failed.
        created: when it was added.
        queued: when it was queued last.
        started: when it was started last.
        ended: when it ended last.
    """

    __tablename__ = "jobs"

    id: Mapped[int] = mapped_column(primary_key=True, default=None)
    name: Mapped[str]
    text: Mapped[str]
    suffix: Mapped[str]
    folder: Mapped[str]
    run_folder: Mapped[str] = mapped_column(unique=True)
    run_folders: Mapped[list[str]] = mapped_column(JSON)
    steps: Mapped[int]
    device: Mapped[str]
    kind: Mapped[str] = mapped_column(default=TRAIN)
    parent: Mapped[int | None] = mapped_column(default=None)
    vram: Mapped[str | None] = mapped_column(default=None)
    gpu: Mapped[str | None] = mapped_column(default=None)
    overrides: Mapped[list[str]] = mapped_column(JSON, default_factory=list)
    force: Mapped[bool] = mapped_column(default=False)
    state: Mapped[str] = mapped_column(default=DRAFT)
    position: Mapped[int] = mapped_column(default=0)
    attempts: Mapped[int] = mapped_column(default=0)
    fruitless: Mapped[int] = mapped_column(default=0)
    reached: Mapped[int] = mapped_column(default=0)
    pid: Mapped[int | None] = mapped_column(default=None)
    pid_started: Mapped[float | None] = mapped_column(default=None)
    code: Mapped[int | None] = mapped_column(default=None)
    message: Mapped[str] = mapped_column(default="")
    created: Mapped[float] = mapped_column(default_factory=time.time)
    queued: Mapped[float | None] = mapped_column(default=None)
    started: Mapped[float | None] = mapped_column(default=None)
    ended: Mapped[float | None] = mapped_column(default=None)


class Store:
    """The jobs of one home folder."""

    def __init__(self, home: Home):
        home.make()
        self.home = home
        url = f"sqlite:///{home.database}"
        # one statement is one transaction
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT", connect_args={"timeout": PATIENCE})
        event.listen(self._engine, "connect", _set_up)
        _make_tables(self._engine, home)

    def jobs(self, *, states: Collection[str] = STATES, device: str | None = None) -> list[Entry]:
        """Jobs in these states: those that run first, then the queue in its order, then the others, newest first."""
        wanted = select(Entry).where(Entry.state.in_(states))
        if device is not None:
            wanted = wanted.where(Entry.device == device)
        with Session(self._engine, expire_on_commit=False) as session:
            found = list(session.scalars(wanted))
        return sorted(found, key=_order)

    def job(self, number: int) -> Entry:
        """One job.

        Raises:
            NoJobError: there is none of that number.
        """
        with Session(self._engine, expire_on_commit=False) as session:
            found = session.get(Entry, number)
        if found is None:
            raise NoJobError(
                N_("there is no job {number}; `plafond queue list` shows those that there are"), number=number
            )
        return found

    def of_run(self, run_folder: str) -> Entry | None:
        """The job whose run folder this is."""
        with Session(self._engine, expire_on_commit=False) as session:
            return session.scalars(select(Entry).where(Entry.run_folder == run_folder)).one_or_none()

    def add(self, **values: Any) -> Entry:
        """Add a job.

        Raises:
            UsageError: another job has its run folder.
        """
        values.setdefault("created", time.time())
        try:
            with Session(self._engine) as session:
                number = session.scalars(insert(Entry).values(values).returning(Entry.id)).one()
        except IntegrityError:
            other = self.of_run(values["run_folder"])
            if other is None:
                raise
            raise folder_taken(other) from None
        return self.job(number)

    def change(self, number: int, within: Collection[str], **values: Any) -> bool:
        """Change a job that is in one of these states; False when it is not."""
        statement = update(Entry).where(Entry.id == number, Entry.state.in_(within)).values(values)
        with self._engine.connect() as connection:
            return connection.execute(statement).rowcount == 1

    def enqueue(self, number: int, within: Collection[str], *, front: bool = False, **values: Any) -> bool:
        """Put a job at the end of the queue, or at its front; False when its state does not allow it."""
        jobs = Entry.__table__
        end = func.min(jobs.c.position) - 1 if front else func.max(jobs.c.position) + 1
        place = select(func.coalesce(end, 0)).where(jobs.c.state == QUEUED).scalar_subquery()
        return self.change(number, within, state=QUEUED, position=place, **values)

    def claim(self, device: str, may: Callable[[Entry], bool] = lambda entry: True) -> Entry | None:
        """Take the next job of a device's queue; None when it is empty, or when the next one may not start yet."""
        while True:
            waiting = self.jobs(states=(QUEUED,), device=device)
            if not waiting or not may(waiting[0]):
                return None
            taken = {"state": RUNNING, "started": time.time(), "ended": None, "code": None, "message": ""}
            first = waiting[0]
            # the job as it was looked at: who waits may be given another device or ceiling at any time
            same = (getattr(Entry, name) == getattr(first, name) for name in PLACE)
            statement = update(Entry).where(Entry.id == first.id, Entry.state == QUEUED, *same)
            statement = statement.values(attempts=Entry.attempts + 1, pid=None, **taken)
            with self._engine.connect() as connection:
                if connection.execute(statement).rowcount == 1:
                    return self.job(first.id)

    def delete(self, number: int) -> bool:
        """Forget a job that nobody works on; False when somebody does."""
        statement = delete(Entry).where(Entry.id == number, Entry.state.in_(IDLE))
        with self._engine.connect() as connection:
            return connection.execute(statement).rowcount == 1


def folder_taken(other: Entry) -> UsageError:
    """The error of a job whose run folder is another one's."""
    return UsageError(
        N_("job {number} ({state}) writes into {folder} already; give this one another name"),
        number=other.id,
        state=Said(other.state),
        folder=other.run_folder,
    )


def _order(entry: Entry) -> tuple[int, float]:
    if entry.state in ACTIVE:
        return 0, entry.started or 0.0
    if entry.state == QUEUED:
        return 1, float(entry.position)
    return 2, -max(entry.created, entry.ended or 0.0)


def _set_up(connection: Any, record: object) -> None:
    for setting in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {setting}")


def _make_tables(engine: Engine, home: Home) -> None:
    """Make what is missing.

    Raises:
        PlafondError: the database is from a later plafond.
    """
    with FileLock(home.path / ".tables.lock"), engine.connect() as connection:
        version = connection.execute(text("PRAGMA user_version")).scalar_one()
        if version > VERSION:
            raise PlafondError(
                N_(
                    "{file} was made by a later version of plafond ({version}; this one knows {known}); update plafond"
                ),
                file=home.database,
                version=int(version),
                known=VERSION,
            )
        if version < VERSION:
            _Base.metadata.create_all(connection)
            connection.execute(text(f"PRAGMA user_version = {VERSION}"))

"""The worker of one device: ``python -m plafond.jobs.worker HOME DEVICE``.

It holds the device's lock while it lives, takes jobs in the order of the queue, and ends when nothing is queued. A
job starts when the device is empty, or when its ceiling fits beside the ceilings of those that run; until then it
waits, and those behind it do. The worker may be killed at any instant: what it started goes on, and the next worker
finds it by its lock, and what it may take by its entry.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from plafond.jobs.cards import Card, Held, share
from plafond.jobs.devices import CPU
from plafond.jobs.home import Home
from plafond.jobs.run import INTERRUPTED, LOCK_SECONDS, TAKEN, RunFiles, process_of
from plafond.jobs.store import ACTIVE, DONE, FAILED, QUEUED, RUNNING, STOPPED, STOPPING, TRAIN, Entry, Store
from plafond.language.said import N_, Said
from plafond.language.speech import choose, speaker

POLL_SECONDS = 0.2

LOOK_SECONDS = 1.0
"""Time between two looks at the queue while jobs run and leave room."""

FRUITLESS = 5
"""So many attempts in a row that die without a word and get no further end a job: something kills it, always."""

KILLED = N_(
    "its process was killed {times} times in a row and got no further; the system kills what takes more main memory"
    " than there is"
)

log = logging.getLogger("plafond.worker")


def main() -> None:
    """Work until nothing is queued; another worker of the device makes this one superfluous."""
    home, device = Home(sys.argv[1]).make(), sys.argv[2]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    lock = FileLock(home.lock(device))
    try:
        # one that is about to end may have looked at the queue just before this one's job came
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        return
    Worker(Store(home), device, None if device == CPU else Card(device).capacity).work()


@dataclass
class Attempt:
    """A job that a process works on.

    Args:
        entry: the job as it was when the attempt began, or was found.
        pid: of the process, where it is known.
        process: the process; None where another worker started it.
    """

    entry: Entry
    pid: int | None
    process: subprocess.Popen[bytes] | None = None


class Worker:
    """Runs the jobs of one device. Whoever makes one holds the device's lock.

    Args:
        store: the jobs.
        device: ``cpu`` or ``cuda:N``.
        capacity: bytes that jobs may take together, told those that run; None where one runs at a time.
    """

    def __init__(self, store: Store, device: str, capacity: Callable[[Sequence[Held]], int] | None = None):
        self.store, self.device, self.capacity = store, device, capacity
        self._attempts: list[Attempt] = []
        """In the order in which they began."""

    def work(self) -> None:
        """Take over what an earlier worker left, then do what is queued."""
        for entry in self.store.jobs(states=ACTIVE, device=self.device):
            log.info("job %d: taken over", entry.id)
            self._attempts.append(Attempt(entry, entry.pid))
        looked = -LOOK_SECONDS
        while True:
            if self._settle_ended() or time.monotonic() - looked >= LOOK_SECONDS:
                self._start_those_with_room()
                looked = time.monotonic()
            if not self._attempts:
                return
            time.sleep(POLL_SECONDS)

    def _settle_ended(self) -> bool:
        """Write down how attempts ended since the last look; whether any did."""
        ended = [attempt for attempt in self._attempts if self._is_over(attempt)]
        for attempt in ended:
            self._attempts.remove(attempt)
            self._settle(attempt.entry, mine=attempt.process is not None)
        return bool(ended)

    def _start_those_with_room(self) -> None:
        if self._attempts and self.capacity is None:
            return
        while (claimed := self.store.claim(self.device, self._has_room)) is not None:
            log.info("job %d: attempt %d", claimed.id, claimed.attempts)
            process = self._start(claimed)
            self._attempts.append(Attempt(claimed, process.pid, process))

    def _has_room(self, entry: Entry) -> bool:
        """Whether a job fits beside those that run; an empty device is for any job to try."""
        held: list[Held] = []
        for attempt in self._attempts:
            most = share(attempt.entry)
            if most is None:
                return False
            held.append((attempt.pid, most))
        wanted = share(entry)
        if held and wanted is None:
            return False
        # asked on an empty device, too: then it shows what others take
        room = 0 if self.capacity is None else self.capacity(held) - sum(most for _, most in held)
        return not held or (wanted is not None and wanted <= room)

    def _start(self, entry: Entry) -> subprocess.Popen[bytes]:
        files = RunFiles(self.store.home.run(entry.id))
        files.folder.mkdir(parents=True, exist_ok=True)
        job = files.folder / f"job{entry.suffix}"
        job.write_text(entry.text, encoding="utf-8")
        files.ended.unlink(missing_ok=True)
        with files.output.open("ab") as output, files.result.open("wb") as result:
            process = subprocess.Popen(
                [sys.executable, "-m", "plafond.jobs.run", str(files.folder), *command(entry, job)],
                cwd=entry.folder if Path(entry.folder).is_dir() else files.folder,
                stdin=subprocess.DEVNULL,
                stdout=result,
                stderr=output,
                env=os.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
                start_new_session=True,
            )
        self.store.change(entry.id, ACTIVE, pid=process.pid, pid_started=_start_of(process.pid))
        # afterwards, as it takes a while: a worker that is killed here leaves word of its process
        self.store.change(entry.id, ACTIVE, reached=saved_steps(entry))
        return process

    def _is_over(self, attempt: Attempt) -> bool:
        """Whether no process works on the job any more."""
        if attempt.process is not None:
            code = attempt.process.poll()
            if code != TAKEN:
                return code is not None
            # a process whose worker was killed before it could say so was faster
            attempt.process = None
        files = RunFiles(self.store.home.run(attempt.entry.id))
        if not files.folder.is_dir():
            return True  # its worker was killed before it could start one
        try:
            with FileLock(files.lock).acquire(timeout=0):
                pass
        except Timeout:
            self._note(attempt, files)
            return False
        # a process that has just been started is about to take the lock
        return process_of(attempt.entry.pid, attempt.entry.pid_started) is None

    def _note(self, attempt: Attempt, files: RunFiles) -> None:
        """Write down which process works on a job that another worker started."""
        process = files.read(files.process)
        if process is not None and process["pid"] != attempt.pid:
            attempt.pid = process["pid"]
            self.store.change(attempt.entry.id, ACTIVE, pid=process["pid"], pid_started=process["started"])

    def _settle(self, entry: Entry, *, mine: bool) -> None:
        """Write down how an attempt ended.

        Args:
            entry: the job.
            mine: this worker started the attempt and saw it end.
        """
        now = self.store.job(entry.id)
        files = RunFiles(self.store.home.run(entry.id))
        ended = files.read(files.ended)
        stop = now.state == STOPPING
        code = None if ended is None else int(ended["code"])
        end = {"ended": time.time(), "code": code, "pid": None, "pid_started": None}
        if code == 0:
            self._close(now, DONE, message="", fruitless=0, **end)
        elif stop or (code == INTERRUPTED and mine):
            self._close(now, STOPPED, message="", fruitless=0, **end)
        elif code is None or code == INTERRUPTED:
            # killed, by the system or with the machine: the same job again goes on where it stopped
            self._again(now, killed=code is None, **end)
        else:
            self._close(now, FAILED, message=last_words(files.output), fruitless=0, **end)

    def _again(self, entry: Entry, *, killed: bool, **end: float | int | None) -> None:
        further = entry.kind == TRAIN and saved_steps(entry) > entry.reached
        fruitless = entry.fruitless + 1 if killed and not further else 0
        if fruitless >= FRUITLESS:
            # as what a process says itself, in the language of this machine
            message = speaker(choose(None))(Said(KILLED, {"times": fruitless}))
            self._close(entry, FAILED, message=message, fruitless=0, **end)
            return
        log.info("job %d: goes on", entry.id)
        waiting = self.store.jobs(states=(QUEUED,), device=self.device)
        if not self.store.enqueue(entry.id, (RUNNING,), front=True, fruitless=fruitless, **end):
            self._close(entry, STOPPED, fruitless=0, **end)  # somebody asked for it meanwhile
            return
        # those that were killed, too, and had begun before this one, stay before it
        for other in reversed(list(takewhile(lambda other: _had_begun(other, before=entry), waiting))):
            self.store.enqueue(other.id, (QUEUED,), front=True)

    def _close(self, entry: Entry, state: str, **values: float | int | str | None) -> None:
        log.info("job %d: %s", entry.id, state)
        # the stop may have come while the job was ending by itself
        self.store.change(entry.id, ACTIVE, state=state, **values)


def _had_begun(waiting: Entry, *, before: Entry) -> bool:
    """Whether a job that waits was at work since it was queued, and began before another one did."""
    return (waiting.queued or 0.0) < (waiting.started or 0.0) < (before.started or 0.0)


def command(entry: Entry, job: Path) -> list[str]:
    """The arguments of plafond's command line that run a job."""
    name = "train" if entry.kind == TRAIN else "gc-test"
    arguments = [name, str(job), "--device", entry.device, "--json"]
    for option, value in (("--vram", entry.vram), ("--gpu", entry.gpu)):
        arguments += [option, value] if value else []
    for setting in entry.overrides:
        arguments += ["--set", setting]
    if entry.kind == TRAIN:
        arguments += ["--force"] if entry.force else []
    return arguments


def saved_steps(entry: Entry) -> int:
    """How many steps of a job's runs are saved."""
    from plafond.training.checkpoint import Checkpoints
    from plafond.training.run_folder import RunFolder

    folders = [RunFolder(path.parent, path.name) for path in map(Path, entry.run_folders)]
    return sum(max(Checkpoints(folder).steps(), default=0) for folder in folders)


def last_words(output: Path) -> str:
    """The error that a command ended with: plafond's own sentence, or the last line of a traceback."""
    try:
        text = output.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    _, mark, said = text.rpartition("\nplafond: ") if "\nplafond: " in text else text.rpartition("plafond: ")
    if mark and "\nTraceback (most recent call last):" not in said:
        return said.strip()
    return text.splitlines()[-1] if text else ""


def start_workers(home: Home, store: Store) -> list[subprocess.Popen[bytes]]:
    """Start a worker for every device that has something to do and no worker."""
    waiting = {entry.device for entry in store.jobs(states=(QUEUED, *ACTIVE))}
    return [start_worker(home, device) for device in sorted(waiting) if _is_free(home.lock(device))]


def start_worker(home: Home, device: str) -> subprocess.Popen[bytes]:
    """Start a worker that outlives this process, its terminal and its session."""
    with home.log(device).open("ab") as log_file:
        return subprocess.Popen(
            [sys.executable, "-m", "plafond.jobs.worker", str(home.path), device],
            cwd=home.path,
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )


def _is_free(path: Path) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path).acquire(timeout=0):
            return True
    except Timeout:
        return False


def _start_of(pid: int) -> float | None:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


if __name__ == "__main__":
    main()

"""The worker of one device: ``python -m plafond.jobs.worker HOME DEVICE``.

It holds the device's lock while it lives, takes one job after the other, and ends when nothing is queued. It may be
killed at any instant: what it started goes on, and the next worker finds it by its lock and waits for it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from plafond.jobs.home import Home
from plafond.jobs.run import INTERRUPTED, LOCK_SECONDS, TAKEN, RunFiles
from plafond.jobs.store import ACTIVE, DONE, FAILED, QUEUED, RUNNING, STOPPED, STOPPING, TRAIN, Entry, Store

POLL_SECONDS = 0.2

FRUITLESS = 5
"""So many attempts in a row that die without a word and get no further end a job: something kills it, always."""

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
    Worker(Store(home), device).work()


class Worker:
    """Runs the jobs of one device. Whoever makes one holds the device's lock.

    Args:
        store: the jobs.
        device: ``cpu`` or ``cuda:N``.
    """

    def __init__(self, store: Store, device: str):
        self.store, self.device = store, device

    def work(self) -> None:
        """Take over what an earlier worker left, then do what is queued."""
        for entry in self.store.jobs(states=ACTIVE, device=self.device):
            log.info("job %d: taken over", entry.id)
            self._await(entry)
            self._settle(entry, mine=False)
        while (claimed := self.store.claim(self.device)) is not None:
            log.info("job %d: attempt %d", claimed.id, claimed.attempts)
            self._attempt(claimed)

    def _attempt(self, entry: Entry) -> None:
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
        self.store.change(
            entry.id,
            ACTIVE,
            pid=process.pid,
            pid_started=_start_of(process.pid),
            reached=saved_steps(entry),
        )
        if process.wait() == TAKEN:
            # a process whose worker was killed before it could say so was faster
            self._await(entry)
            self._settle(entry, mine=False)
        else:
            self._settle(entry, mine=True)

    def _await(self, entry: Entry) -> None:
        """Wait until no process works on the job."""
        files = RunFiles(self.store.home.run(entry.id))
        if not files.folder.is_dir():
            return  # its worker was killed before it could start one
        lock = FileLock(files.lock)
        noted = False
        while True:
            try:
                with lock.acquire(timeout=0):
                    return
            except Timeout:
                time.sleep(POLL_SECONDS)
            if not noted and (process := files.read(files.process)) is not None:
                noted = self.store.change(
                    entry.id, ACTIVE, pid=process["pid"], pid_started=process["started"]
                )

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
            message = (
                f"its process was killed {fruitless} times in a row and got no further; the system kills what takes"
                " more main memory than there is"
            )
            self._close(entry, FAILED, message=message, fruitless=0, **end)
            return
        log.info("job %d: goes on", entry.id)
        if not self.store.enqueue(entry.id, (RUNNING,), front=True, fruitless=fruitless, **end):
            self._close(entry, STOPPED, fruitless=0, **end)  # somebody asked for it meanwhile

    def _close(self, entry: Entry, state: str, **values: float | int | str | None) -> None:
        log.info("job %d: %s", entry.id, state)
        # the stop may have come while the job was ending by itself
        self.store.change(entry.id, ACTIVE, state=state, **values)


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

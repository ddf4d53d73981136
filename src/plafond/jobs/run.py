"""The process that works on one job: ``python -m plafond.jobs.run FOLDER COMMAND...``.

It runs a command of plafond's own command line (``train``, ``gc-test``) and adds what makes a queue safe:

- It holds the job's lock from before the first step to after the last, so that no second process can run the job,
  whoever started it and whoever was killed meanwhile.
- It is asked to stop by a file, not by a signal to a number that may belong to another process by now. The stop then
  is the one of Ctrl-C: the run finishes its step and saves.
- It writes down how it ended, for a worker that is not its parent.

The files in FOLDER: ``lock``, ``stop``, ``process.json`` (who works), ``ended.json`` (how it ended; missing after a
``kill -9``), ``history.jsonl`` (one line per start and end).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

if TYPE_CHECKING:
    from psutil import Process

TAKEN = 75
"""Exit code of a process that found another one at work on the job."""

INTERRUPTED = 130

LOCK_SECONDS = 5.0
"""So long a worker may hold the lock to see whether it is free."""

GLANCE_SECONDS = 0.2
"""Time between two looks for a request to stop."""

START_TOLERANCE = 2.0
"""Seconds by which two readings of one process's start may differ."""


class RunFiles:
    """What a worker and the processes that it starts tell each other about one job."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.lock = folder / "lock"
        self.stop = folder / "stop"
        self.process = folder / "process.json"
        self.ended = folder / "ended.json"
        self.history = folder / "history.jsonl"
        self.output = folder / "output.txt"
        self.result = folder / "result.json"

    def read(self, path: Path) -> dict[str, Any] | None:
        """One of the JSON files; None when it is not there, or torn by a crash."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def note(self, **values: Any) -> None:
        """Add a line to the history."""
        with self.history.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), "pid": os.getpid(), **values}) + "\n")


def process_of(pid: int | None, started: float | None) -> Process | None:
    """The process of this number that was started then; None when it is gone.

    A number may belong to another process by now.
    """
    import psutil

    if pid is None or started is None:
        return None
    try:
        found = psutil.Process(pid)
        same = abs(found.create_time() - started) < START_TOLERANCE
        return found if same and found.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def main() -> None:
    """Run the command line that follows the folder, as the job's only process."""
    import psutil

    folder, *command = sys.argv[1:]
    files = RunFiles(Path(folder))
    lock = FileLock(files.lock)
    try:
        lock.acquire(timeout=LOCK_SECONDS)
    except Timeout:
        sys.exit(TAKEN)
    files.ended.unlink(missing_ok=True)
    _write(files.process, {"pid": os.getpid(), "started": psutil.Process().create_time()})
    files.note(event="start", command=command[:1])
    code = 1
    try:
        code = INTERRUPTED if files.stop.exists() else _run(command, files)
    finally:
        if files.stop.exists() and code != 0:
            code = INTERRUPTED
        files.note(event="end", code=code)
        _write(files.ended, {"code": code, "time": time.time()})
    sys.exit(code)


def _run(command: list[str], files: RunFiles) -> int:
    """The command line's exit code; what is not meant for users leaves as the exception that it is."""
    from plafond.cli import main as plafond

    threading.Thread(target=_watch, args=(files.stop,), daemon=True).start()
    sys.argv = ["plafond", *command]
    try:
        plafond()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _watch(stop: Path) -> None:
    """Interrupt the command once when somebody asks for it."""
    while not stop.exists():
        time.sleep(GLANCE_SECONDS)
    main_thread = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main_thread is not None:
        signal.pthread_kill(main_thread, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)


def _write(path: Path, values: dict[str, Any]) -> None:
    temporary = path.with_suffix(".writing")
    temporary.write_text(json.dumps(values), encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    main()

"""Run jobs in tests, in this process or in one that is killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import plafond
from plafond.training.result import Result
from plafond.training.run_folder import RunFolder

# Runs the command line with one instant at which the process kills itself, as `kill -9` would.
VICTIM = """
import os, signal, sys
from pathlib import Path
kind, number = sys.argv[1].split(":")
def die():
    os.kill(os.getpid(), signal.SIGKILL)
calls = 0
if kind == "step":
    from plafond.training.loop import Run
    record = Run._record
    def dying(self, outcome, micros, started, lr):
        record(self, outcome, micros, started, lr)
        if self.progress.step == int(number):
            die()
    Run._record = dying
elif kind in ("half-written", "before-rename", "after-rename"):
    # the number-th file of a save: a partial temporary file, a complete one, or already in its place
    replace = Path.replace
    def dying(source, target):
        global calls
        watched = str(target).endswith((".safetensors", ".pt", ".json"))
        if watched and "_cache" not in str(target) and not str(target).endswith("running.json"):
            calls += 1
            if calls == int(number):
                if kind == "half-written":
                    data = Path(source).read_bytes()
                    Path(source).write_bytes(data[: len(data) // 2])
                if kind == "after-rename":
                    replace(source, target)
                die()
        replace(source, target)
    Path.replace = dying
elif kind == "signal":
    from plafond.training.loop import Run
    record = Run._record
    def interrupted(self, outcome, micros, started, lr):
        record(self, outcome, micros, started, lr)
        if self.progress.step == int(number):
            os.kill(os.getpid(), signal.SIGTERM)
    Run._record = interrupted
from plafond.cli import main
sys.argv = ["plafond", "train", *sys.argv[2:]]
main()
"""


def run(job: Path, *, fresh: bool = False, overrides: tuple[str, ...] = ()) -> Result:
    """Train in this process."""
    (result,) = plafond.train(plafond.load_job(job, overrides=overrides), device="cpu", fresh=fresh)
    return result


def run_and_die(job: Path, at: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Train in a process that dies (or is interrupted) at one instant, as ``step:7`` or ``before-rename:2``."""
    command = [sys.executable, "-c", VICTIM, at, str(job), "--device", "cpu", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def cli(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", "from plafond.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


KILLED = -signal.SIGKILL


def folder_of(job: Path) -> RunFolder:
    """The run folder of a job made by the `make_job` fixture."""
    return RunFolder(job.parent / "out", job.stem)


def weights(path: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = load_file(path)
    return loaded


def assert_same_weights(first: Path, second: Path) -> None:
    """Every tensor of two files is bit-equal."""
    a, b = weights(first), weights(second)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def losses(folder: RunFolder) -> list[tuple[int, float]]:
    """Step and loss of every line of metrics.jsonl."""
    return [(row["step"], row["loss"]) for row in folder.read_metrics()]


def resume_state(folder: RunFolder, step: int) -> dict[str, Any]:
    """A saved state, with tensors."""
    state: dict[str, Any] = torch.load(folder.resume / f"step_{step:09d}.pt", weights_only=True)
    return state


assert os.environ["OMP_NUM_THREADS"] == "1"

"""Out-of-memory wherever it can happen: the results are those of a run that never met one, to the last bit.

On the tiny FLUX model, on a virtual GPU that refuses allocations:

* at every allocation of a step, one after the other: a long run in whose n-th step the n-th allocation is refused;
* at random ones: runs of 20 steps in each of which three are refused, 200 in all;
* under a ceiling that shrinks in mid-run, to a random place between what the leanest and the first plan take.

Weights, optimizer state and losses have to be equal to those of an undisturbed run, no step may be missing or done
twice, and live bytes have to return to what they were. What each run learns is forgotten between the steps of the
first part, so that every allocation is refused under the fastest plan.

    python bench/recovery.py [--random 200] [--shrinking 20] [--seed 0]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch

import plafond
from plafond.memory.residence import counting
from plafond.memory.virtual import VirtualGpu
from plafond.training import loop
from plafond.training.recovery import FILE, Leaner
from plafond.training.run_folder import RunFolder
from plafond.training.step import Outcome
from plafond.training.transaction import Transaction
from verdicts import job_file

PLENTY = 2**40
STEPS = 20
AT_ONCE = 3
"""Refusals in one run: so many plans are leaner than the first one, and equal to it to the last bit."""

SETTINGS: dict[str, Any] = {
    "train.gradient_checkpointing": False,
    "train.batch_size": 1,
    "train.disable_sampling": True,
    "train.cache_text_embeddings": True,
    "train.ema_config.use_ema": True,
    "train.optimizer": "adamw8bit",
    "network.dropout": 0.1,
}


class Refusing(VirtualGpu):  # type: ignore[no-untyped-call]
    """Refuses once at the allocation number `at`, counted from when it was set."""

    at: int | None = None

    def grown(self, size: int) -> None:
        """As ever, unless it is this one's turn."""
        if self.at == self.allocations:
            self.at = None
            self.faults = {self.allocations}
        super().grown(size)


def disturbed(gpu: Refusing, seen: list[int], stride: int = 1) -> type[Transaction]:
    """A transaction in whose steps an allocation is refused, the first one's first, then each `stride` later.

    `seen` gets the live bytes after each step.
    """

    class Disturbed(Transaction):
        reached = 0

        def gradients(self) -> Any:
            step = self.run.progress.step + 1
            if step > self.reached:
                self.reached = step
                gpu.at = gpu.allocations + stride * (step - 1)
            return super().gradients()

        def update(self, outcome: Outcome) -> bool:
            if not super().update(outcome):
                return False
            gpu.at = None
            run = self.run
            self.lean = Leaner(run.budget.activations or self.start, run.folder.path, run.gauge.room)
            run.stepper.activations = self.lean.activations
            seen.append(gpu.live)
            return True

        def __init__(self, run: loop.Run):
            super().__init__(run)
            self.start = self.lean.activations

    return Disturbed


def run(job: Path, settings: dict[str, Any], gpu: VirtualGpu | None) -> RunFolder:
    """Run the job anew."""
    loaded = plafond.load_job(
        job, overrides=[f"{key}={json.dumps(value)}" for key, value in settings.items()]
    )
    shutil.rmtree(job.parent / "out", ignore_errors=True)
    if gpu is None:
        plafond.train(loaded, device="cpu", fresh=True)
    else:
        with counting(gpu):
            plafond.train(loaded, device="cpu", fresh=True)
            gc.collect()  # what is left is what somebody holds
    return RunFolder(job.parent / "out", "verdict")


def result(folder: RunFolder) -> tuple[list[Any], list[torch.Tensor]]:
    """Losses by step, and every tensor of the last saved state."""
    state = torch.load(max(folder.resume.glob("*.pt")), weights_only=True)
    rows = [(row["step"], row["loss"]) for row in folder.read_metrics()]
    return rows, list(tensors(state))


def tensors(value: object) -> Iterator[torch.Tensor]:
    """All that are somewhere in it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def equal(one: tuple[list[Any], list[torch.Tensor]], two: tuple[list[Any], list[torch.Tensor]]) -> bool:
    """To the last bit."""
    return one[0] == two[0] and all(
        torch.equal(left, right) for left, right in zip(one[1], two[1], strict=True)
    )


@contextmanager
def transactions(kind: type[Transaction]) -> Iterator[None]:
    """Let runs do their steps in this way."""
    with patch.object(loop, "Transaction", kind):
        yield


def everywhere(job: Path) -> bool:
    """A refusal at every allocation of a step."""
    one = Refusing(PLENTY)
    settings = SETTINGS | {"train.steps": 1, "save.save_every": 1}
    counts: list[int] = []

    class Counting(Transaction):
        def gradients(self) -> Any:
            counts.append(one.allocations)
            return super().gradients()

        def update(self, outcome: Outcome) -> bool:
            done = super().update(outcome)
            counts.append(one.allocations)
            return done

    with transactions(Counting):
        run(job, settings, one)
    number = counts[1] - counts[0]
    # the first step makes what later ones find; the last ones see none
    settings |= {"train.steps": number + 2}
    reference = result(run(job, settings, None))
    gpu = Refusing(PLENTY)
    live: list[int] = []
    started = time.monotonic()
    with transactions(disturbed(gpu, live)):
        folder = run(job, settings, gpu)
    found = result(folder)
    refused = folder.log.read_text(encoding="utf-8").count("out of memory")
    same, leaked = equal(reference, found), max(live[1:]) - min(live[1:])
    print(
        f"every allocation of a step: {number} refused one after the other, {refused} recoveries,"
        f" {'equal' if same else 'DIFFERENT'}, live bytes after steps differ by {leaked}"
        f" ({time.monotonic() - started:.0f} s)",
        flush=True,
    )
    return same and not leaked and refused >= number


def anywhere(job: Path, count: int, dice: random.Random) -> bool:
    """Refusals at random allocations of a run."""
    settings = SETTINGS | {"train.steps": STEPS, "save.save_every": 7}
    whole = VirtualGpu(PLENTY)
    reference = result(run(job, settings, whole))
    wrong = done = 0
    while done < count:
        faults = {dice.randrange(whole.allocations) for _ in range(min(AT_ONCE, count - done))}
        gpu = VirtualGpu(PLENTY, faults=faults)
        found = result(run(job, settings, gpu))
        done += len(faults)
        if not equal(reference, found) or gpu.live > whole.live:
            wrong += 1
            print(f"  DIFFERENT after refusals at {sorted(faults)}", flush=True)
    print(f"{done} random allocations of {whole.allocations} over {STEPS} steps refused: {wrong} runs differ")
    return not wrong


def shrinking(job: Path, count: int, dice: random.Random) -> bool:
    """A ceiling that comes down at a random moment."""
    settings = SETTINGS | {"train.steps": STEPS, "save.save_every": 7}
    whole, lean = VirtualGpu(PLENTY), VirtualGpu(PLENTY)
    reference = result(run(job, settings, whole))
    run(job, settings | {"plafond.activation_plan": "offload"}, lean)

    class Shrinking(VirtualGpu):  # type: ignore[no-untyped-call]
        when, to = 0, PLENTY

        def grown(self, size: int) -> None:
            if self.allocations == self.when:
                self.ceiling = max(self.to, self.live - size)
            super().grown(size)

    wrong = learnt = 0
    for _ in range(count):
        gpu = Shrinking(PLENTY)
        gpu.when = dice.randrange(whole.allocations // 3, whole.allocations)
        gpu.to = dice.randint(lean.peak, whole.peak)
        folder = run(job, settings, gpu)
        learnt += (folder.path / FILE).is_file()
        wrong += not equal(reference, result(folder))
    print(f"{count} ceilings that shrink in mid-run: {learnt} runs became leaner, {wrong} differ")
    return not wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, default=200)
    parser.add_argument("--shrinking", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    gc.freeze()  # every recovery collects garbage, and what the libraries have made is none
    with tempfile.TemporaryDirectory() as folder:
        job = job_file(Path(folder))
        well = [
            everywhere(job),
            anywhere(job, options.random, dice),
            shrinking(job, options.shrinking, dice),
        ]
    sys.exit(0 if all(well) else 1)


if __name__ == "__main__":
    main()

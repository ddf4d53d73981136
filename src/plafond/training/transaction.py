"""One step as a transaction: it happens once and as a whole, however often the device's memory is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from plafond.language.said import N_, ExactSize, Said, Value
from plafond.memory.residence import enter
from plafond.training.optim import make_optimizer, make_schedule, make_state
from plafond.training.recovery import Leaner, attempt, name_place
from plafond.training.step import MicroBatch, Outcome

if TYPE_CHECKING:
    from plafond.training.loop import Run

AT_STEP = N_("at step {step}, on a batch of {size} at {bucket}")
IN_WARM_UP = N_("while warming up, before the first step, on a batch of {size} at {bucket}")
TIGHTER = N_("only {room} are left for this run, and {bucket} takes {taken}: {change}")
REPEATED = N_("out of memory at step {step}, which is repeated: {change}")
WARMED_UP_AGAIN = N_("out of memory while warming up, which is repeated: {change}")
UPDATED_AGAIN = N_("out of memory in the update of step {failed}; repeating from step {again}")


class Transaction:
    """Does the steps of a run.

    A step's gradients can be computed again at will. Its update cannot: one that breaks off may have changed some of
    the weights, so the run goes back to the last whole state and repeats the steps since, which gives the same.
    """

    def __init__(self, run: Run):
        self.run = run
        self.lean = Leaner(run.stepper.activations, run.folder.path)
        if run.budget.recover:
            self.lean.remember()
            run.stepper.activations = self.lean.activations
        self._weights = run.trainee.weights() if run.trainee.network is not None else None
        self._progress = replace(run.progress)
        self._rewound = False

    def gradients(self) -> tuple[list[MicroBatch], Outcome]:
        """The gradients of the next step.

        Raises:
            torch.OutOfMemoryError: not even the leanest way fits; the state is saved.
        """
        return attempt(self._gradients, self._lean_step, self.run.device)

    def update(self, outcome: Outcome) -> bool:
        """Apply gradients and count the step; False when the run has gone back to an earlier one instead.

        Raises:
            torch.OutOfMemoryError: there is no state to go back to.
        """
        return attempt(lambda: self._update(outcome), self._rewind, self.run.device)

    def warm_up(self) -> None:
        """Try the largest batch before the first step, and forget that it was tried.

        Memory that it does not fit into fails now instead of hours later, and the allocator makes room for the
        largest tensors first, into which all others fit. A second pass accumulates on the gradients of the first.
        """
        attempt(self._warm_up, self._lean_warm_up, self.run.device)

    # ------------------------------------------------------------------------------------------------ attempts

    def _gradients(self) -> tuple[list[MicroBatch], Outcome]:
        run, step = self.run, self.run.progress.step + 1
        self._watch(step)
        run.gauge.read()  # what came before does not count; text that is encoded now does
        micros = run.feed.micros(step)
        with _naming_the_place(Said(AT_STEP, {"step": step, **_batch(micros[0])})):
            return micros, run.stepper.gradients(self.lean.split(micros))

    def _update(self, outcome: Outcome) -> bool:
        run = self.run
        if self._rewound:
            self._rewound = False
            return False
        run.stepper.update(outcome, run.optimizer)
        run.schedule.step()
        if outcome.applied and run.ema is not None:
            run.ema.update()
        run.progress.step += 1
        return True

    def _warm_up(self) -> None:
        run, micro = self.run, self.run.feed.fullest()
        if micro is None or not run.gauge.counts:
            return
        gpus = [run.device] if run.device.type == "cuda" else []
        enter("warming up")
        with (
            run.terminal.doing(Said(N_("warming up on {bucket}"), {"bucket": str(micro.batch.bucket)})),
            _naming_the_place(Said(IN_WARM_UP, _batch(micro))),
            torch.random.fork_rng(gpus),
        ):
            run.trainee.transformer.train()
            for _ in range(min(2, run.process.train.gradient_accumulation)):
                for part in self.lean.split([micro]):
                    run.stepper.micro_step(part)
        run.optimizer.zero_grad(set_to_none=True)

    # ------------------------------------------------------------------------------------------------ leaner ways

    def _watch(self, step: int) -> None:
        """Train the next batches in a leaner way if others have taken so much that they would not fit any more."""
        run = self.run
        room = run.gauge.room() if run.budget.recover else None
        for batch in run.feed.batches(step)[1] if room is not None else ():
            bucket = str(batch.bucket)
            taken = run.latest.get(bucket)
            if room is None or taken is None or taken <= room:
                continue
            change = self.lean.step([batch])
            if change is None:
                continue  # it will be tried, and the transaction decides
            del run.latest[bucket]
            sizes = {"room": ExactSize(room), "taken": ExactSize(taken)}
            self._take(Said(TIGHTER, {**sizes, "bucket": bucket, "change": change}))

    def _lean_step(self, message: str) -> bool:
        run, step = self.run, self.run.progress.step + 1
        run.optimizer.zero_grad(set_to_none=True)
        if not run.budget.recover:
            return False
        change = self.lean.step(run.feed.batches(step)[1])
        if change is None:
            run.save_state()
            return False
        self._take(Said(REPEATED, {"step": step, "change": change}))
        return True

    def _lean_warm_up(self, message: str) -> bool:
        run, micro = self.run, self.run.feed.fullest()
        run.optimizer.zero_grad(set_to_none=True)
        change = self.lean.step([micro.batch]) if micro is not None and run.budget.recover else None
        if change is None:
            return False
        self._take(Said(WARMED_UP_AGAIN, {"change": change}))
        return True

    def _take(self, sentence: Said) -> None:
        self.run.stepper.activations = self.lean.activations
        self.run.progress.recovered += 1
        self.run.terminal.warn(sentence)

    def _rewind(self, message: str) -> bool:
        run = self.run
        run.optimizer.zero_grad(set_to_none=True)
        saved = bool(run.checkpoints.steps())
        if not run.budget.recover or not (saved or self._weights is not None):
            return False
        failed, recovered = run.progress.step + 1, run.progress.recovered + 1
        run.optimizer = make_optimizer(run.trainee.parameters.values(), run.process.train)
        if saved:
            run.resume()
        elif self._weights is not None:
            run.trainee.load_weights(self._weights)
            make_state(run.optimizer)
            if run.ema is not None:
                run.ema.load(self._weights)
            run.progress = replace(self._progress)
            run.folder.rewind_metrics(run.progress.step)
        run.progress.recovered = recovered
        run.schedule = make_schedule(run.optimizer, run.process.train, run.progress.step)
        again = run.progress.step + 1
        run.terminal.warn(Said(UPDATED_AGAIN, {"failed": failed, "again": again}))
        self._rewound = True
        return True


@contextmanager
def _naming_the_place(place: Said) -> Iterator[None]:
    """Say in an out-of-memory error at which place of the run and on which batch it was met."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        name_place(error, place)
        raise


def _batch(micro: MicroBatch) -> dict[str, Value]:
    return {"size": len(micro.batch.items), "bucket": str(micro.batch.bucket)}

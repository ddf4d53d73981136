"""A training run from the job to the saved file; `train` reads top to bottom."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from plafond.errors import Interrupted, NonFiniteError
from plafond.families import family_for
from plafond.families._contract import Family
from plafond.job.schema import Job, ProcessConfig
from plafond.language.said import N_, ExactSize, Number, Said, Speak, Value
from plafond.memory.kernels import Target
from plafond.memory.residence import enter, host_memory, label, release, settle
from plafond.report.terminal import Terminal
from plafond.training.assistant import merge_assistant
from plafond.training.base import quantize_transformer
from plafond.training.budget import Budget, Gauge, spending
from plafond.training.chatter import to_log
from plafond.training.checkpoint import Checkpoints, Identity
from plafond.training.ema import Ema
from plafond.training.export import DTYPES, describe, save_lora, save_transformer
from plafond.training.feed import Feed
from plafond.training.optim import make_optimizer, make_schedule, make_state, optimizer_state, state_tensors
from plafond.training.places import LOADING, PREVIEWING, SAVING
from plafond.training.prepare import Prepared, prepare
from plafond.training.preview import Previewer
from plafond.training.pulse import Pulse
from plafond.training.recovery import at_place, attempt
from plafond.training.result import Result, heading, result_of, write_job
from plafond.training.run_folder import RunFolder
from plafond.training.step import MicroBatch, Outcome, Stepper
from plafond.training.stop import StopSignal
from plafond.training.trainee import Trainee, load_lora_file, make_trainee
from plafond.training.transaction import Transaction

BEGINNING = N_(
    "{name}: {pictures} pictures, {batches} batches an epoch, {millions} M trained parameters on {device}, {dtype}"
)
OTHER_BASE = N_(
    "the base model was {then} when this run was saved and is {now} now; the adapter goes on, on a base that is a"
    " little different"
)
ADOPTED = N_("continuing after step {step} from {file}; the optimizer starts anew")
NOT_APPLIED = N_("step {step}: loss {loss}, gradient {gradient}; not applied ({names})")
NOT_FINITE = N_(
    "loss or gradients were not finite for {steps} steps in a row, up to step {step}; the state is saved in {folder};"
    " try a lower train.lr, or train.dtype float32"
)
TRAINED_ALREADY = N_("already trained for {steps} steps; raise train.steps to go on")
TILED = N_("out of memory in a preview, which is drawn again with a tiled decoder")
NO_PREVIEW = N_("no preview after step {step}: {why}")
PEAK = N_("peak at {bucket}: measured {measured}")
PEAK_FORETOLD = N_("peak at {bucket}: predicted {predicted}, measured {measured}")

NON_FINITE_LIMIT = 10
"""So many steps in a row with a non-finite loss or gradient end the run."""


def train(
    job: Job,
    process: ProcessConfig,
    *,
    device: torch.device,
    fresh: bool = False,
    budget: Budget | None = None,
    speak: Speak = str,
) -> Result:
    """Run one process of a job to its end, or continue where it stopped; `speak` words what is shown meanwhile.

    Raises:
        Interrupted: the user stopped the run; its state is saved.
        PlafondError: the run cannot start or go on; everything saved so far is intact.
    """
    family = family_for(process.model.arch)
    parts = [expert.name for expert in family.trained_experts(process.model)]
    folder = RunFolder(process.training_folder, process.name or job.name, parts)
    aside = folder.set_aside() if fresh else None
    with (
        folder.locked(),
        to_log(folder.log) as stream,
        folder.log.open("a", encoding="utf-8") as log,
        StopSignal() as stop,
        Terminal(stream, log, speak) as terminal,
    ):
        log.write(heading(job, process, device))
        if aside is not None:
            terminal.note(Said(N_("the earlier run is kept at {path}"), {"path": aside}))
        write_job(job, process, folder)
        budget = budget or Budget()
        with Pulse(folder.path, terminal.warn) as pulse, spending(budget, device) as gauge:
            prepared = prepare(process, family, device=device, terminal=terminal, budget=budget)
            run = Run(job, process, family, folder, prepared, device, terminal, stop, pulse, budget, gauge)
            return run.go()


@dataclass
class Progress:
    """The counters of a run; saved and restored with it."""

    step: int = 0
    non_finite: int = 0
    recovered: int = 0


@dataclass
class Run:
    """One process of a job while it is being trained."""

    job: Job
    process: ProcessConfig
    family: Family
    folder: RunFolder
    prepared: Prepared
    device: torch.device
    terminal: Terminal
    stop: StopSignal
    pulse: Pulse
    budget: Budget
    gauge: Gauge
    progress: Progress = field(default_factory=Progress)
    peaks: dict[str, int] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)
    loads: int = 0

    def go(self) -> Result:
        """Train from the newest saved state to ``train.steps``."""
        settings = self.process.train
        with at_place(LOADING):
            attempt(self._begin, self._begin_again, self.device)
        if self.progress.step >= settings.steps:
            return self._result(Said(TRAINED_ALREADY, {"steps": self.progress.step}))
        self.schedule = make_schedule(self.optimizer, settings, self.progress.step)
        show = self.terminal.training(self.progress.step, settings.steps, self.process.logging.log_every)

        transaction = Transaction(self)
        transaction.warm_up()
        self.stop.gentle = True
        if self.previewer.due(self.progress.step, first=True):
            self._preview()
        while self.progress.step < settings.steps:
            self._leave_if_asked()
            started = time.monotonic()
            # ------------------------------------------------------------------ one step
            micros, outcome = transaction.gradients()
            if not transaction.update(outcome):
                continue
            # ---------------------------------------------------------------------------
            self._record(outcome, micros, started, float(self.schedule.get_last_lr()[0]))
            del micros  # text that was encoded on the device must not stay through the next step
            show(self.progress.step, outcome.loss)
            scarce = self.pulse.beat(self.progress.step)
            if self.progress.step % self.process.save.save_every == 0:
                self._save_milestone()
            elif scarce:
                self.save_state()
            if self.previewer.due(self.progress.step, first=False):
                self._preview()
        return self._finish()

    # ------------------------------------------------------------------------------------------------ start

    def _begin(self) -> None:
        self._build()
        self.resume()

    def _begin_again(self, message: str) -> bool:
        """After an out-of-memory while loading: once more, with what others have freed meanwhile."""
        parts = [
            name for name in ("previewer", "stepper", "ema", "optimizer", "trainee") if name in vars(self)
        ]
        for name in parts:
            delattr(self, name)
        release(self.device)
        self.loads += 1
        return self.budget.recover and self.loads == 1

    def _build(self) -> None:
        process, prepared = self.process, self.prepared
        dtype = DTYPES[process.train.dtype]
        with self.terminal.doing(Said(N_("loading the transformer"))):
            enter("loading")
            with host_memory():
                host = torch.device("cpu")
                transformer = self.family.load_transformer(prepared.source, device=host, dtype=dtype)
            assistant = merge_assistant(transformer, process.model.assistant_lora_path)
            quantize_transformer(transformer, self.family, process.model, self.device)
            with host_memory():
                target = Target.of(self.device)
                self.trainee: Trainee = make_trainee(transformer, self.family, process, target, assistant)
            self.trainee.move_in(self.device, process.model)
        self.optimizer = make_optimizer(self.trainee.parameters.values(), process.train)
        ema = process.train.ema_config
        self.ema = Ema(self.trainee.parameters, ema.ema_decay) if ema.use_ema else None
        label(self.ema.averages.values() if self.ema else (), "optimizer")
        self.stepper = Stepper(
            self.trainee, self.family, process, self.device, dtype, self.budget.activations
        )
        self.feed: Feed = prepared.feed
        self.checkpoints = Checkpoints(self.folder)
        self.identity: Identity = self.trainee.identity(process)
        self.previewer = Previewer(
            self.trainee,
            self.family,
            process,
            prepared.source,
            prepared.vae,
            prepared.preview_texts,
            self.folder,
            self.device,
            dtype,
        )
        self.started = time.time()
        count = sum(parameter.numel() for parameter in self.trainee.parameters.values())
        self.terminal.note(
            Said(
                BEGINNING,
                {
                    "name": self.folder.name,
                    "pictures": prepared.pictures,
                    "batches": self.feed.plan.batches_per_epoch,
                    "millions": Number(count / 1e6, 2),
                    "device": str(self.device),
                    "dtype": process.train.dtype,
                },
            )
        )

    def resume(self) -> None:
        """Take up the newest saved state, if there is one."""
        with host_memory():
            state, damaged = self.checkpoints.load_newest(self.identity)
        for sentence in damaged:
            self.terminal.warn(Said(N_("{problem}; the one before it is used"), {"problem": sentence}))
        if state is None:
            self._adopt()
            make_state(self.optimizer)
            return
        self.trainee.load_weights(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        settle(state_tensors(self.optimizer), "optimizer")
        if self.ema is not None:
            self.ema.load(state["ema"] or state["weights"])
        self.progress = Progress(**state["progress"])
        then, now = state.get("base"), self.process.model.weight_format
        if then != now:
            none = Said(N_("not quantised"))
            self.terminal.warn(Said(OTHER_BASE, {"then": then or none, "now": now or none}))
        self.folder.rewind_metrics(self.progress.step)
        self.terminal.note(Said(N_("continuing after step {step}"), {"step": self.progress.step}))

    def _adopt(self) -> None:
        """Go on from the newest LoRA of a folder without states of ours, as AI Toolkit leaves it."""
        saved = [(step, path) for step, path in self.folder.milestones() if path.is_file()]
        if self.folder.resume.is_dir():
            # this run began here, and was killed in its first save: it begins anew, for the same result
            saved = [(step, path) for step, path in saved if step > self.process.save.save_every]
        if not saved:
            self.folder.resume.mkdir(parents=True, exist_ok=True)
        if saved and self.trainee.network is not None:
            step, path = saved[-1]
            load_lora_file(self.trainee.network, path, self.family, self.trainee.transformer)
            self.progress = Progress(step=step)
            self.terminal.note(Said(ADOPTED, {"step": step, "file": path.name}))
        self.folder.rewind_metrics(self.progress.step)

    # ------------------------------------------------------------------------------------------------ steps

    def _record(self, outcome: Outcome, micros: list[MicroBatch], started: float, lr: float) -> None:
        bucket = str(micros[0].batch.bucket)
        peak = self.gauge.read()
        if peak is not None:
            self.peaks[bucket] = max(peak, self.peaks.get(bucket, 0))
            self.latest[bucket] = peak
        row: dict[str, Any] = {
            "step": self.progress.step,
            "loss": outcome.loss,
            "lr": lr,
            "grad_norm": outcome.grad_norm,
            "seconds": round(time.monotonic() - started, 4),
            "bucket": bucket,
            "allocated_peak": peak,
            "predicted_peak": self.budget.predicted.get(bucket),
            "applied": outcome.applied,
        }
        if outcome.applied:
            self.progress.non_finite = 0
            self.folder.append_metrics(row)
            return
        samples = [str(item.picture.path) for micro in micros for item in micro.batch.items]
        # JSON has no NaN; the fact itself is in "applied"
        row.update(loss=None, grad_norm=None, samples=samples)
        self.folder.append_metrics(row)
        self.progress.non_finite += 1
        values: dict[str, Value] = {
            "step": self.progress.step,
            "loss": str(outcome.loss),
            "gradient": str(outcome.grad_norm),
            "names": tuple(Path(sample).name for sample in samples),
        }
        self.terminal.warn(Said(NOT_APPLIED, values))
        if self.progress.non_finite >= NON_FINITE_LIMIT:
            self.save_state()
            raise NonFiniteError(
                NOT_FINITE, steps=NON_FINITE_LIMIT, step=self.progress.step, folder=self.folder.path
            )

    def _leave_if_asked(self) -> None:
        if self.stop.requested:
            self.save_state()
            raise Interrupted(
                N_("stopped after step {step}; the same command goes on from there"), step=self.progress.step
            )

    def _preview(self) -> None:
        enter("preview")
        report = self.terminal.phase(Said(N_("previews")))

        def draw() -> None:
            self.previewer.draw(self.progress.step, self.ema, report, lambda: self.stop.requested)

        def lean(message: str) -> bool:
            if not self.budget.recover or self.previewer.tiled:
                return False
            self.previewer.tiled = True
            self.terminal.warn(Said(TILED))
            return True

        try:
            with at_place(PREVIEWING, step=self.progress.step):
                attempt(draw, lean, self.device)
        except torch.OutOfMemoryError as error:
            if not self.budget.recover:
                raise
            why = str(error).splitlines()[0]
            self.terminal.warn(Said(NO_PREVIEW, {"step": self.progress.step, "why": why}))

    # ------------------------------------------------------------------------------------------------ saving

    def save_state(self) -> None:
        """Write down all that a continued run needs."""
        state = {
            "weights": self.trainee.weights(),
            "optimizer": optimizer_state(self.optimizer),
            "ema": None if self.ema is None else self.ema.averages,
            "progress": vars(self.progress),
            "base": self.process.model.weight_format,
        }
        self.checkpoints.save(self.progress.step, state, self.identity)

    def _save_milestone(self) -> None:
        self._export(self.folder.milestone(self.progress.step))
        self.save_state()
        self.folder.keep_newest(self.process.save.max_step_saves_to_keep)

    def _export(self, target: Path) -> list[Path]:
        enter("saving")
        step = self.progress.step
        items = list(self.prepared.items)
        epoch = self.feed.epoch(step)
        metadata = describe(
            self.job,
            self.process,
            self.family,
            items,
            name=self.folder.name,
            step=step,
            epoch=epoch,
            started=self.started,
        )
        trainee = self.trainee
        if self.ema is None:
            return self._write(target, trainee, metadata)
        with at_place(SAVING), self.ema.applied():
            return self._write(target, trainee, metadata)

    def _write(self, target: Path, trainee: Trainee, metadata: dict[str, str]) -> list[Path]:
        with host_memory():
            if trainee.network is None:
                return [save_transformer(target, trainee.transformer, self.process, metadata)]
            return save_lora(
                target, trainee.network, trainee.transformer, self.family, self.process, metadata
            )

    # ------------------------------------------------------------------------------------------------ end

    def _finish(self) -> Result:
        files = self._export(self.folder.final)
        self.save_state()
        settings = self.process
        shown = self.folder.previews()
        if (
            not settings.train.disable_sampling
            and settings.sample.samples
            and self.progress.step not in shown
        ):
            self._preview()
        for bucket, peak in self.peaks.items():
            predicted = self.budget.predicted.get(bucket)
            text = PEAK if predicted is None else PEAK_FORETOLD
            values: dict[str, Value] = {
                "bucket": bucket,
                "predicted": ExactSize(predicted or 0),
                "measured": ExactSize(peak),
            }
            self.terminal.note(Said(text, values))
        return self._result(None, tuple(files))

    def _result(self, note: Said | None, files: tuple[Path, ...] = ()) -> Result:
        notes = (*([note] if note else ()), *self.prepared.problems)
        files = files or tuple(self.folder.finals())
        return result_of(self.folder, self.process, self.progress.step, files, notes, self.terminal.speak)

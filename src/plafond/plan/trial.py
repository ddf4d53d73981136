"""Predictions against what phases really take, with random weights: the work of ``plafond calibrate``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

import torch

from plafond.data.buckets import Bucket
from plafond.families import families
from plafond.job.dataset import DatasetConfig
from plafond.job.model import ModelConfig
from plafond.job.network import NetworkConfig
from plafond.job.sample import SampleItem
from plafond.job.schema import ProcessConfig
from plafond.job.train import TrainConfig
from plafond.language.said import N_, Said, Value
from plafond.memory import profiled
from plafond.memory.calibration import Calibration, driver_version, known, processor
from plafond.memory.dryrun import Rehearsal
from plafond.memory.expandable import run_mode
from plafond.memory.gpus import context_overhead
from plafond.memory.kernels import Target
from plafond.memory.meter import Meter
from plafond.memory.real import Counted, Real, Silent
from plafond.memory.speed import rates_of
from plafond.memory.trace import Trace
from plafond.model.checkpoint import Altered
from plafond.plan.summaries import summarise
from plafond.plan.words import place

MINIATURE = N_("a miniature of {model} with {blocks} blocks, random weights, float32")
WHOLE = N_("{model} at full width, all {all} blocks, random weights, bfloat16")
CUT = N_("{model} at full width, {blocks} of {all} blocks, to fit, random weights, bfloat16")

RANK = 16
SPARE = 0.05
"""Part of a GPU's free memory that is left alone: the predictions are what is being tested."""
DEPTHS = (1.0, 0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)
"""Parts of the published depth, from the deepest, of which the first that fits is measured."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One phase on one shape."""

    phase: str
    bucket: Bucket | None = None
    batch: int = 1
    checkpointing: bool = True

    @property
    def said(self) -> Value:
        """The case in words."""
        where = place(self.phase, self.bucket)
        if self.phase != "train":
            return where
        checkpointing = Said(N_("checkpointing") if self.checkpointing else N_("no checkpointing"))
        return where, Said(N_("batch {size}"), {"size": self.batch}), checkpointing

    def play(self, rehearsal: Rehearsal) -> Trace:
        """Let a dry run, or a real one, do it."""
        item = None
        if self.phase == "preview" and self.bucket is not None:
            width, height = self.bucket.width, self.bucket.height
            item = SampleItem(prompt="a photo", width=width, height=height, sample_steps=2)
        return rehearsal.phase(self.phase, self.bucket, self.batch, item)


ON_GPU = (
    Case(phase="train", bucket=Bucket(1024, 1024)),
    Case(phase="train", bucket=Bucket(512, 512)),
    Case(phase="train", bucket=Bucket(768, 512), batch=2),
    Case(phase="train", bucket=Bucket(512, 512), checkpointing=False),
    Case(phase="train", bucket=Bucket(1024, 1024), checkpointing=False),
    Case(phase="encode_text"),
    Case(phase="cache_latents", bucket=Bucket(1024, 1024)),
    Case(phase="preview", bucket=Bucket(1024, 1024)),
)
"""The first one decides how deep a model is measured."""

ON_CPU = (
    Case(phase="train", bucket=Bucket(256, 256)),
    Case(phase="train", bucket=Bucket(384, 320), batch=2),
    Case(phase="train", bucket=Bucket(256, 256), checkpointing=False),
    Case(phase="encode_text"),
    Case(phase="cache_latents", bucket=Bucket(512, 512)),
    Case(phase="preview", bucket=Bucket(256, 256)),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A case with predicted and measured bytes of each quantity; `measured` is empty where memory ran out.

    The quantities are, on a GPU, ``allocated``, ``reserved`` and ``device`` bytes; on the CPU ``allocated`` as its
    allocator's profile has them, and ``counted`` as a virtual GPU counts them.
    """

    case: Case
    predicted: Mapping[str, int]
    measured: Mapping[str, int]

    def error(self, quantity: str) -> float | None:
        """Relative, positive when the prediction says too much; None for what was not measured."""
        measured = self.measured.get(quantity)
        return None if measured is None else self.predicted[quantity] / measured - 1


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was found on one device.

    Args:
        model: what was run, in words.
        rows: predicted and measured.
        assumed_overhead: what plans took for the overhead until now; None on a CPU.
        notes: what was left out.
        record: what later plans can use.
    """

    model: Said
    rows: tuple[Row, ...]
    assumed_overhead: int | None
    notes: tuple[Said, ...]
    record: Calibration


class Trial:
    """The cases of one device; to be made before anything is on it.

    Args:
        device: a CPU or, with its index, a GPU.
        doing: shows what is going on inside its ``with`` block.
    """

    def __init__(self, device: torch.device, doing: Callable[[Said], AbstractContextManager[None]]):
        self.device, self.doing = device, doing
        self.on_gpu = device.type == "cuda"
        self.meter = Meter(self.device) if self.on_gpu else None
        self.family = next(family for family in families() if family.miniature)
        self.notes: list[Said] = []

    def run(self) -> Result:
        """Everything, in some minutes."""
        rows = tuple(self._rows())
        with self.doing(Said(N_("measuring how fast the device is"))):
            rates = rates_of(self.device)
        seen = [row.measured["device"] - row.measured["reserved"] for row in rows if "device" in row.measured]
        record = Calibration(
            device=self.name,
            driver=driver_version() if self.on_gpu else "",
            torch=version("torch"),
            measured_at=time.strftime("%Y-%m-%d"),
            # the largest: kernels are loaded when they are first used
            overhead_bytes=max(seen, default=None),
            rates=rates,
        )
        return Result(
            model=self._described(),
            rows=rows,
            assumed_overhead=self.assumed_overhead if self.on_gpu else None,
            notes=tuple(self.notes),
            record=record,
        )

    # ------------------------------------------------------------------------------------------------ what

    @cached_property
    def name(self) -> str:
        """The device's name, as the driver gives it."""
        return torch.cuda.get_device_name(self.device) if self.on_gpu else processor()

    @cached_property
    def assumed_overhead(self) -> int:
        """What plans for this device take for the overhead so far."""
        record = known(self.name)
        return context_overhead(measured=None if record is None else record.overhead_bytes)

    @cached_property
    def source(self) -> Altered:
        """The model: a miniature on a CPU; on a GPU of full width, and as deep as fits."""
        if not self.on_gpu:
            return self._sized(self.family.miniature)
        room = self._room()
        for part in DEPTHS:
            depths = {key: max(1, round(count * part)) for key, count in self._published.items()}
            source = self._sized({"transformer": depths})
            if self._predict(ON_GPU[0], source)["device"] <= room:
                break
        return source

    def _sized(self, changes: Mapping[str, Mapping[str, int]]) -> Altered:
        return Altered(repo=self.family.base_models[0].repo, changes=changes)

    @cached_property
    def _published(self) -> dict[str, int]:
        """Blocks of each group of the published model, by configuration key."""
        config = self._sized({}).config("transformer")
        return {key: int(config[key]) for key in self.family.depth.values()}

    def _described(self) -> Said:
        title, full = self.family.base_models[0].title, sum(self._published.values())
        config = self.source.config("transformer")
        blocks = sum(int(config[key]) for key in self._published)
        values: dict[str, Value] = {"model": title, "blocks": blocks, "all": full}
        if not self.on_gpu:
            return Said(MINIATURE, values)
        return Said(WHOLE if blocks == full else CUT, values)

    def _room(self) -> float:
        """Device bytes that this process may have."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return (free + torch.cuda.memory_reserved(self.device)) * (1 - SPARE)

    # ------------------------------------------------------------------------------------------------ how much

    def _rows(self) -> Iterator[Row]:
        cases = ON_GPU if self.on_gpu else ON_CPU
        with self.doing(Said(N_("looking for what fits"))):
            source = self.source
        for index, case in enumerate(cases, start=1):
            values: dict[str, Value] = {"number": index, "count": len(cases), "case": case.said}
            with self.doing(Said(N_("{number}/{count} {case}"), values)):
                predicted = self._predict(case, source)
                if self.on_gpu and predicted["device"] > self._room():
                    self.notes.append(Said(N_("{case}: does not fit and was left out"), {"case": case.said}))
                    continue
                measured = self._on_gpu(case) if self.on_gpu else self._on_cpu(case)
            yield Row(case=case, predicted=predicted, measured=measured)

    def _dry(self, case: Case, source: Altered) -> Rehearsal:
        process = ProcessConfig(
            type="sd_trainer",
            model=ModelConfig(name_or_path=source.repo, arch=self.family.archs[0]),
            network=NetworkConfig(type="lora", linear=RANK, linear_alpha=RANK),
            datasets=(DatasetConfig(folder_path="."),),
            train=TrainConfig(
                batch_size=case.batch,
                gradient_checkpointing=case.checkpointing,
                dtype="bfloat16" if self.on_gpu else "float32",
                cache_text_embeddings=True,
            ),
        )
        if self.on_gpu:
            target = Target("cuda", torch.cuda.get_device_capability(self.device))
            return Rehearsal(process, self.family, source, target)
        # the CPU's allocator does not round sizes
        return Rehearsal(process, self.family, source, Target("cpu"), granule=1)

    def _predict(self, case: Case, source: Altered) -> dict[str, int]:
        found = summarise(case.play(self._dry(case, source)), mode=run_mode() if self.on_gpu else None)
        if not self.on_gpu:
            return {"allocated": found.allocated_bytes, "counted": found.allocated_bytes}
        return {
            "allocated": found.allocated_bytes,
            "reserved": found.reserved_bytes,
            "device": found.reserved_bytes + self.assumed_overhead,
        }

    def _on_cpu(self, case: Case) -> dict[str, int]:
        dry = self._dry(case, self.source)
        real = Real(dry, self.device, Silent(profiled.mark))
        allocated = profiled.measure(lambda: case.play(real)).tensors
        ledger = Counted(2**62, granule=dry.granule)
        case.play(Real(dry, self.device, ledger))
        return {"allocated": allocated, "counted": ledger.peak}

    def _on_gpu(self, case: Case) -> dict[str, int]:
        assert self.meter is not None
        real = Real(self._dry(case, self.source), self.device, Silent(self.meter.mark))
        try:
            taken = self.meter.measure(lambda: case.play(real))
        except torch.OutOfMemoryError:
            self.notes.append(Said(N_("{case}: memory ran out"), {"case": case.said}))
            return {}
        sizes = {"allocated": taken.allocated, "reserved": taken.reserved}
        return sizes if taken.device is None else {**sizes, "device": taken.device}

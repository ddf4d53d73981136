"""The plan of a job under a ceiling: every phase by a dry run, the peak, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from plafond.data.buckets import Bucket
from plafond.families import family_for
from plafond.job.sample import SampleItem
from plafond.job.schema import ProcessConfig
from plafond.memory.expandable import run_mode
from plafond.memory.gpus import Ceiling
from plafond.plan.shapes import Shapes, shapes_of
from plafond.plan.summaries import Summary, remembered, summarise

if TYPE_CHECKING:
    from plafond.memory.allocator import Mode
    from plafond.memory.dryrun import Rehearsal
    from plafond.memory.trace import Trace

MARGIN_SHARE = 0.02
MARGIN_BYTES = 256 * 2**20
"""A plan that leaves less than the larger of the two free is ``tight``; on a virtual GPU nothing can surprise."""

CAPABILITY = (8, 9)
"""Compute capability that is assumed when only a size is given."""

NOT_MEMORY = frozenset(
    {
        "steps",
        "lr",
        "lr_scheduler",
        "lr_scheduler_params",
        "timestep_type",
        "content_or_style",
        "skip_first_sample",
    }
    | {"force_first_sample", "disable_sampling", "batch_size", "min_denoising_steps", "max_denoising_steps"}
    | {"noise_scheduler", "start_step"}
)
"""Keys of ``train`` that change no byte of a phase (the batch size is part of the shape)."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase on one bucket; all sizes in bytes."""

    phase: str
    bucket: Bucket | None
    batch: int
    summary: Summary
    device_bytes: int
    fits: bool

    @property
    def activation_bytes(self) -> int:
        """Everything that does not stay from step to step."""
        kinds = self.summary.kinds
        return self.summary.allocated_bytes - sum(kinds.get(kind, 0) for kind in STAYING)


STAYING = ("weights", "lora", "gradients", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a job takes under a ceiling."""

    process: ProcessConfig
    ceiling: Ceiling
    virtual: bool
    shapes: Shapes
    phases: tuple[Phase, ...]

    @cached_property
    def peak(self) -> Phase:
        """The phase that takes the most."""
        return max(self.phases, key=lambda phase: phase.device_bytes)

    @property
    def verdict(self) -> str:
        """``fits``, ``tight`` or ``oom``."""
        if self.peak.device_bytes > self.ceiling.bytes:
            return "oom"
        margin = 0 if self.virtual else max(MARGIN_BYTES, round(MARGIN_SHARE * self.ceiling.bytes))
        return "fits" if self.ceiling.bytes - self.peak.device_bytes >= margin else "tight"

    @property
    def flops_per_picture(self) -> float:
        """Of a training step on the largest bucket."""
        phase = next(phase for phase in self.phases if phase.phase == "train")
        return phase.summary.flops / phase.batch


class Forecaster:
    """Plans one process on one kind of device.

    Args:
        process: the job's process.
        ceiling: what may be taken.
        virtual: the device is a virtual GPU on the CPU: no context, no caching.
        step: told each phase that is looked at, with how many there are.
    """

    def __init__(
        self,
        process: ProcessConfig,
        ceiling: Ceiling,
        *,
        virtual: bool = False,
        step: Callable[[str, int, int], None] | None = None,
    ):
        self.process, self.ceiling, self.virtual, self.step = process, ceiling, virtual, step
        self.family = family_for(process.model.arch)
        self.source = self.family.locate(process.model)

    def plan(self, shapes: Shapes | None = None, *, largest_only: bool = False) -> Plan:
        """Plan every phase.

        Args:
            shapes: what occurs; read from the data when not given.
            largest_only: only the bucket whose batches have the most pixels, which takes the most.
        """
        known = shapes or shapes_of(self.process, self.family)
        wanted = list(self._phases(known, largest_only))
        phases = []
        for index, (name, bucket, batch, item) in enumerate(wanted):
            if self.step:
                self.step(name, index, len(wanted))
            phases.append(self._phase(name, bucket, batch, item))
        return Plan(
            process=self.process,
            ceiling=self.ceiling,
            virtual=self.virtual,
            shapes=known,
            phases=tuple(phases),
        )

    def _phases(
        self, shapes: Shapes, largest_only: bool
    ) -> Iterator[tuple[str, Bucket | None, int, SampleItem | None]]:
        """In the order of a run."""
        buckets = list(shapes.batches)[:1] if largest_only else list(shapes.batches)
        for bucket in buckets:
            yield "cache_latents", bucket, 1, None
        yield "encode_text", None, 1, None
        yield "load", None, 1, None
        for bucket in buckets:
            yield "train", bucket, shapes.batches[bucket], None
        samples = () if self.process.train.disable_sampling else self.process.sample.samples
        if samples:
            item = max(samples, key=lambda item: item.width * item.height)
            yield "preview", Bucket(item.width, item.height), 1, item
        yield "save", None, 1, None

    def _phase(self, name: str, bucket: Bucket | None, batch: int, item: SampleItem | None) -> Phase:
        summary = remembered(
            self._key(name, bucket, batch, item),
            lambda: summarise(self._rehearse(name, bucket, batch, item), mode=self._mode),
        )
        device = summary.reserved_bytes + (0 if self.virtual else self.ceiling.overhead_bytes)
        return Phase(
            phase=name,
            bucket=bucket,
            batch=batch,
            summary=summary,
            device_bytes=device,
            fits=device <= self.ceiling.bytes,
        )

    @property
    def _mode(self) -> Mode | None:
        """How the run's allocator works; a virtual GPU has none."""
        return None if self.virtual else run_mode()

    @property
    def _capability(self) -> tuple[int, int]:
        gpu = self.ceiling.gpu
        return CAPABILITY if gpu is None or gpu.compute_capability is None else gpu.compute_capability

    def _key(self, name: str, bucket: Bucket | None, batch: int, item: SampleItem | None) -> dict[str, Any]:
        train = self.process.train.model_dump(mode="json", exclude=set(NOT_MEMORY))
        live = [data.cache_text_embeddings for data in self.process.datasets]
        return {
            "phase": name,
            "bucket": str(bucket),
            "batch": batch,
            "item": item and (item.width, item.height, item.guidance_scale > 1, item.sample_steps > 1),
            "train": train,
            "network": self.process.network and self.process.network.model_dump(mode="json"),
            "model": self.process.model.model_dump(mode="json"),
            "live_text": live,
            "files": self.source.fingerprint("") if self.source.is_local else "",
            "virtual": self.virtual,
            "allocator": self._mode,
            "capability": self._capability,
        }

    def _rehearse(self, name: str, bucket: Bucket | None, batch: int, item: SampleItem | None) -> Trace:
        return self._rehearsal.phase(name, bucket, batch, item)

    @cached_property
    def _rehearsal(self) -> Rehearsal:
        # torch is imported only when something is not remembered
        from plafond.memory.dryrun import Rehearsal
        from plafond.memory.kernels import Target

        target = Target("cpu") if self.virtual else Target("cuda", self._capability)
        return Rehearsal(self.process, self.family, self.source, target)

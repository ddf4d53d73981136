"""The plan of a job under a ceiling: every phase by a dry run, the peak, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from plafond.activations.ladder import Curve, Ladder
from plafond.activations.plan import RECOMPUTE_ALL, ActivationPlan, Activations, asked_for, is_open
from plafond.data.buckets import Bucket
from plafond.families import family_for
from plafond.job.sample import SampleItem
from plafond.job.schema import ProcessConfig
from plafond.memory.calibration import processor, rates_for
from plafond.memory.collector import paused
from plafond.memory.expandable import run_mode
from plafond.memory.gpus import Ceiling
from plafond.memory.trace import MICROS, Trace
from plafond.plan.lengths import Lengths, lengths_of
from plafond.plan.shapes import Shapes, shapes_of
from plafond.plan.solve import fastest
from plafond.plan.summaries import Summary, kept_json, remembered, summarise

if TYPE_CHECKING:
    from plafond.memory.allocator import Mode
    from plafond.memory.dryrun import Rehearsal

Sized = TypeVar("Sized", Bucket, Bucket | None)

BALANCE = 100.0
"""FLOP per byte that are assumed when only a size is given: between those of consumer cards of the last years."""

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
    | {"noise_scheduler", "start_step", "gradient_checkpointing"}
)
"""Keys of ``train`` that change no byte of a phase: the batch size is part of the shape, checkpointing that of the
levels."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What blocks keep in a training phase.

    Args:
        plan: the levels.
        slowdown: estimated time of a step, relative to one that computes nothing twice; None when nobody asked.
        leanest: the same of the plan that recomputes everything.
    """

    plan: ActivationPlan
    slowdown: float | None = None
    leanest: float | None = None


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase on one bucket; all sizes in bytes."""

    phase: str
    bucket: Bucket | None
    batch: int
    summary: Summary
    device_bytes: int
    fits: bool
    activations: Chosen | None = None

    @property
    def activation_bytes(self) -> int:
        """Everything that does not stay from step to step."""
        kinds = self.summary.kinds
        return self.summary.allocated_bytes - sum(kinds.get(kind, 0) for kind in STAYING)


PHASES = ("cache_latents", "encode_text", "load", "train", "preview", "save")
"""In the order of a run."""

STAYING = ("weights", "lora", "gradients", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a job takes under a ceiling."""

    process: ProcessConfig
    ceiling: Ceiling
    virtual: bool
    shapes: Shapes
    lengths: Lengths = field(default_factory=Lengths)
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
        spare = margin(self.ceiling, virtual=self.virtual)
        return "fits" if self.ceiling.bytes - self.peak.device_bytes >= spare else "tight"

    @property
    def activations(self) -> Activations:
        """What blocks keep on each bucket."""
        chosen = {str(phase.bucket): phase.activations.plan for phase in self.phases if phase.activations}
        return Activations(default=asked_for(self.process), buckets=chosen)

    @property
    def flops_per_picture(self) -> float:
        """Of a training step on the largest bucket."""
        phase = next(phase for phase in self.phases if phase.phase == "train")
        micros = min(MICROS, self.process.train.gradient_accumulation)
        return phase.summary.flops / (phase.batch * micros)


def margin(ceiling: Ceiling, *, virtual: bool) -> int:
    """Bytes that a plan leaves free to count as one that fits."""
    return 0 if virtual else max(MARGIN_BYTES, round(MARGIN_SHARE * ceiling.bytes))


class Forecaster:
    """Plans one process on one kind of device.

    Args:
        process: the job's process.
        ceiling: what may be taken.
        virtual: the device is a virtual GPU on the CPU: no context, no caching.
        step: told each phase that is looked at, with how many there are.
        plain: predict what AI Toolkit's code takes; see `plafond.plan.ai_toolkit`.
    """

    def __init__(
        self,
        process: ProcessConfig,
        ceiling: Ceiling,
        *,
        virtual: bool = False,
        step: Callable[[str, int, int], None] | None = None,
        plain: bool = False,
    ):
        self.process, self.ceiling, self.virtual, self.step = process, ceiling, virtual, step
        self.plain = plain
        self.lengths = Lengths()
        self.controls: dict[Bucket, tuple[Bucket, ...]] | None = None
        self.family = family_for(process.model.arch)
        self.source = self.family.locate(process.model)

    def plan(
        self,
        shapes: Shapes | None = None,
        *,
        largest_only: bool = False,
        only: Container[str] = PHASES,
    ) -> Plan:
        """Plan every phase.

        Args:
            shapes: what occurs; read from the data when not given.
            largest_only: only the bucket whose batches have the most pixels, which takes the most.
            only: these phases.
        """
        known = shapes or shapes_of(self.process, self.family)
        self._know(known)
        wanted = [phase for phase in self._phases(known, largest_only) if phase[0] in only]
        phases = []
        with paused():
            for index, (name, bucket, batch, item) in enumerate(wanted):
                if self.step:
                    self.step(name, index, len(wanted))
                phases.append(self._phase(name, bucket, batch, item))
        return Plan(
            process=self.process,
            ceiling=self.ceiling,
            virtual=self.virtual,
            shapes=known,
            lengths=self.lengths,
            phases=tuple(phases),
        )

    def _know(self, shapes: Shapes) -> None:
        """Take what the data says beside its buckets, for all that is asked from now on."""
        most = (
            max((len(data.control_path) for data in self.process.datasets), default=0)
            if shapes.controls is None
            else max(map(len, shapes.controls.values()), default=0)
        )
        self.lengths = lengths_of(self.process, self.family, self.source, shapes.captions, most)
        self.controls = shapes.controls
        vars(self).pop("_rehearsal", None)  # it was told otherwise

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
            sizes = [
                (Bucket(item.width, item.height, self.family.frames(item.num_frames)), item)
                for item in samples
            ]
            bucket, item = max(sizes, key=lambda size: size[0].pixels)
            yield "preview", bucket, 1, item
        yield "save", None, 1, None

    def _phase(self, name: str, bucket: Bucket | None, batch: int, item: SampleItem | None) -> Phase:
        chosen = None
        if name == "train":
            assert bucket is not None
            chosen = (
                self._solve(bucket, batch) if is_open(self.process) else Chosen(plan=asked_for(self.process))
            )
        summary = self._summary(name, bucket, batch, item, chosen.plan if chosen else None)
        device = self._device_bytes(summary)
        return Phase(
            activations=chosen,
            phase=name,
            bucket=bucket,
            batch=batch,
            summary=summary,
            device_bytes=device,
            fits=device <= self.ceiling.bytes,
        )

    def _device_bytes(self, summary: Summary) -> int:
        return summary.reserved_bytes + (0 if self.virtual else self.ceiling.overhead_bytes)

    def _summary(
        self,
        name: str,
        bucket: Bucket | None,
        batch: int,
        item: SampleItem | None,
        plan: ActivationPlan | None,
        play: Callable[[], Trace] | None = None,
    ) -> Summary:
        bucket = self._lying(bucket)

        def rehearse() -> Trace:
            self._rehearsal.activations = Activations(default=plan or RECOMPUTE_ALL)
            return self._rehearsal.phase(name, bucket, batch, item)

        def find() -> Summary:
            return summarise((play or rehearse)(), mode=self._mode)

        levels = plan and {"default": asdict(plan.default), "groups": _plain(plan)}
        return remembered({**self._key(name, bucket, batch, item), "levels": levels}, find)

    def _lying(self, bucket: Sized) -> Sized:
        """The bucket that is rehearsed in this one's place: standing pictures take the same as lying ones."""
        beside = self.controls and any(self.controls.values())
        if bucket is None or beside or not self.family.either_way:
            return bucket
        return replace(
            bucket, width=max(bucket.width, bucket.height), height=min(bucket.width, bucket.height)
        )

    def loaded_bytes(self) -> int:
        """Weights on the device once the model is loaded."""
        return self._summary("load", None, 1, None, None).kinds.get("weights", 0)

    def ladder(self, bucket: Bucket, batch: int) -> Ladder:
        """The plans between recomputing everything and nothing on one bucket."""
        bucket = self._lying(bucket)

        def find() -> dict[str, Any]:
            from plafond.activations.ladder import curve_of, leanest

            self._rehearsal.activations = Activations(default=leanest(self.balance))
            trace = self._rehearsal.train(bucket, batch)
            curves = {group: curve_of(menu, self.balance) for group, menu in self._rehearsal.menus.items()}
            self._summary("train", bucket, batch, None, Ladder(curves, depths).plan(0), lambda: trace)
            return {group: curve.as_json() for group, curve in curves.items()}

        depths = self.family.block_counts(self.source.config(self.family.denoiser))
        key = {**self._key("ladder", bucket, batch, None), "balance": self.balance}
        curves = kept_json(key, find, lambda kept: {name: Curve.from_json(one) for name, one in kept.items()})
        return Ladder(curves, depths)

    def rung_bytes(self, ladder: Ladder, rung: int, bucket: Bucket, batch: int) -> int:
        """Device bytes of training under one plan of a ladder."""
        return self._device_bytes(self._summary("train", bucket, batch, None, ladder.plan(rung)))

    def fastest_rung(self, ladder: Ladder, bucket: Bucket, batch: int) -> int:
        """The highest rung of a ladder that fits, or the lowest when none does."""
        limit = self.ceiling.bytes - margin(self.ceiling, virtual=self.virtual)
        return fastest(ladder, lambda rung: self.rung_bytes(ladder, rung, bucket, batch), limit)

    def _solve(self, bucket: Bucket, batch: int) -> Chosen:
        ladder = self.ladder(bucket, batch)
        rung = self.fastest_rung(ladder, bucket, batch)
        return Chosen(plan=ladder.plan(rung), slowdown=ladder.slowdown(rung), leanest=ladder.slowdown(0))

    @cached_property
    def balance(self) -> float:
        """FLOP that the device does in the time in which it moves one byte of its memory."""
        if self.ceiling.gpu is None and not self.virtual:
            return BALANCE
        rates = rates_for(processor() if self.virtual or self.ceiling.gpu is None else self.ceiling.gpu)
        return float(f"{rates.matmul_flops / rates.memory_bandwidth:.2g}")

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
            "item": item
            and (
                item.width,
                item.height,
                item.guidance_scale > 1,
                item.sample_steps > 1,
                item.control_images,
            ),
            "tiled": name == "preview" and self.process.plafond.tiled_previews,
            "train": train,
            "network": self.process.network and self.process.network.model_dump(mode="json"),
            "model": self.process.model.model_dump(mode="json"),
            "live_text": live,
            "controls": [(len(data.control_path), data.do_i2v) for data in self.process.datasets],
            "control sizes": self.controls and [f"{size}: {self.controls[size]}" for size in self.controls],
            "lengths": self.lengths.tokens,
            "masks": any(data.is_masked for data in self.process.datasets),
            "prior": any(data.prior_reg for data in self.process.datasets),
            "files": self.source.fingerprint("") if self.source.is_local else "",
            "virtual": self.virtual,
            "plain": self.plain,
            "allocator": self._mode,
            "capability": self._capability,
        }

    @cached_property
    def _rehearsal(self) -> Rehearsal:
        # torch is imported only when something is not remembered
        from plafond.memory.dryrun import Rehearsal
        from plafond.memory.kernels import Target
        from plafond.memory.standins import Given

        target = Target("cpu") if self.virtual else Target("cuda", self._capability)
        rehearsal = Rehearsal(self.process, self.family, self.source, target, plain=self.plain)
        captions, shortest, previews = self.lengths.tokens
        rehearsal.given = Given(
            captions=captions, shortest=shortest, previews=previews, controls=self.controls
        )
        return rehearsal


def _plain(plan: ActivationPlan) -> dict[str, Any]:
    return {
        group: [[asdict(level), length] for level, length in segments]
        for group, segments in plan.groups.items()
    }

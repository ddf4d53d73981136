"""The dry run: every phase of a job, by the code that trains, on tensors without data.

`Rehearsal` builds the job's models on the ``meta`` device and sends them through the same functions that a run calls:
the LoRA's injection, the optimizer, the step, the average, the family's text encoding, image encoding and preview.
What each allocates is written down by a ledger. A transformer is built with four blocks of each kind and its trace
lengthened (`plafond.memory.depth`); when its blocks turn out not to be alike, it is built in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from plafond.activations.choose import Menu
from plafond.activations.plan import ActivationPlan, Activations, asked_for
from plafond.data.buckets import Bucket
from plafond.families._contract import Family, TextEmbedding
from plafond.job.sample import SampleItem
from plafond.job.schema import ProcessConfig
from plafond.memory.collector import paused
from plafond.memory.depth import (
    SHALLOW,
    SHALLOW_STREAMED,
    NotUniform,
    deepen_segments,
    shallow_lengths,
)
from plafond.memory.kernels import Target, chosen_kernels
from plafond.memory.meta import MetaLedger
from plafond.memory.passages import Passages, state_of
from plafond.memory.plainly import plainly
from plafond.memory.residence import counting, host_memory, move_in, put
from plafond.memory.stage import Stage
from plafond.memory.standins import (
    Given,
    ask_blank,
    control_buckets,
    pixels_of,
    stand_in,
    training_controls,
    unfilled,
)
from plafond.memory.trace import GRANULE, Trace
from plafond.model.checkpoint import Source, loaded_dtype
from plafond.model.rehearsal import of_length
from plafond.training.base import bring_encoders
from plafond.training.export import DTYPES
from plafond.training.trainee import Trainee, leaders

META = torch.device("meta")
PREVIEW_STEPS = 2
"""Denoising steps that are traced of a preview."""
SMALL = 64
"""Side in pixels of the bucket of a step that only has to leave the device as steps do."""


class Rehearsal:
    """The phases of one process of a job on one kind of device.

    Each method returns the trace of one phase, which starts with what is on the device when the phase begins.

    Args:
        process: the job's process.
        family: its model's family.
        source: where the model's configurations are.
        target: the device that is predicted.
        granule: sizes are rounded up to multiples of it.
        full_depth: build every block instead of lengthening the trace; for tests.
        device: ``meta``; a real one runs the same phases for real, to compare.
        plain: predict what AI Toolkit's code takes instead; see `plafond.memory.plainly`.

    Attributes:
        activations: what blocks keep in training; what the job asks for, unless it is set.
        menus: what a block of each group can keep, as of the last training phase.
        given: what is known of the data beside its buckets.
    """

    def __init__(
        self,
        process: ProcessConfig,
        family: Family,
        source: Source,
        target: Target,
        *,
        granule: int = GRANULE,
        full_depth: bool = False,
        device: torch.device = META,
        plain: bool = False,
    ):
        self.plain = plain
        self.process, self.family, self.source, self.target = process, family, source, target
        self.granule, self.full_depth, self.device = granule, full_depth, device
        self.activations = Activations(default=asked_for(process))
        self.menus: dict[str, Menu] = {}
        self.given = Given()
        self.dtype = DTYPES[process.train.dtype]
        self.config = source.config(family.denoiser)

    def disguise(self, trainee: Trainee) -> None:
        """Let a trainee do as another trainer does, where that one is predicted."""
        if self.plain:
            plainly(trainee)

    # ------------------------------------------------------------------------------------------------ phases

    def phase(
        self, name: str, bucket: Bucket | None = None, batch: int = 1, item: SampleItem | None = None
    ) -> Trace:
        """One of the phases below by its name, with what it needs."""
        match name:
            case "load" | "encode_text" | "save":
                return getattr(self, name)()  # type: ignore[no-any-return]
            case "preview":
                assert item is not None
                return self.preview(item)
        assert bucket is not None
        return self.train(bucket, batch) if name == "train" else self.cache_latents(bucket)

    def load(self) -> Trace:
        """The transformer arrives, beside text encoders that stay."""

        def phase(ledger: MetaLedger, stage: Stage) -> None:
            ledger.mark()
            ledger.stage = "loading"
            stage.load()

        return self._deep(phase)

    def encode_text(self) -> Trace:
        """The text encoders arrive and encode one prompt."""
        with self._ledger() as ledger:
            ledger.mark()
            encoders = self._encoders(ledger)
            ledger.stage = "encoding text"
            with of_length(self.given.longest):
                ask_blank(self.family, encoders, self.most_controls)
            return ledger.trace

    def cache_latents(self, bucket: Bucket) -> Trace:
        """The autoencoder arrives and encodes one picture, and a control image if there are any."""
        with self._ledger() as ledger:
            ledger.mark()
            vae = self._vae(ledger)
            ledger.stage = "encoding pictures"
            for size in dict.fromkeys([bucket, *self.controls_of(bucket)]):
                with host_memory():
                    pixels = unfilled(*pixels_of(size))
                self.family.encode_image(vae, put(pixels, self.device, self.dtype))
            return ledger.trace

    def train(self, bucket: Bucket, batch: int) -> Trace:
        """A step on a batch; where experts take turns, one of each."""
        shape = self._latent_shape(bucket)

        def phase(ledger: MetaLedger, stage: Stage) -> None:
            stage.load()
            self._prepare_products(ledger)
            if stage.leaves_something:
                stage.step(1, shape, bucket, batch)
            ledger.mark()
            stage.step(stage.next_turn(), shape, bucket, batch)
            self.menus = stage.menus()

        trace = self._deep(phase, self.activations.of(str(bucket)))
        if self.target.is_cuda:
            trace.repeat()  # the allocator may need more for a second step than for the first
        return trace

    def preview(self, item: SampleItem) -> Trace:
        """One preview, while all that training needs stays."""

        def phase(ledger: MetaLedger, stage: Stage) -> None:
            self._between_steps(ledger, stage)
            ledger.stage = "preview"
            ledger.mark()
            stage.preview(item.model_copy(update={"sample_steps": min(PREVIEW_STEPS, item.sample_steps)}))

        return self._deep(phase)

    def save(self) -> Trace:
        """The weights are copied to main memory, the averages in their place if there are any."""

        def phase(ledger: MetaLedger, stage: Stage) -> None:
            self._between_steps(ledger, stage)
            ledger.mark()
            ledger.stage = "saving"
            stage.save()

        return self._deep(phase)

    def _prepare_products(self, ledger: MetaLedger) -> None:
        ledger.prepare_products()

    def _between_steps(self, ledger: MetaLedger, stage: Stage) -> None:
        """The device as a step has left it."""
        stage.load()
        self._prepare_products(ledger)
        if stage.leaves_something:
            small = Bucket(SMALL, SMALL)
            stage.step(1, self._latent_shape(small), small, 1, controls=False)

    # ------------------------------------------------------------------------------------------------ parts

    @contextmanager
    def _ledger(self) -> Iterator[MetaLedger]:
        ledger = MetaLedger(self.target, granule=self.granule)
        with paused(), chosen_kernels(self.target), counting(ledger):
            yield ledger
            ledger.finish()

    def _deep(
        self, phase: Callable[[MetaLedger, Stage], None], activations: ActivationPlan | None = None
    ) -> Trace:
        """The trace of a phase in which every block does what `activations` says."""
        plan = activations or self.activations.default
        depths = {group: int(self.config[key]) for group, key in self.family.depth.items()}
        first = leaders(self.family)
        segments = {group: plan.segments(first[group], depth) for group, depth in depths.items()}
        lengths = {group: [length for _, length in found] for group, found in segments.items()}
        model = self.process.model
        uneven = model.layer_offloading and model.layer_offloading_transformer_percent < 1
        enough = SHALLOW_STREAMED if model.layer_offloading else SHALLOW
        short_enough = all(length <= enough for found in lengths.values() for length in found)
        if self.full_depth or uneven or short_enough:
            return self._play(phase, self.config, plan)
        short = {group: shallow_lengths(found, enough) for group, found in lengths.items()}
        config = {self.family.depth[group]: sum(found) for group, found in short.items()}
        shallow = replace(
            plan,
            groups={
                group: tuple((level, length) for (level, _), length in zip(found, short[group], strict=True))
                for group, found in segments.items()
            },
        )
        try:
            return deepen_segments(self._play(phase, {**self.config, **config}, shallow), lengths, enough)
        except NotUniform:
            return self._play(phase, self.config, plan)

    def _play(
        self, phase: Callable[[MetaLedger, Stage], None], config: dict[str, Any], plan: ActivationPlan
    ) -> Trace:
        with self._ledger() as ledger:
            stage = Stage(self, ledger, config, plan)
            phase(ledger, stage)
            stage.close()
            return ledger.trace

    def build(self, make: Callable[[], nn.Module]) -> nn.Module:
        """A frozen module on meta, in the run's dtype and in main memory."""
        with host_memory(), self.device:
            module = make()
            for name, parameter in module.named_parameters():
                parameter.data = parameter.data.to(loaded_dtype(module, name, self.dtype))
            for name, buffer in module.named_buffers():
                if buffer.is_floating_point():
                    buffer.data = buffer.data.to(loaded_dtype(module, name, self.dtype))
        return module.requires_grad_(False)

    def _vae(self, ledger: MetaLedger) -> nn.Module:
        ledger.stage = "loading the VAE"
        return move_in(self.vae, self.device)

    def _encoders(self, ledger: MetaLedger) -> Any:
        ledger.stage = "loading the text encoders"
        if self.device != META:
            return self._load_encoders()
        return self.parts.passages.lasting(
            "encoders",
            ledger,
            self._load_encoders,
            lambda encoders: state_of(*self.family.text_modules(encoders)),
        )

    def repeated(self, key: Any, ledger: MetaLedger, work: Callable[[], TextEmbedding]) -> TextEmbedding:
        """What `work` makes without data: done once under `key`, then only counted."""
        return work() if self.device != META else self.parts.passages.passing(key, ledger, work)

    def _load_encoders(self) -> Any:
        encoders, model = self.encoders, self.process.model
        modules = self.family.text_modules(encoders)
        if model.text_format is not None or model.layer_offloading:
            self.parts.encoders = None  # once packed or taken apart, they are this phase's own
        bring_encoders(modules, model, self.device)
        return encoders

    @property
    def parts(self) -> Parts:
        """Text encoders and autoencoder, made when they are needed."""
        model = self.process.model.model_dump_json()
        files = self.source.fingerprint("") if self.source.is_local else ""
        key = (self.family.name, model, files, self.dtype, self.device)
        if key not in _parts:
            _parts.clear()
            _parts[key] = Parts()
        return _parts[key]

    @property
    def encoders(self) -> Any:
        """The text encoders in main memory."""
        parts = self.parts
        if parts.encoders is None:
            with host_memory(), self.device:
                parts.encoders = self.family.build_text_encoders(self.source)
            for module in self.family.text_modules(parts.encoders):
                self.build(lambda module=module: module)  # type: ignore[misc]
        return parts.encoders

    @property
    def vae(self) -> nn.Module:
        """The autoencoder in main memory."""
        parts = self.parts
        if parts.vae is None:
            parts.vae = self.build(lambda: self.family.build_vae(self.source))
        with host_memory():
            return parts.vae.to(self.device)  # from where the last preview has put it

    @property
    def most_controls(self) -> int:
        """The most control images that a picture has."""
        if self.given.controls is None:
            return training_controls(self.process, self.family)
        return max(map(len, self.given.controls.values()), default=0)

    def controls_of(self, bucket: Bucket) -> Sequence[Bucket]:
        """Sizes of the control images of a picture of a bucket; where its data is not at hand, by its own shape."""
        if self.given.controls is None:
            return control_buckets(self.process, self.family, bucket)
        return self.given.controls.get(bucket, ())

    def text(self, controls: int, tokens: int | None) -> TextEmbedding:
        """Stand-ins for the embedding of one prompt of so many tokens with so many control images."""
        known, key = self.parts.texts, (controls, tokens)
        if key not in known:
            with self._ledger(), host_memory(), of_length(tokens):
                known[key] = stand_in(ask_blank(self.family, self.encoders, controls), self.dtype)
        return known[key]

    def _latent_shape(self, bucket: Bucket) -> tuple[int, ...]:
        """(C, h, w), or (C, frames, h, w), of a picture of this bucket, as the autoencoder makes it."""
        known = self.parts.latent_shapes
        if bucket not in known:
            with self._ledger(), host_memory():
                pixels = torch.empty(*pixels_of(bucket), device=self.device, dtype=self.dtype)
                known[bucket] = tuple(self.family.encode_image(self.vae, pixels).shape[1:])
        return known[bucket]


@dataclass
class Parts:
    """Models that several rehearsals use one after the other, in main memory between them."""

    encoders: Any = None
    vae: nn.Module | None = None
    texts: dict[tuple[int, int | None], TextEmbedding] = field(default_factory=dict)
    latent_shapes: dict[Bucket, tuple[int, ...]] = field(default_factory=dict)
    passages: Passages = field(default_factory=Passages)


_parts: dict[Any, Parts] = {}
"""The parts of the model that was asked for last: plans with one setting changed share them."""

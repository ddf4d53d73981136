"""A run's state in a dry run: what `plafond.training.loop.Run` builds, and what it does with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from plafond.activations.choose import Menu
from plafond.activations.plan import ActivationPlan, Activations
from plafond.data.batches import Batch
from plafond.data.buckets import Bucket
from plafond.families._contract import TextEmbedding, control
from plafond.job.sample import SampleItem
from plafond.memory.meta import MetaLedger
from plafond.memory.passages import state_of
from plafond.memory.residence import host_memory, label
from plafond.memory.standins import (
    PROMPT,
    ask_blank,
    blank_control,
    item_of,
    unfilled,
    without_files,
)
from plafond.memory.trace import MICROS
from plafond.model.rehearsal import of_length
from plafond.training.assistant import Assistant, merge_local_assistant
from plafond.training.base import quantize_transformer
from plafond.training.ema import Ema
from plafond.training.embeddings import about_preview, preview_controls, stack
from plafond.training.optim import make_optimizer, make_state
from plafond.training.preview import Previewer
from plafond.training.run_folder import RunFolder
from plafond.training.step import MicroBatch, Stepper
from plafond.training.trainee import Trainee, make_trainee

if TYPE_CHECKING:
    from plafond.memory.dryrun import Rehearsal


class Stage:
    """A run's state in a dry run: what `plafond.training.loop.Run` builds."""

    def __init__(
        self, rehearsal: Rehearsal, ledger: MetaLedger, config: dict[str, Any], plan: ActivationPlan
    ):
        self.config, self.plan = config, plan
        self.rehearsal, self.ledger = rehearsal, ledger
        self.process, self.family = rehearsal.process, rehearsal.family
        self.controls = rehearsal.most_controls
        self._masked = any(data.is_masked for data in self.process.datasets)
        self.live_text = self.process.encodes_live
        self.encoders: Any = rehearsal._encoders(ledger) if self.live_text else None

    def load(self) -> None:
        """The transformer arrives with its adapter; optimizer and average are made."""
        rehearsal = self.rehearsal
        transformer, assistant = self._base()
        with host_memory():
            self.trainee: Trainee = make_trainee(
                transformer, self.family, without_files(self.process), rehearsal.target, assistant
            )
        rehearsal.disguise(self.trainee)
        self._undo = self.ledger.watch(transformer)
        self.ledger.watch_gradients(self.trainee.parameters.values())
        self.trainee.move_in(rehearsal.device, self.process.model)
        network = self.trainee.network
        if network is not None and not (self.process.network and self.process.network.pretrained_lora_path):
            self.ledger.blank(network.blank())
        settings = self.process.train
        self.optimizer = make_optimizer(self.trainee.parameters.values(), settings)
        if self.rehearsal.target.is_cuda:
            _for_each(self.optimizer)
        ema = settings.ema_config
        self.ema = Ema(self.trainee.parameters, ema.ema_decay) if ema.use_ema else None
        label(self.ema.averages.values() if self.ema else (), "optimizer")
        make_state(self.optimizer)
        self.stepper = Stepper(
            self.trainee,
            self.family,
            self.process,
            self.rehearsal.device,
            self.rehearsal.dtype,
            Activations(default=self.plan),
        )

    def _base(self) -> tuple[nn.Module, Assistant | None]:
        """The transformer without its adapter; what else there is of it in main memory arrives later."""
        rehearsal, model = self.rehearsal, self.process.model

        def arrive() -> tuple[nn.Module, Assistant | None]:
            with host_memory():
                transformer = rehearsal.build(lambda: self.family.build_transformer(self.config))
            assistant = merge_local_assistant(transformer, model.assistant_lora_path)
            quantize_transformer(transformer, self.family, model, rehearsal.device)
            return transformer, assistant

        # copies of what has no data take nothing; streamed weights and an assistant have some
        if model.assistant_lora_path or model.layer_offloading or rehearsal.device.type != "meta":
            return arrive()
        key = "transformer", json.dumps(self.config, sort_keys=True)
        return rehearsal.parts.passages.copied(key, self.ledger, arrive, lambda base: state_of(base[0]))

    def step(
        self, step: int, shape: tuple[int, ...], bucket: Bucket, size: int, *, controls: bool = True
    ) -> None:
        """What the loop does for one step; without control images where only what it leaves behind matters."""
        count = min(MICROS, self.process.train.gradient_accumulation)
        items = tuple(item_of(self.process, bucket) for _ in range(size))
        micros = []
        for index in range(count):
            with host_memory():
                latents = unfilled(size, *shape, dtype=self.rehearsal.dtype)
            batch = Batch(index, 0, bucket, items)
            given = self._controls(size, bucket) if controls else {}
            text = {**self._text(size), **given}
            preserves = self.process.train.preserves is not None
            kept = {**self._text(size), **given} if preserves else None
            masks = unfilled(size, 1, *shape[-2:]) if self._masked else None
            micros.append(
                MicroBatch(
                    batch=batch,
                    latents=latents,
                    text=text,
                    kept=kept,
                    masks=masks,
                    step=step,
                    index=index,
                    share=1 / count,
                )
            )
        self.stepper.run(micros, self.optimizer)
        if self.ema is not None:
            self.ema.update()

    @property
    def leaves_something(self) -> bool:
        """Whether a step leaves the device otherwise than it found it: with other blocks, or another expert, on it."""
        return self.trainee.turns is not None or self.process.model.layer_offloading

    def next_turn(self) -> int:
        """A step of another expert than the first step's, if there are several."""
        return 1 if self.trainee.turns is None else 1 + self.trainee.turns.every

    def _text(self, size: int) -> TextEmbedding:
        lengths = self.rehearsal.given.batch(size)
        if self.live_text:
            key = "text", size, self.controls, *lengths
            return self.rehearsal.repeated(key, self.ledger, lambda: self._encode(lengths))
        if len(set(lengths)) > 1:
            with host_memory():
                return stack([self.rehearsal.text(self.controls, tokens) for tokens in lengths])
        text = self.rehearsal.text(self.controls, lengths[0])
        return {name: tensor.expand(size, *tensor.shape) for name, tensor in text.items()}

    def _encode(self, lengths: Sequence[int | None]) -> TextEmbedding:
        if (self.controls and self.family.sees_controls) or len(set(lengths)) > 1:
            found = []
            for tokens in lengths:
                with of_length(tokens):
                    found.append(ask_blank(self.family, self.encoders, self.controls))
            return stack(found)
        with of_length(lengths[0]):
            return stack(self.family.encode_text(self.encoders, [PROMPT] * len(lengths)))

    def _controls(self, size: int, bucket: Bucket) -> TextEmbedding:
        sizes = self.rehearsal.controls_of(bucket)
        shapes = [self.rehearsal._latent_shape(one) for one in sizes]
        with host_memory():
            latents = [unfilled(size, *shape, dtype=self.rehearsal.dtype) for shape in shapes]
        return {control(place): latent for place, latent in enumerate(latents)}

    def preview(self, item: SampleItem) -> None:
        """One preview."""
        text = self.rehearsal.text(len(preview_controls(self.family, item)), self.rehearsal.given.previews)
        questions = [about_preview(self.family, item, prompt) for prompt in (item.prompt, item.neg)]
        previewer = Previewer(
            self.trainee,
            self.family,
            self.process,
            self.rehearsal.source,
            lambda: self.rehearsal.vae,
            dict.fromkeys(questions, text),
            RunFolder(self.process.training_folder, "dry run"),
            self.rehearsal.device,
            self.rehearsal.dtype,
        )
        previewer.read = blank_control
        with previewer.ready(self.ema) as vae:
            previewer.picture(item, vae)

    def save(self) -> None:
        """What the loop copies when it saves."""
        with self.ema.applied() if self.ema is not None else nullcontext():
            self.trainee.weights()

    def menus(self) -> dict[str, Menu]:
        """What a block of each group can keep: of its last block but one, which is like all but the ends.

        Where that one has nothing before it that learns, the last one stands for the group.
        """
        found: dict[str, Menu] = {}
        for group, blocks in self.trainee.blocks.items():
            learnt = blocks[max(0, len(blocks) - 2)].learnt or blocks[-1].learnt
            if learnt is not None and self.trainee.leaders.get(group, group) == group:
                found[group] = learnt.menu
        return found

    def close(self) -> None:
        """Stop attributing what the model does."""
        for undo in self._undo:
            undo()


def _for_each(optimizer: torch.optim.Optimizer) -> None:
    """On CUDA torch's optimizers work on lists of parameters by default; on meta they have to be told."""
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True

"""What each step trains on: a pure function of the job, the data and the step's number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from plafond.data.batches import Batch, BatchPlan, Item
from plafond.data.buckets import Bucket
from plafond.data.captions import CAPTION_VARIANTS, preserved
from plafond.data.controls import control_items
from plafond.data.masks import Masks, as_weights
from plafond.data.text import Question
from plafond.families._contract import INPAINT, Family, TextEmbedding, control
from plafond.job.schema import ProcessConfig
from plafond.memory.residence import host_memory
from plafond.training.embeddings import about_item, stack
from plafond.training.step import MicroBatch

Embed = Callable[[Sequence[Question]], list[TextEmbedding]]


class Feed:
    """The micro-batches of every step.

    With a regularisation set, odd steps take from the data and even steps from that set, as AI Toolkit does.

    Args:
        process: the job's process.
        plan: the order of the training data.
        regularisation: the order of the regularisation data, if there is any.
        latents: cached latents (C, h, w) by item.
        embed: text embeddings of prompts.
        family: the model's family.
        masks: how much each place of the items counts; see `plafond.data.masks.read_masks`.
        kept: how much is kept of each place of items that are to be completed.
        tour: begin with the fullest batch of each bucket.
    """

    def __init__(
        self,
        process: ProcessConfig,
        plan: BatchPlan,
        regularisation: BatchPlan | None,
        latents: Mapping[Item, Tensor],
        embed: Embed,
        family: Family,
        masks: Masks | None = None,
        kept: Masks | None = None,
        tour: bool = False,
    ):
        self.process, self.plan, self.regularisation = process, plan, regularisation
        self.latents, self.embed, self.family = latents, embed, family
        self.masks, self.kept = masks or {}, kept or {}
        self._first = self._tour() if tour else []

    def batches(self, step: int) -> tuple[BatchPlan, list[Batch]]:
        """The batches of a step (counted from 1), and the plan they belong to."""
        count = self.process.train.gradient_accumulation
        if step <= len(self._first):
            plan, batch = self._first[step - 1]
            return plan, [batch] * count
        step -= len(self._first)
        plan, turn = self.plan, step
        if self.regularisation is not None:
            plan, turn = (self.regularisation, step // 2) if step % 2 == 0 else (self.plan, (step + 1) // 2)
        return plan, [plan.batch_at(number) for number in range((turn - 1) * count, turn * count)]

    def prompts(self, plan: BatchPlan, batch: Batch) -> list[str]:
        """The caption of each item as it is drawn this time."""
        cached = self.process.caches_text
        if self.process.train.unload_text_encoder and not cached:
            # AI Toolkit's meaning of the key: one fixed prompt, the trigger word alone.
            return [item.config.trigger_word or "" for item in batch.items]
        return plan.captions(batch, variants=CAPTION_VARIANTS if cached else None)

    def micros(self, step: int) -> list[MicroBatch]:
        """The micro-batches of a step, ready for the device."""
        plan, drawn = self.batches(step)
        total = sum(len(batch.items) for batch in drawn)
        return [
            self._micro(plan, batch, step, index, len(batch.items) / total)
            for index, batch in enumerate(drawn)
        ]

    def fullest(self) -> MicroBatch | None:
        """A micro-batch with the most pixels, outside of the run's order; None when all have the same shape."""
        if len({shape for plan in self._plans() for shape in plan.shapes()}) == 1:
            return None
        plan, batch = self._tour()[0]
        return self._micro(plan, batch, 0, 0, 1.0)

    def _plans(self) -> list[BatchPlan]:
        return [plan for plan in (self.plan, self.regularisation) if plan is not None]

    def _tour(self) -> list[tuple[BatchPlan, Batch]]:
        """The fullest batch of each bucket, from the most pixels to the fewest."""
        both = [(plan, batch) for plan in self._plans() for batch in plan.tour()]
        found: dict[Bucket, tuple[BatchPlan, Batch]] = {}
        for plan, batch in sorted(both, key=lambda one: one[1].shape.order):
            found.setdefault(batch.bucket, (plan, batch))
        return list(found.values())

    def _micro(self, plan: BatchPlan, batch: Batch, step: int, index: int, share: float) -> MicroBatch:
        latents = self._latents(batch.items)
        prompts = self.prompts(plan, batch)
        other = [
            preserved(self.process.train, prompt, item.config.trigger_word)
            for item, prompt in zip(batch.items, prompts, strict=True)
        ]
        given = {**self._controls(batch), **self._holes(batch, latents)}
        kept = [prompt for prompt in other if prompt is not None]
        return MicroBatch(
            batch=batch,
            latents=latents,
            text={**self._asked(batch, prompts), **given},
            kept={**self._asked(batch, kept), **given} if kept else None,
            masks=self._weights(batch, latents),
            step=step,
            index=index,
            share=share,
        )

    def _asked(self, batch: Batch, prompts: Sequence[str]) -> TextEmbedding:
        return self._text(
            [about_item(self.family, item, prompt) for item, prompt in zip(batch.items, prompts, strict=True)]
        )

    def _weights(self, batch: Batch, latents: Tensor) -> Tensor | None:
        """How much each place counts, (B, 1, h, w); None when all do alike."""
        if not any(item in self.masks for item in batch.items):
            return None
        with host_memory():
            alike = torch.full(latents.shape[-2:], 255, dtype=torch.uint8)
            return torch.stack(
                [as_weights(self.masks.get(item, alike), item.config.mask_min_value) for item in batch.items]
            )

    def _holes(self, batch: Batch, latents: Tensor) -> TextEmbedding:
        """What is kept of pictures that are to be completed: what their masks leave out, where nothing else is said."""
        known = [item in self.kept or item in self.masks for item in batch.items]
        if not (self.family.inpaints and any(known)):
            return {}
        with host_memory():
            whole = torch.full(latents.shape[-2:], 255, dtype=torch.uint8)
            found = [
                self.kept[item] if item in self.kept else 255 - self.masks.get(item, whole)
                for item in batch.items
            ]
            return {INPAINT: torch.stack(found).unsqueeze(1).float() / 255}

    def _latents(self, items: Sequence[Item]) -> Tensor:
        with host_memory():
            return torch.stack([self.latents[item] for item in items])

    def _controls(self, batch: Batch) -> TextEmbedding:
        columns = zip(*(control_items(item) for item in batch.items), strict=True)
        return {control(place): self._latents(column) for place, column in enumerate(columns)}

    def _text(self, prompts: Sequence[Question]) -> TextEmbedding:
        with nullcontext() if self.process.encodes_live else host_memory():
            return stack(self.embed(prompts))

    def epoch(self, step: int) -> int:
        """Full passes over the training data after `step` steps."""
        own = (step + 1) // 2 if self.regularisation is not None else step
        return own * self.process.train.gradient_accumulation // self.plan.batches_per_epoch

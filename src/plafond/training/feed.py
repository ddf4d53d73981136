"""What each step trains on: a pure function of the job, the data and the step's number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from plafond.data.batches import Batch, BatchPlan, Item
from plafond.data.captions import caption_for
from plafond.families._contract import TextEmbedding
from plafond.job.schema import ProcessConfig
from plafond.training.step import MicroBatch

CAPTION_VARIANTS = 16
"""Versions of a shuffled or thinned caption that exist when text embeddings are cached."""

Embed = Callable[[Sequence[str]], list[TextEmbedding]]


class Feed:
    """The micro-batches of every step.

    With a regularisation set, odd steps take from the data and even steps from that set, as AI Toolkit does.

    Args:
        process: the job's process.
        plan: the order of the training data.
        regularisation: the order of the regularisation data, if there is any.
        latents: cached latents (C, h, w) by item.
        embed: text embeddings of prompts.
    """

    def __init__(
        self,
        process: ProcessConfig,
        plan: BatchPlan,
        regularisation: BatchPlan | None,
        latents: Mapping[Item, Tensor],
        embed: Embed,
    ):
        self.process, self.plan, self.regularisation = process, plan, regularisation
        self.latents, self.embed = latents, embed

    def batches(self, step: int) -> Iterator[tuple[Batch, int]]:
        """The batches of a step (counted from 1), each with its number in its plan."""
        plan, turn = self.plan, step
        if self.regularisation is not None:
            plan, turn = (self.regularisation, step // 2) if step % 2 == 0 else (self.plan, (step + 1) // 2)
        count = self.process.train.gradient_accumulation
        for number in range((turn - 1) * count, turn * count):
            yield plan.batch_at(number), number

    def prompts(self, batch: Batch, number: int) -> list[str]:
        """The caption of each item as it is drawn this time."""
        train = self.process.train
        if train.unload_text_encoder and not train.cache_text_embeddings:
            # AI Toolkit's meaning of the key: one fixed prompt, the trigger word alone.
            return [batch.config.trigger_word or ""] * len(batch.items)
        variants = CAPTION_VARIANTS if train.cache_text_embeddings else None
        seed = self.process.training_seed
        return [
            caption_for(item.picture, batch.config, seed=seed, draw=number, variants=variants)
            for item in batch.items
        ]

    def micros(self, step: int) -> list[MicroBatch]:
        """The micro-batches of a step, ready for the device."""
        drawn = list(self.batches(step))
        total = sum(len(batch.items) for batch, _ in drawn)
        return [
            MicroBatch(
                batch=batch,
                latents=torch.stack([self.latents[item] for item in batch.items]),
                text=stack(self.embed(self.prompts(batch, number))),
                step=step,
                index=index,
                share=len(batch.items) / total,
            )
            for index, (batch, number) in enumerate(drawn)
        ]

    def epoch(self, step: int) -> int:
        """Full passes over the training data after `step` steps."""
        own = (step + 1) // 2 if self.regularisation is not None else step
        return own * self.process.train.gradient_accumulation // self.plan.batches_per_epoch


def stack(texts: Sequence[TextEmbedding]) -> TextEmbedding:
    """Batch text embeddings of equal shapes."""
    return {name: torch.stack([text[name] for text in texts]) for name in texts[0]}

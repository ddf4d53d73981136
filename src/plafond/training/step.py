"""One training step: some micro-batches forward and backward, then one update.

A micro-batch is a pure function of (job, step, index): its pictures, captions, noise and noise levels are all drawn
from the seed and the position, so it can be repeated and resumed exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from plafond.activations.plan import Activations, asked_for
from plafond.data.batches import Batch
from plafond.families._contract import Family, TextEmbedding
from plafond.job.schema import ProcessConfig
from plafond.memory.residence import host_memory, put
from plafond.training.embeddings import send
from plafond.training.loss import noisy_latents, sample_losses
from plafond.training.randomness import derived_seed, generator
from plafond.training.timesteps import draw_sigmas, loss_weights
from plafond.training.trainee import Trainee


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one forward and backward pass sees.

    `latents` (B, C, h, w) and the tensors of `text` (B, ...) are on the CPU, as the caches hold them; `share` is this
    micro-batch's part of the step's samples, so that the step's gradient is the mean over all of them. Where `rows` is
    given, the pass sees only these samples, with the same noise as in the whole batch.
    """

    batch: Batch
    latents: Tensor
    text: TextEmbedding
    step: int
    index: int
    share: float
    rows: slice = field(default_factory=lambda: slice(None))

    def part(self, start: int, stop: int) -> MicroBatch:
        """The samples from `start` to `stop` as a micro-batch of their own."""
        share = self.share * (stop - start) / len(self.batch.items)
        return replace(self, share=share, rows=slice(start, stop))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a step found: its mean loss, the gradient's length before clipping, and whether they can be applied."""

    loss: float
    grad_norm: float
    applied: bool


class Stepper:
    """Runs steps of one job on one device."""

    def __init__(
        self,
        trainee: Trainee,
        family: Family,
        process: ProcessConfig,
        device: torch.device,
        dtype: torch.dtype,
        activations: Activations | None = None,
    ):
        self.activations = activations or Activations(default=asked_for(process))
        self.trainee, self.family, self.process = trainee, family, process
        self.device, self.dtype = device, dtype

    def run(self, micros: list[MicroBatch], optimizer: torch.optim.Optimizer) -> Outcome:
        """Accumulate the mean gradient of all micro-batches and update, unless something is not finite."""
        outcome = self.gradients(micros)
        self.update(outcome, optimizer)
        return outcome

    def gradients(self, micros: list[MicroBatch]) -> Outcome:
        """Accumulate the mean gradient of all micro-batches; nothing else changes, so it can be done again."""
        settings = self.process.train
        # dropout and stochastic rounding draw from the global generator
        torch.manual_seed(derived_seed(self.process.training_seed, "step", micros[0].step))
        self.trainee.transformer.train()
        loss = math.fsum(self.micro_step(micro) for micro in micros)
        parameters = list(self.trainee.parameters.values())
        limit = math.inf if settings.optimizer == "adafactor" else settings.max_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
        return Outcome(loss=loss, grad_norm=norm, applied=math.isfinite(loss) and math.isfinite(norm))

    def update(self, outcome: Outcome, optimizer: torch.optim.Optimizer) -> None:
        """Apply the gradients if they are finite, and drop them."""
        if outcome.applied:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def micro_step(self, micro: MicroBatch) -> float:
        """Forward and backward of one micro-batch; adds to the gradients and returns its share of the loss."""
        loss = self.loss(micro) * micro.share
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def loss(self, micro: MicroBatch) -> Tensor:
        """Mean weighted loss of one micro-batch, a float32 scalar."""
        settings = self.process.train
        position = (micro.step, micro.index)
        span = self.trainee.turn(micro.step)
        with host_memory():
            latents = micro.latents.float()
            noise = torch.randn(
                latents.shape, generator=generator(self.process.training_seed, "noise", *position)
            )
            known = self.family.condition(
                micro.text,
                latents,
                self.process.model,
                generator(self.process.training_seed, "condition", *position),
            )
            height, width = latents.shape[-2:]
            sigmas = draw_sigmas(
                latents.shape[0],
                settings,
                self.family.shift(height, width),
                generator(self.process.training_seed, "timestep", *position),
                span,
            )
        drawn = (tensor[micro.rows] for tensor in (latents, noise, sigmas))
        latents, noise, sigmas = (put(tensor, self.device) for tensor in drawn)
        noisy = noisy_latents(latents, noise, sigmas).to(self.dtype)
        embeddings = {name: tensor[micro.rows] for name, tensor in known.items()}
        text = send(embeddings, self.device, self.dtype)
        self.trainee.use(self.activations.of(str(micro.batch.bucket)))
        config = micro.batch.items[0].config  # a batch has one strength and one multiplier
        with self.trainee.strength(config.network_weight):
            velocity = self.family.predict(self.trainee.transformer, noisy, sigmas, text, settings)
        target = noise - latents
        velocity, target = (self.family.scored(each, text) for each in (velocity, target))
        losses = sample_losses(velocity, target, settings.loss_type)
        losses = losses * loss_weights(sigmas, settings.timestep_type) * config.loss_multiplier
        if settings.max_loss is not None:
            losses = losses.clamp(max=settings.max_loss)
        return losses.mean()

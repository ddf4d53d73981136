"""One training step: some micro-batches forward and backward, then one update.

A micro-batch is a pure function of (job, step, index): its pictures, captions, noise and noise levels are all drawn
from the seed and the position, so it can be repeated and resumed exactly.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from plafond.activations.plan import Activations, asked_for
from plafond.data.batches import Batch
from plafond.families._contract import Family, TextEmbedding
from plafond.job.schema import ProcessConfig
from plafond.memory.residence import host_memory, put
from plafond.training.embeddings import send
from plafond.training.loss import even, sample_losses
from plafond.training.objective import objective_of
from plafond.training.randomness import derived_seed, generator
from plafond.training.trainee import Trainee


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one forward and backward pass sees.

    `latents` (B, C, h, w) and the tensors of `text` (B, ...) are on the CPU, as the caches hold them; `share` is this
    micro-batch's part of the step's samples, so that the step's gradient is the mean over all of them. Where `rows` is
    given, the pass sees only these samples, with the same noise as in the whole batch. `kept` is like `text`, of
    prompts whose meaning is to stay as it is; `masks` (B, 1, h, w) say how much each place counts, from 0 to 1.
    """

    batch: Batch
    latents: Tensor
    text: TextEmbedding
    step: int
    index: int
    share: float
    kept: TextEmbedding | None = None
    masks: Tensor | None = None
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
        self.objective = objective_of(family, process.model)

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
        found = self._backward(self.loss(micro), micro)
        if micro.kept is not None:
            found += self._backward(self.preservation(micro, micro.kept), micro)
        return found

    def _backward(self, loss: Tensor, micro: MicroBatch) -> float:
        loss = loss * micro.share
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def loss(self, micro: MicroBatch) -> Tensor:
        """Mean weighted loss of one micro-batch, a float32 scalar."""
        settings = self.process.train
        seen = self._see(micro, micro.text)
        config = micro.batch.items[0].config  # a batch has one strength, one multiplier and one target
        masks = None if micro.masks is None else put(micro.masks[micro.rows], self.device)
        outside = settings.inverted_mask_prior and masks is not None
        prior = self._predict(micro, seen, frozen=True) if config.prior_reg or outside else None
        velocity = self._predict(micro, seen)
        usual = self.family.scored(self.objective.target(seen.latents, seen.noise, seen.sigmas), seen.text)
        target = usual if prior is None or not config.prior_reg else prior
        weights = None if masks is None else even(masks)
        losses = sample_losses(velocity, target, settings.loss_type, weights)
        losses = losses * self.objective.weights(seen.sigmas, settings) * config.loss_multiplier
        if config.is_reg:
            losses = losses * settings.reg_weight
        if outside and prior is not None and masks is not None:
            rest = sample_losses(velocity, prior, settings.loss_type, even(1 - masks))
            losses = losses + settings.inverted_mask_prior_multiplier * rest
        if settings.max_loss is not None:
            losses = losses.clamp(max=settings.max_loss)
        return losses.mean()

    def preservation(self, micro: MicroBatch, kept: TextEmbedding) -> Tensor:
        """How far the adapter moves what the model says to other prompts, weighted: a float32 scalar."""
        seen = self._see(micro, kept)
        prior = self._predict(micro, seen, frozen=True)
        losses = sample_losses(self._predict(micro, seen), prior, "mse")
        return losses.mean() * (self.process.train.preserves or 0.0)

    def _see(self, micro: MicroBatch, text: TextEmbedding) -> _Seen:
        settings = self.process.train
        position = (micro.step, micro.index)
        span = self.trainee.turn(micro.step)
        with host_memory():
            latents = micro.latents.float()
            noise = torch.randn(
                latents.shape, generator=generator(self.process.training_seed, "noise", *position)
            )
            known = self.family.condition(
                text,
                latents,
                self.process.model,
                generator(self.process.training_seed, "condition", *position),
            )
            height, width = latents.shape[-2:]
            sigmas = self.objective.draw(
                latents.shape[0],
                settings,
                self.family.shift(height, width),
                generator(self.process.training_seed, "timestep", *position),
                span,
            )
        drawn = (tensor[micro.rows] for tensor in (latents, noise, sigmas))
        latents, noise, sigmas = (put(tensor, self.device) for tensor in drawn)
        noisy = self.objective.mix(latents, noise, sigmas).to(self.dtype)
        embeddings = {name: tensor[micro.rows] for name, tensor in known.items()}
        return _Seen(latents, noise, sigmas, noisy, send(embeddings, self.device, self.dtype))

    def _predict(self, micro: MicroBatch, seen: _Seen, *, frozen: bool = False) -> Tensor:
        """The velocity by the model as it is trained, or by the one without its adapter."""
        self.trainee.use(self.activations.of(str(micro.batch.bucket)))
        strength = 0.0 if frozen else micro.batch.items[0].config.network_weight
        with self.trainee.strength(strength), torch.no_grad() if frozen else nullcontext():
            velocity = self.family.predict(
                self.trainee.transformer, seen.noisy, seen.sigmas, seen.text, self.process.train
            )
        return self.family.scored(velocity, seen.text)


@dataclass(frozen=True)
class _Seen:
    """What a pass through the model is given, on the device."""

    latents: Tensor
    noise: Tensor
    sigmas: Tensor
    noisy: Tensor
    text: TextEmbedding

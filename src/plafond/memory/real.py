"""The phases of a dry run with real tensors, on the CPU or on a GPU: what predictions are compared with.

Weights are random. They are made on the device in the run's dtype, since a full-size model has no room in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import nn

from plafond.data.buckets import Bucket
from plafond.families._contract import TextEmbedding
from plafond.memory.dryrun import Rehearsal
from plafond.memory.residence import counting
from plafond.memory.trace import Trace
from plafond.memory.virtual import VirtualGpu


class Silent:
    """Takes a ledger's place where somebody else counts.

    Args:
        mark: called where the peak is to be sought from.
    """

    def __init__(self, mark: Callable[[], None]):
        self.mark = mark
        self.stage, self.trace = "", Trace()

    def watch(self, model: nn.Module) -> list[Callable[[], None]]:
        """Nothing to watch."""
        return []

    def watch_gradients(self, parameters: object) -> None:
        """Nothing to watch."""

    def blank(self, parameters: object) -> None:
        """Real tensors answer for themselves."""


class Counted(VirtualGpu):  # type: ignore[no-untyped-call]
    """A virtual GPU in a ledger's place; its `peak` is sought from the mark on."""

    def mark(self) -> None:
        """The peak is sought from here on."""
        super().mark()
        self.reset_peak()

    def blank(self, parameters: object) -> None:
        """Real tensors answer for themselves."""


class Real(Rehearsal):
    """The phases of `dry` with real tensors.

    Args:
        dry: a dry run, which also knows the shapes that a phase is given.
        device: where.
        ledger: who counts.
    """

    def __init__(self, dry: Rehearsal, device: torch.device, ledger: Silent | Counted):
        super().__init__(
            dry.process,
            dry.family,
            dry.source,
            dry.target,
            granule=dry.granule,
            full_depth=True,
            device=device,
            plain=dry.plain,
        )
        self.dry, self.ledger = dry, ledger

    def encode_text(self) -> Trace:
        """As in a dry run; what is made to draw random weights is no part of the phase."""
        self.encoders  # noqa: B018
        return super().encode_text()

    @contextmanager
    def _ledger(self) -> Iterator[Any]:
        if isinstance(self.ledger, Silent):
            yield self.ledger
            return
        with counting(self.ledger):
            yield self.ledger

    def build(self, make: Callable[[], nn.Module]) -> nn.Module:
        """A frozen module with random weights on the device."""
        with self._drawing():
            return super().build(make)

    @cached_property
    def encoders(self) -> Any:
        """The text encoders with random weights on the device."""
        with self._drawing():
            return super().encoders

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    def _prepare_products(self, ledger: Any) -> None:
        """The libraries do that by themselves."""

    def text(self, controls: int, tokens: int | None) -> TextEmbedding:
        """As the dry run found it."""
        return self.dry.text(controls, tokens)

    def _latent_shape(self, bucket: Bucket) -> tuple[int, ...]:
        return self.dry._latent_shape(bucket)

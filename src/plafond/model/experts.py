"""Models that take turns: each denoises from one noise level down to another, and only one is on the device at a time.

The frozen weights of all of them wait in main memory, one flat buffer for each block. When a model's turn comes, the
one before it drops its copies and its own are carried over; frozen weights never change, so nothing is copied back.
What is trained stays on the device throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from plafond.memory.residence import label, put, within
from plafond.model.streaming import Ring, Stored

BLOCKS = "blocks"
"""The attribute of each model that holds its blocks."""


class Experts(nn.Module):
    """Several models of one kind as one. Their blocks stand directly in it, in a list for each model.

    Args:
        models: by the name of their turn; the first one's comes first.

    Attributes:
        active: whose turn it is.
        rings: of each model that has one, what streams its blocks.
    """

    def __init__(self, models: Mapping[str, nn.Module]):
        super().__init__()
        for name, model in models.items():
            setattr(self, name, getattr(model, BLOCKS))
        # what stands outside of the blocks bears no expert's name: it gets no adapter
        self.models = nn.ModuleDict({f"part_{place}": model for place, model in enumerate(models.values())})
        self.names = tuple(models)
        self.active = next(iter(models))
        self.rings: dict[str, Ring] = {}
        self._guests: dict[str, list[tuple[str, Stored]]] = {}
        self._device: torch.device | None = None
        self._keep_in_fp32_modules = getattr(self.model, "_keep_in_fp32_modules", None)

    @property
    def model(self) -> nn.Module:
        """The model whose turn it is."""
        return self.models[f"part_{self.names.index(self.active)}"]

    @property
    def config(self) -> Any:
        """The models' configuration."""
        return self.model.config

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the active model answers."""
        return self.model(*args, **kwargs)

    def settle(self, device: torch.device) -> None:
        """Take all frozen weights off the models, to be carried to the device by turns.

        Call it before the module itself is moved there.
        """
        pinned = device.type == "cuda"
        for name, model in zip(self.names, self.models.values(), strict=True):
            blocks: Any = getattr(self, name)
            inside = {module for block in blocks for module in block.modules()}
            found = [(f"{name}.{index}", Stored(block, pinned=pinned)) for index, block in enumerate(blocks)]
            self._guests[name] = [*found, ("", Stored(model, pinned=pinned, apart=inside))]
        self._device = device

    def turn(self, name: str) -> None:
        """Let this model be the active one, and be on the device alone."""
        if name == self.active and any(stored.here for _, stored in self._guests.get(name, ())):
            return
        for _, stored in self._guests.get(self.active, ()):
            stored.leave()
        if self.active in self.rings:
            self.rings[self.active].clear()
        self.active = name
        for block, stored in self._guests.get(name, ()):
            with within(block):
                assert self._device is not None
                flat = put(stored.flat, self._device)
                label([flat], "weights")
                stored.enter(flat)

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Inside the ``with`` block the models that wait have their weights, in main memory."""
        waiting = [stored for found in self._guests.values() for _, stored in found if not stored.here]
        for stored in waiting:
            stored.enter(stored.flat)
        try:
            yield
        finally:
            for stored in waiting:
                stored.leave()

    def view(self, name: str) -> View:
        """The model of this name as diffusers' pipelines call one."""
        return View(self, name)


class View(nn.Module):
    """One of several models that take turns, which calls its turn when it is called.

    Args:
        experts: all of them.
        name: which.
    """

    def __init__(self, experts: Experts, name: str):
        super().__init__()
        self._all = [experts]  # in a list, so that it is no part of this module
        self.name = name

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the model answers."""
        (experts,) = self._all
        experts.turn(self.name)
        return experts(*args, **kwargs)

    @property
    def config(self) -> Any:
        """The model's configuration."""
        return self._all[0].config

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        dtype: torch.dtype = self._all[0].model.dtype  # type: ignore[assignment]
        return dtype

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        device = self._all[0]._device
        return torch.device("cpu") if device is None else device

    def cache_context(self, name: str, **_: Any) -> AbstractContextManager[None]:
        """Nothing is cached between steps."""
        return nullcontext()


def names_of(state: Iterable[str], expert: str) -> Iterator[tuple[str, str]]:
    """The names in `state` that belong to an expert, each with its name in the expert alone."""
    for name in state:
        if name.startswith(f"{expert}."):
            yield name, f"{BLOCKS}.{name.removeprefix(f'{expert}.')}"

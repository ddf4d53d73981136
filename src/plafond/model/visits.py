"""Frozen models that stay in main memory, and whose layers visit the device while they compute.

For models that only answer, as text encoders do: no backward pass asks for a layer again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from plafond.memory.residence import move_in
from plafond.model.streaming import Ring, chosen


def move_in_part(model: nn.Module, device: torch.device, share: float) -> None:
    """Put a model from main memory on the device, except for a share of its repeated layers.

    Args:
        model: frozen; its outermost lists of layers are taken to run from the first to the last.
        device: where it computes.
        share: of each list's layers that only visit, from 0 to 1.
    """
    for layers in _outermost(model):
        visitors = [layers[place] for place in chosen(len(layers), share)]
        if visitors:
            _let_visit(visitors, device)
    move_in(model, device)


def _outermost(model: nn.Module) -> list[nn.ModuleList]:
    found: dict[str, nn.ModuleList] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and not path.startswith(tuple(f"{known}." for known in found)):
            found[path] = module
    return list(found.values())


def _let_visit(layers: list[nn.Module], device: torch.device) -> None:
    ring = Ring(layers, device)

    def arrive(place: int) -> None:
        ring.stored[place].enter(ring.fetch(place, 1))

    def go(place: int, result: Any) -> None:
        ring.stored[place].leave()
        # a layer that failed has no result, and none comes after it
        if place == len(layers) - 1 or result is None:
            ring.clear()

    for place, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda _module, _args, place=place: arrive(place))
        layer.register_forward_hook(
            lambda _module, _args, result, place=place: go(place, result), always_call=True
        )

"""Blocks whose frozen weights stay in main memory and visit the device one after the other.

Each block's frozen tensors lie in one flat buffer in main memory (pinned, where there is a GPU). Two blocks are on the
device at a time: the one that computes and the one that comes next, forward or backward, whose copy runs beside the
computation. Frozen weights never change, so nothing is copied back. A block that returns is a new buffer, never an old
one filled anew: whatever still refers to the old one keeps seeing what it saw.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plafond.memory.residence import host_memory, label, put

ALIGNMENT = 512
"""Tensors begin at multiples of this many bytes."""


class Stored:
    """The frozen tensors of one block, in main memory.

    Args:
        block: the block; in the place of its frozen tensors it is left with empty ones.
        pinned: keep them in pinned memory, from which a GPU copies by itself.
        apart: parts of the block that are left alone.

    Attributes:
        here: whether the block has its tensors.
    """

    def __init__(self, block: nn.Module, *, pinned: bool, apart: Container[nn.Module] = ()):
        self.layout: list[tuple[str, torch.dtype, torch.Size, int]] = []
        found = list(_frozen(block, apart))
        self._places = [(held, key, name) for held, key, name, _ in found]
        self.here = False
        size = 0
        for _, _, name, tensor in found:
            self.layout.append((name, tensor.dtype, tensor.shape, size))
            size += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        with host_memory():
            device = "meta" if any(tensor.is_meta for *_, tensor in found) else "cpu"
            self.flat = torch.empty(
                size, dtype=torch.uint8, device=device, pin_memory=pinned and device == "cpu"
            )
            views = self.views(self.flat)
            for held, key, name, tensor in found:
                views[name].copy_(tensor)
                held[key] = _like(tensor.new_empty(0), tensor)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors by name, in a buffer like ours."""
        found = {}
        for name, dtype, shape, start in self.layout:
            stop = start + math.prod(shape) * dtype.itemsize
            found[name] = flat[start:stop].view(dtype).view(shape)
        return found

    def enter(self, flat: Tensor) -> None:
        """Give the block its tensors, in a buffer like ours on the device."""
        views = self.views(flat)
        for held, key, name in self._places:
            held[key] = _like(views[name], held[key])
        self.here = True

    def leave(self) -> None:
        """Leave it with empty ones again."""
        for held, key, _ in self._places:
            held[key] = _like(held[key].new_empty(0), held[key])
        self.here = False


class Ring:
    """Streams blocks to one device.

    Args:
        blocks: in the order of the forward pass.
        device: where they compute.
    """

    def __init__(self, blocks: Sequence[nn.Module], device: torch.device):
        self.device = device
        cuda = device.type == "cuda"
        self.stored = [Stored(block, pinned=cuda) for block in blocks]
        self._here: dict[int, tuple[Tensor, Any]] = {}
        self._copies: Any = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]

    def enter(self, place: int, direction: int) -> Mapping[str, Tensor]:
        """The tensors of a block that is about to compute; its neighbour in `direction` is sent for."""
        return self.stored[place].views(self.fetch(place, direction))

    def fetch(self, place: int, direction: int) -> Tensor:
        """The same in one piece."""
        wanted = [place, *(next_ for next_ in (place + direction,) if 0 <= next_ < len(self.stored))]
        for other in [known for known in self._here if known not in wanted]:
            del self._here[other]
        for other in wanted:
            if other not in self._here:
                self._here[other] = self._send(self.stored[other])
        flat, arrived = self._here[place]
        if arrived is not None:
            torch.cuda.current_stream(self.device).wait_event(arrived)
        return flat

    def clear(self) -> None:
        """Take all blocks off the device."""
        self._here.clear()

    def _send(self, stored: Stored) -> tuple[Tensor, Any]:
        if self._copies is None:
            flat = put(stored.flat, self.device)
            label([flat], "weights")
            return flat, None
        # the buffer belongs to the computing stream, which has used its memory before and waits for it to be filled
        flat = torch.empty_like(stored.flat, device=self.device)
        self._copies.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._copies):
            flat.copy_(stored.flat, non_blocking=True)
            return flat, self._copies.record_event()


def chosen(count: int, share: float) -> list[int]:
    """Which of `count` blocks are streamed when a `share` of them is: spread evenly, so that copies have time."""
    wanted = round(count * share)
    return [place for place in range(count) if (place + 1) * wanted // count > place * wanted // count]


def _like(tensor: Tensor, other: Tensor) -> Tensor:
    return nn.Parameter(tensor, requires_grad=False) if isinstance(other, nn.Parameter) else tensor


def _frozen(block: nn.Module, apart: Container[nn.Module]) -> list[tuple[dict[str, Any], str, str, Tensor]]:
    return [
        (held, key, f"{path}.{key}" if path else key, tensor)
        for path, module in block.named_modules()
        if module not in apart
        for held in (module._parameters, module._buffers)
        for key, tensor in held.items()
        if tensor is not None and not tensor.requires_grad and tensor.numel()
    ]

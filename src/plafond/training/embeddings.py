"""Text embeddings between the caches and the model.

Prompts of different lengths give tensors of different lengths. In a batch the shorter ones are filled up with zeros;
a family that needs to know where they end adds a tensor of integers, a mask of ones. Integers stay in main memory,
where looking at them costs nothing: the family moves what the model wants on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from plafond.families._contract import TextEmbedding
from plafond.memory.residence import host_memory, put


def stack(texts: Sequence[TextEmbedding]) -> TextEmbedding:
    """Batch embeddings; tensors of unequal first dimensions are filled up with zeros at their ends."""
    return {name: _stack([text[name] for text in texts]) for name in texts[0]}


def _stack(tensors: list[Tensor]) -> Tensor:
    if not tensors[0].is_floating_point():
        with host_memory():
            return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
    if len({tensor.shape for tensor in tensors}) == 1:
        return torch.stack(tensors)
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)


def send(text: TextEmbedding, device: torch.device, dtype: torch.dtype) -> TextEmbedding:
    """Numbers in `dtype` on the device, integers as they are."""
    return {
        name: put(tensor, device, dtype) if tensor.is_floating_point() else tensor
        for name, tensor in text.items()
    }

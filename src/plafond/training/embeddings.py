"""Text embeddings between the caches and the model.

Prompts of different lengths give tensors of different lengths. In a batch the shorter ones are filled up with zeros;
a family that needs to know where they end adds a tensor of integers, a mask of ones. Integers stay in main memory,
where looking at them costs nothing: the family moves what the model wants on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plafond.data.batches import Item
from plafond.data.text import Illustrated, Question
from plafond.families._contract import Family, TextEmbedding
from plafond.job.sample import SampleItem
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


def ask(family: Family, encoders: Any, questions: Sequence[Question]) -> list[TextEmbedding]:
    """What the encoders say to prompts, with or without pictures."""
    prompts = [question for question in questions if isinstance(question, str)]
    if len(prompts) == len(questions):
        return family.encode_text(encoders, prompts)
    return [
        family.encode_seen(encoders, question.prompt, question.load())
        if isinstance(question, Illustrated)
        else family.encode_text(encoders, [question])[0]
        for question in questions
    ]


def about_item(family: Family, item: Item, prompt: str) -> Question:
    """A caption of a picture, as the family's encoder is asked it."""
    controls = item.picture.controls if family.sees_controls else ()
    if not controls:
        return prompt
    seen = tuple(control.path for control in controls)
    frame = next(iter(controls[0].frames), None)
    return Illustrated(prompt, seen, item.flip_x, item.flip_y, frame)


def about_preview(family: Family, item: SampleItem, prompt: str) -> Question:
    """A preview's prompt or negative prompt, as the family's encoder is asked it."""
    seen = preview_controls(family, item) if family.sees_controls else ()
    return Illustrated(prompt, seen) if seen else prompt


def preview_controls(family: Family, item: SampleItem) -> tuple[Path, ...]:
    """The control images of a preview, as many as the family takes."""
    most = 1 if family.opens else family.controls
    return tuple(Path(path).expanduser() for path in item.control_images[:most])


def send(text: TextEmbedding, device: torch.device, dtype: torch.dtype) -> TextEmbedding:
    """Numbers in `dtype` on the device, integers as they are."""
    return {
        name: put(tensor, device, dtype) if tensor.is_floating_point() else tensor
        for name, tensor in text.items()
    }

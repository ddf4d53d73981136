"""Stand-ins for parts of a checkpoint that a dry run has no files of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import torch

from plafond.memory.residence import host_memory

LENGTH: ContextVar[int | None] = ContextVar("LENGTH", default=None)
"""How many ids stand-ins for tokenizers give, beside those of pictures; None for the most that there can be."""


@contextmanager
def of_length(tokens: int | None) -> Iterator[None]:
    """Prompts of so many tokens inside the ``with`` block."""
    mark = LENGTH.set(tokens)
    try:
        yield
    finally:
        LENGTH.reset(mark)


class FullLengthTokenizer:
    """Gives ids of the greatest length for any prompt, or of `LENGTH`: what an encoder's memory depends on.

    Args:
        model_max_length: tokens.
        marks: special tokens whose ids have to be among the others, in as many runs as in the prompt.
    """

    added_tokens_encoder: dict[str, int] = {}  # noqa: RUF012  # pipelines look for it, nothing is ever added

    def __init__(self, model_max_length: int, marks: Mapping[str, int] | None = None):
        self.model_max_length, self.marks = model_max_length, marks or {}

    def __call__(
        self, prompt: str | Sequence[str], max_length: int | None = None, **_: Any
    ) -> SimpleNamespace:
        """Ids (prompts, length) in main memory."""
        count = 1 if isinstance(prompt, str) else len(prompt)
        length = min(max_length or self.model_max_length, self.model_max_length)
        if (tokens := LENGTH.get()) is not None:
            length = min(length, tokens + sum(str(prompt).count(mark) for mark in self.marks))
        with host_memory():
            ids = torch.ones(count, length, dtype=torch.int64)
            for mark, token in self.marks.items():
                start = 1
                for found in re.finditer(f"(?:{re.escape(mark)})+", str(prompt)):
                    stop = start + len(found[0]) // len(mark)
                    ids[:, start:stop] = token
                    start = stop + 1
            return SimpleNamespace(input_ids=ids, attention_mask=torch.ones_like(ids))

    def apply_chat_template(self, conversation: object, **_: Any) -> str:
        """Any prompt has the full length, whatever stands around it."""
        return ""

    def tokenize(self, prompt: str, **_: Any) -> list[str]:
        """No token needs an expansion."""
        return []

    def batch_decode(self, *_: Any, **__: Any) -> list[str]:
        """Nothing was cut off."""
        return []

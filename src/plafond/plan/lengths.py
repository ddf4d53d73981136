"""How long a job's prompts are, in tokens, where that makes a difference to its model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from plafond.families._contract import Family, Length
from plafond.job.schema import ProcessConfig
from plafond.language.said import N_, Said
from plafond.model.checkpoint import Source
from plafond.plan.summaries import kept_json

BOUNDED = N_(
    "the tokenizer of {model} is not here: prompts are planned with at most {tokens} tokens, one for each byte of the"
    " longest"
)


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Of the longest caption and of the longest prompt of a preview; None where it makes no difference, or where the
    captions are not at hand."""

    captions: Length | None = None
    previews: Length | None = None

    @property
    def tokens(self) -> tuple[int | None, int | None, int | None]:
        """Of the longest and the shortest caption, and of the longest preview."""
        own, shown = self.captions, self.previews
        captions, shortest = (None, None) if own is None else (own.tokens, own.shortest)
        return captions, shortest, None if shown is None else shown.tokens

    def note(self, model: str) -> Said | None:
        """One sentence when the prompts could not be counted."""
        found = [one.tokens for one in (self.captions, self.previews) if one is not None and not one.counted]
        return Said(BOUNDED, {"model": model, "tokens": max(found)}) if found else None


def lengths_of(
    process: ProcessConfig, family: Family, source: Source, captions: Sequence[str] | None, controls: int
) -> Lengths:
    """Count the tokens of a job's prompts; an answer is kept, since tokenizers take a while to load."""
    samples = () if process.train.disable_sampling else process.sample.samples
    shown = [
        prompt for item in samples for prompt in (item.prompt, *([item.neg] if family.guided(item) else []))
    ]
    images = max((len(item.control_images[: family.controls]) for item in samples), default=0)
    return Lengths(
        captions=None if captions is None else _length(family, source, captions or [""], controls),
        previews=_length(family, source, shown or [""], images),
    )


def _length(family: Family, source: Source, prompts: Sequence[str], controls: int) -> Length | None:
    seen = controls if family.sees_controls else 0
    text = "\0".join(prompts)
    key = {
        "length of": hashlib.sha256(text.encode()).hexdigest(),
        "family": family.name,
        "tokenizer": source.fingerprint("tokenizer"),
        "controls": seen,
    }

    def find() -> dict[str, object]:
        found = family.prompt_length(source, prompts, seen)
        return {"length": None if found is None else asdict(found)}

    return kept_json(key, find, lambda kept: None if kept["length"] is None else Length(**kept["length"]))

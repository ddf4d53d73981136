"""Captions: from what a picture's owner wrote to the prompt of one draw.

A caption is kept as its author wrote it: only its ends are stripped and its line ends made one. Tags are
taken apart (at commas and line ends) only when a job shuffles or drops them, and are then joined again with a
comma and one space.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from plafond.data.chance import chance
from plafond.data.encodings import read_text

if TYPE_CHECKING:
    from plafond.data.folder import Picture
    from plafond.job.dataset import DatasetConfig
    from plafond.job.train import TrainConfig

CAPTION_VARIANTS = 16
"""Versions of a shuffled or thinned caption that exist when text embeddings are cached."""

PLACEHOLDERS = ("[trigger]", "[name]")
"""What stands for the trigger word inside a caption."""


def caption_for(
    picture: Picture, config: DatasetConfig, *, seed: int, draw: int, variants: int | None = None
) -> str:
    """The prompt of one draw of `picture`: a pure function of its caption, `config`, `seed` and `draw`.

    In this order: dropout to the empty caption, placeholders, replacements, shuffling and dropping of tags
    (the first `keep_tokens` stay), then the trigger word in front if the caption lacks it (not in
    regularisation sets, whose point is to be without it), then random triggers at the end.

    Args:
        picture: what is drawn.
        config: its data set.
        seed: the run's seed.
        draw: number of this draw in the run.
        variants: with cached text, how many versions of each caption exist; None makes a new one for every
            draw. Dropout is never limited by it.
    """
    if config.caption_dropout_rate > 0:
        dice = chance(seed, "caption dropout", picture.name, draw)
        if dice.random() < config.caption_dropout_rate:
            return ""
    version = draw if variants is None else draw % variants
    return _compose(picture.caption, config, chance(seed, "caption", picture.name, version))


def possible_captions(
    pictures: Iterable[tuple[Picture, DatasetConfig]], *, seed: int, variants: int
) -> list[str]:
    """Every prompt that `caption_for` can return for `pictures`, each once.

    This is what is encoded when text embeddings are cached.
    """
    prompts: dict[str, None] = {}
    for picture, config in pictures:
        for version in range(variants if _varies(config) else 1):
            prompts[_compose(picture.caption, config, chance(seed, "caption", picture.name, version))] = None
        if config.caption_dropout_rate > 0:
            prompts[""] = None
    return list(prompts)


def preserved(settings: TrainConfig, caption: str, trigger: str | None) -> str | None:
    """The caption whose meaning is to stay as it is, beside one that is trained; None when nothing is preserved."""
    if settings.diff_output_preservation:
        return caption.replace(trigger, settings.diff_output_preservation_class) if trigger else caption
    return "" if settings.blank_prompt_preservation else None


def _varies(config: DatasetConfig) -> bool:
    return bool(config.shuffle_tokens or config.token_dropout_rate > 0 or config.random_triggers)


def _compose(caption: str, config: DatasetConfig, dice: Random) -> str:
    trigger = config.trigger_word or ""
    for placeholder in PLACEHOLDERS:
        caption = caption.replace(placeholder, trigger)
    for replacement in config.replacements:
        old, bar, new = replacement.partition("|")
        caption = caption.replace(old, new) if old and bar else caption
    if config.shuffle_tokens or config.token_dropout_rate > 0:
        caption = _draw_tags(caption, config, dice)
    if trigger and trigger not in caption and not config.is_reg:
        caption = f"{trigger} {caption}"
    extra = _random_triggers(config.random_triggers, config.random_triggers_max, dice)
    return ", ".join(part for part in (caption.strip(), *extra) if part)


def _random_triggers(words: tuple[str, ...], at_most: int, dice: Random) -> list[str]:
    """One word when `at_most` is 1, else between none and `at_most` of them."""
    words = _word_list(words)
    count = 1 if at_most == 1 else dice.randint(0, at_most)
    return dice.sample(words, min(count, len(words)))


@cache
def _word_list(words: tuple[str, ...]) -> tuple[str, ...]:
    """`words`, or the lines of the text file that its only entry names."""
    if len(words) == 1 and Path(words[0]).is_file():
        text, _ = read_text(Path(words[0]))
        return tuple(word for line in text.split("\n") if (word := line.strip()))
    return words


def _draw_tags(caption: str, config: DatasetConfig, dice: Random) -> str:
    tags = [tag for part in re.split(r"[,\n]", caption) if (tag := part.strip())]
    kept, free = tags[: config.keep_tokens], tags[config.keep_tokens :]
    free = [tag for tag in free if dice.random() >= config.token_dropout_rate]
    if config.shuffle_tokens:
        dice.shuffle(free)
    return ", ".join([*kept, *free])

"""The flags at the end of a preview prompt: `a red fox --w 768 --h 512 --ctrl_img fox.png`.

AI Toolkit splits a prompt at every `--` and drops what it does not know, so a dash in prose cuts the prompt
short. Here only known flags are cut out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from plafond.errors import BEHIND
from plafond.job.section import EXPECTED
from plafond.job.wording import shown
from plafond.language.said import N_, Said, SaidError

FLAGS: Mapping[str, tuple[str, type]] = {
    "n": ("neg", str),
    "w": ("width", int),
    "h": ("height", int),
    "d": ("seed", int),
    "seed": ("seed", int),
    "l": ("guidance_scale", float),
    "cfg": ("guidance_scale", float),
    "s": ("sample_steps", int),
    "steps": ("sample_steps", int),
    "m": ("network_multiplier", float),
    "network_multiplier": ("network_multiplier", float),
    "frames": ("num_frames", int),
    "num_frames": ("num_frames", int),
    "fps": ("fps", int),
    "ctrl_img": ("ctrl_img", str),
    "ctrl_idx": ("ctrl_idx", int),
}
"""Each flag, the key of a sample that it sets, and the type of its value."""

UNUSED_FLAGS = frozenset({"p2", "n2", "gr", "a", "ref", "ev", "extra_values"})
"""Flags that AI Toolkit acts on and plafond does not; they are cut out with a warning."""

_FLAG = re.compile(
    r"(?:^|(?<=\s))--(" + "|".join(sorted([*FLAGS, *UNUSED_FLAGS], key=len, reverse=True)) + r")(?=\s|$)"
)


class FlagError(SaidError):
    """The value of a flag cannot be read."""


@dataclass
class PromptFlags:
    """A prompt without its flags, and what they set."""

    prompt: str
    values: dict[str, str | int | float] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The flag that set each value, as it was written."""
    unused: list[str] = field(default_factory=list)


def read_flags(prompt: str) -> PromptFlags:
    """Cut the flags out of a prompt.

    Raises:
        FlagError: a flag that takes a number has something else.
    """
    matches = list(_FLAG.finditer(prompt))
    if not matches:
        return PromptFlags(prompt)
    result = PromptFlags(prompt[: matches[0].start()].strip())
    ends = [match.start() for match in matches[1:]] + [len(prompt)]
    for match, end in zip(matches, ends, strict=True):
        name, value = match[1], prompt[match.end() : end].strip()
        if name in UNUSED_FLAGS:
            result.unused.append(f"--{name}")
            continue
        key, kind = FLAGS[name]
        result.values[key], result.names[key] = _read(name, value, kind), f"--{name}"
    return result


def _read(name: str, value: str, kind: type) -> str | int | float:
    if kind is str:
        return value
    expected = Said(N_("a whole number") if kind is int else N_("a number"))
    try:
        return int(value) if kind is int else float(value)
    except ValueError:
        wrong = Said(EXPECTED, {"expected": expected, "found": shown(value)})
        raise FlagError(BEHIND, place=f"--{name}", text=wrong) from None

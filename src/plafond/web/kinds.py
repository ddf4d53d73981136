"""What a field of the job form is: how a key of the job is shown and set, and for which jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from plafond.job.qtypes import EXACT
from plafond.job.scalars import resolve_scalar
from plafond.web.draft import Draft, help_of
from plafond.web.words import N_

Kind = Literal["text", "whole", "number", "flag", "choice", "folder", "picture", "resolutions"]
Shown = Callable[[Draft, str], bool]

RESOLUTIONS = (256, 512, 768, 1024, 1280, 1328, 1536, 2048)

FORMATS: Mapping[str, str] = {
    "": N_("- NONE -"),
    "qfloat8": N_("float8 (default)"),
    **{name: name for name in ("int8", *(f"uint{bits}" for bits in range(8, 1, -1)), "nf4") if name in EXACT},
}


def always(draft: Draft, prefix: str) -> bool:
    """A field that every job has."""
    return True


def has_controls(count: int) -> Shown:
    """Of models that look at so many control images."""
    return lambda draft, prefix: draft.family is not None and draft.family.controls >= count


def sees_control(place: int) -> Shown:
    """Of models whose previews look at a picture in this place, by its name of several."""
    return lambda draft, prefix: 1 < _controls(draft) >= place


def sees_one(draft: Draft, prefix: str) -> bool:
    """Of models whose previews look at one picture, and where the file has it by its name of one."""
    return _controls(draft) == 1 or draft.raw(f"{prefix}ctrl_img") is not None


def _controls(draft: Draft) -> int:
    family = draft.family
    return 0 if family is None else max(family.controls, int(family.opens))


def has_convolutions(draft: Draft, prefix: str) -> bool:
    """Of models that have convolutions to adapt."""
    return draft.family is not None and bool(draft.family.conv_blocks)


def has_schedule(draft: Draft, prefix: str) -> bool:
    """Of models that are trained on a schedule of noise."""
    return draft.family is not None and not draft.family.flow


def has_holes(draft: Draft, prefix: str) -> bool:
    """Of models that learn to fill holes."""
    return draft.family is not None and draft.family.inpaints


def has_frames(draft: Draft, prefix: str) -> bool:
    """Of models of clips."""
    return draft.family is not None and draft.family.usual_frames > 1


def has_experts(draft: Draft, prefix: str) -> bool:
    """Of models whose noise levels are shared among several."""
    return draft.family is not None and len(draft.family.experts) > 1


def has(key: str, value: Any) -> Shown:
    """Only while another setting has this value."""
    return lambda draft, prefix: bool(draft.value(key) == value)


def when(*keys: str) -> Shown:
    """Only while another setting is on, or one of several."""
    return lambda draft, prefix: any(draft.value(key) for key in keys)


def here(*keys: str) -> Shown:
    """Only while another setting of the same data set is on, or one of several."""
    return lambda draft, prefix: any(draft.value(prefix + key) for key in keys)


def anywhere(*keys: str) -> Shown:
    """Only while one of these settings is on in any data set."""
    return lambda draft, prefix: any(
        here(*keys)(draft, f"datasets.{index}.") for index in range(len(draft.raw("datasets") or ()))
    )


def both(first: Shown, second: Shown) -> Shown:
    """Only for what two conditions hold."""
    return lambda draft, prefix: first(draft, prefix) and second(draft, prefix)


@dataclass(frozen=True, kw_only=True)
class Field:
    """One setting.

    Args:
        key: dotted key inside of the process, or of the data set.
        label: AI Toolkit's.
        kind: how it is entered.
        options: of a choice: labels by value.
        also: keys that take the same value.
        clears: flags that cannot be on together with this one.
        empty: what an empty field stands for; None leaves the default.
        shown: whether the job has it at all.
    """

    key: str
    label: str
    kind: Kind = "text"
    options: Mapping[Any, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    clears: tuple[str, ...] = ()
    empty: Any = None
    shown: Shown = always

    def help(self, prefix: str = "") -> str:
        """What the schema says about it."""
        return help_of(prefix + self.key)

    def read(self, draft: Draft, prefix: str = "") -> Any:
        """Its value in a job."""
        value = draft.value(prefix + self.key)
        if self.kind in ("text", "whole", "number") and value is not None:
            return format(value, "g") if isinstance(value, float) else str(value)
        return value

    def write(self, draft: Draft, value: Any, prefix: str = "") -> None:
        """Write a value as it was entered into a job; what is wrong with it is for the job to say.

        Raises:
            EditError: the file does not let itself be changed there.
        """
        if self.kind in ("text", "whole", "number"):
            text = str(value or "").strip()
            value = resolve_scalar(text) if self.kind != "text" and text else text or self.empty
        for key in (self.key, *self.also):
            if draft.value(prefix + key) != value or draft.problem is not None:
                draft.set(prefix + key, value)
        for key in self.clears if value is True else ():
            if draft.value(prefix + key):
                draft.set(prefix + key, False)


@dataclass(frozen=True, kw_only=True)
class Quantised(Field):
    """A number format that is either given or not wanted: two keys of the file, one choice.

    Args:
        switch: the key that says whether it is used.
    """

    switch: str

    def read(self, draft: Draft, prefix: str = "") -> Any:
        """The format's name, or an empty text."""
        return draft.value(self.key) if draft.value(self.switch) else ""

    def write(self, draft: Draft, value: Any, prefix: str = "") -> None:
        """Switch it on and name it, or off."""
        draft.set(self.switch, bool(value))
        if value:
            draft.set(self.key, value)


@dataclass(frozen=True, kw_only=True)
class Control(Field):
    """One of a data set's folders of control images.

    Args:
        place: which, from 0.
    """

    place: int

    def read(self, draft: Draft, prefix: str = "") -> Any:
        """Its folder; None when there is none."""
        found = draft.value(prefix + self.key) or []
        found = [found] if isinstance(found, str) else found
        return found[self.place] if self.place < len(found) else None

    def write(self, draft: Draft, value: Any, prefix: str = "") -> None:
        """Write it into the list, or under the name of its own that AI Toolkit's form gives it."""
        own = [f"{prefix}{self.key}_{number}" for number in (1, 2, 3)]
        if any(draft.raw(key) for key in own):
            draft.replace(own[self.place], value or None)
            return
        found = draft.value(prefix + self.key) or []
        found = [found] if isinstance(found, str) else list(found)
        found[self.place : self.place + 1] = [value] if value else []
        draft.replace(prefix + self.key, found)


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A card of the form.

    Args:
        title: AI Toolkit's.
        fields: in their order.
        shown: whether the job has it at all.
    """

    title: str
    fields: tuple[Field, ...]
    shown: Shown = always

"""What is wrong with a value, in one sentence: what is expected and what was found."""

from __future__ import annotations

import types
from typing import Any, Union, cast, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from plafond.job.scalars import resolve_scalar
from plafond.job.section import EXPECTED, Expected, Names, Section
from plafond.job.wording import shown
from plafond.language.said import N_, Said


def sentence(error: ErrorDetails, section: type[Section]) -> Said:
    """Put one pydantic error into our words."""
    if error["type"] == "sentence":
        return cast(Said, error["ctx"]["sentence"])
    # Sections are built from the inside out, so an error is never deeper than a field and its items.
    info = section.model_fields[str(error["loc"][0])]
    if error["type"] == "missing":
        return Said(N_("required, but not given ({what})"), {"what": Said(what(info))})
    expected = expectation(info)
    problem = Said(EXPECTED, {"expected": expected, "found": shown(error["input"])})
    return _hinted(problem, error["input"], str(expected))


def what(info: FieldInfo) -> str:
    """What a field is, for the inside of a sentence."""
    return str(info.description).removesuffix(".")


def expectation(info: FieldInfo) -> Said:
    """Say in words what a field takes, from its type and limits."""
    for mark in info.metadata:
        if isinstance(mark, Expected):
            return Said(mark.text)
        if isinstance(mark, Names):
            return mark.expected()
    kinds = [kind for kind in _kinds(info.annotation) if kind is not types.NoneType]
    if kinds == [int]:
        return _limited(Said(N_("a whole number")), info)
    if kinds == [float]:
        return _limited(Said(N_("a number")), info)
    if kinds == [str]:
        return Said(N_("a text"))
    return Said(N_("a mapping"))


def _kinds(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in _kinds(part)]
    return [annotation]


def _limited(number: Said, info: FieldInfo) -> Said:
    low = next((mark.ge for mark in info.metadata if isinstance(mark, annotated_types.Ge)), None)
    above = next((mark.gt for mark in info.metadata if isinstance(mark, annotated_types.Gt)), None)
    high = next((mark.le for mark in info.metadata if isinstance(mark, annotated_types.Le)), None)
    below = next((mark.lt for mark in info.metadata if isinstance(mark, annotated_types.Lt)), None)
    limits = {"low": str(low), "above": str(above), "high": str(high), "below": str(below)}
    if low is not None and high is not None:
        return Said(N_("{number} from {low} to {high}"), {"number": number, **limits})
    if low is not None and below is not None:
        return Said(N_("{number} of at least {low} and below {below}"), {"number": number, **limits})
    if low is not None:
        return Said(N_("{number} of at least {low}"), {"number": number, **limits})
    return Said(N_("{number} above {above}"), {"number": number, **limits}) if above is not None else number


QUOTE = N_("{text}; put it in quotes")


def _hinted(problem: Said, value: object, expected: str) -> Said:
    if isinstance(value, str):
        meant = resolve_scalar(value)
        number = isinstance(meant, (int, float)) and not isinstance(meant, bool)
        if ("number" in expected and number) or (expected == "true or false" and isinstance(meant, bool)):
            return Said(N_("{text}; remove the quotes"), {"text": problem})
    if isinstance(value, (int, float)) and expected == "a text":
        return Said(QUOTE, {"text": problem})
    if isinstance(value, bool) and "number" in expected:
        return Said(N_("{text} (yes, no, on and off mean true and false)"), {"text": problem})
    return problem

"""What is wrong with a value, in one sentence: what is expected and what was found."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from plafond.job.scalars import resolve_scalar
from plafond.job.section import Expected, Names, Section
from plafond.job.wording import shown


def sentence(error: ErrorDetails, section: type[Section]) -> str:
    """Put one pydantic error into our words."""
    if error["type"] == "sentence":
        return error["msg"]
    # Sections are built from the inside out, so an error is never deeper than a field and its items.
    info = section.model_fields[str(error["loc"][0])]
    if error["type"] == "missing":
        return f"required, but not given ({str(info.description).removesuffix('.')})"
    expected = expectation(info)
    return f"expected {expected}, found {shown(error['input'])}{_hint(error['input'], expected)}"


def expectation(info: FieldInfo) -> str:
    """Say in words what a field takes, from its type and limits."""
    for mark in info.metadata:
        if isinstance(mark, Expected):
            return mark.text
        if isinstance(mark, Names):
            return f"one of {', '.join(mark.choices())}"
    kinds = [kind for kind in _kinds(info.annotation) if kind is not types.NoneType]
    if kinds == [int]:
        return "a whole number" + _limits(info)
    if kinds == [float]:
        return "a number" + _limits(info)
    if kinds == [str]:
        return "a text"
    return "a mapping"


def _kinds(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in _kinds(part)]
    return [annotation]


def _limits(info: FieldInfo) -> str:
    low = next((mark.ge for mark in info.metadata if isinstance(mark, annotated_types.Ge)), None)
    above = next((mark.gt for mark in info.metadata if isinstance(mark, annotated_types.Gt)), None)
    high = next((mark.le for mark in info.metadata if isinstance(mark, annotated_types.Le)), None)
    below = next((mark.lt for mark in info.metadata if isinstance(mark, annotated_types.Lt)), None)
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None and below is not None:
        return f" of at least {low} and below {below}"
    if low is not None:
        return f" of at least {low}"
    return f" above {above}" if above is not None else ""


def _hint(value: object, expected: str) -> str:
    if isinstance(value, str) and "number" in expected:
        number = resolve_scalar(value)
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            return "; remove the quotes"
    if isinstance(value, str) and expected == "true or false" and isinstance(resolve_scalar(value), bool):
        return "; remove the quotes"
    if isinstance(value, (int, float)) and expected == "a text":
        return "; put it in quotes"
    if isinstance(value, bool) and "number" in expected:
        return " (yes, no, on and off mean true and false)"
    return ""

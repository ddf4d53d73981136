"""What is wrong with a value, in one sentence: what is expected and what was found."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from plafond.job.scalars import resolve_scalar
from plafond.job.section import Expected, Names, Section
from plafond.job.wording import shown


def sentence(error: ErrorDetails, section: type[Section]) -> str:
    """Put one pydantic error into our words."""
    if error["type"] == "sentence":
        return error["msg"]
    info = field_at(section, error["loc"])
    if info is None:
        return f"expected a mapping, found {shown(error['input'])}"
    expected = expectation(info)
    if error["type"] == "missing":
        return f"required, but missing: {info.description}"
    return f"expected {expected}, found {shown(error['input'])}{_hint(error['input'], expected)}"


def field_at(section: type[Section], loc: tuple[int | str, ...]) -> FieldInfo | None:
    """The field that an error is about; parts of `loc` that lead into it are followed."""
    info: FieldInfo | None = None
    model: type[BaseModel] | None = section
    for part in loc:
        if model is None or not isinstance(part, str) or part not in model.model_fields:
            break
        info = model.model_fields[part]
        model = next((kind for kind in _kinds(info.annotation) if issubclass_model(kind)), None)
    return info


def issubclass_model(kind: object) -> bool:
    """Whether `kind` is a pydantic model."""
    return isinstance(kind, type) and issubclass(kind, BaseModel)


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
    return "a list" if get_origin(info.annotation) is tuple else "a mapping"


def _kinds(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in _kinds(part)]
    if get_origin(annotation) is Literal:
        return [str]
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

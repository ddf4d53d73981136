"""The base of all sections of a job file, and the types their fields share.

A section is a frozen pydantic model whose field names are AI Toolkit's keys. It holds *resolved* values:
aliases are merged, spellings made one, defaults filled in. Keys that exist only in the file (an alias, a
legacy list) are not fields; they are listed in `Section.inputs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue, WithJsonSchema
from pydantic_core import PydanticCustomError, core_schema

from plafond.job.wording import hinted, nearest, shown
from plafond.language.said import N_, Said, Value


@dataclass(frozen=True, kw_only=True)
class Input:
    """A key that is read from the file and merged into a field.

    Args:
        schema: JSON Schema of the value as users write it.
        description: one sentence for editors.
        into: the field it is merged into.
        wins: whether it counts when the field is given as well.
    """

    schema: Mapping[str, Any]
    description: str
    into: str
    wins: bool = False


class Section(BaseModel):
    """One mapping of the job file, typed and resolved; unknown keys are dealt with before it is built."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    inputs: ClassVar[Mapping[str, Input]] = {}
    """Keys that are read from the file but are not fields: aliases and legacy spellings."""
    derived: ClassVar[frozenset[str]] = frozenset()
    """Fields that are computed and cannot be written in the file."""

    @classmethod
    def keys(cls) -> list[str]:
        """Every key of this section that plafond acts on."""
        return [name for name in cls.model_fields if name not in cls.derived] + list(cls.inputs)


EXPECTED = N_("expected {expected}, found {found}")


def refused(text: str | Said, /, **values: Value) -> PydanticCustomError:
    """What a validator raises to say in a sentence of its own what is wrong."""
    return PydanticCustomError("sentence", "{sentence}", {"sentence": Said.of(text, values)})


@dataclass(frozen=True)
class Expected:
    """Says in words what a field takes, where its type alone would not read well."""

    text: str
    """Marked for translation."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """A set of names for one thing, used as pydantic metadata on a `str` field.

    Args:
        noun: what is named, with its article, as in "an optimizer"; marked for translation.
        accepted: every accepted spelling and the one name it stands for.
        known: names of AI Toolkit that plafond does not have, with the nearest that it has; errors, because
            the result would differ.
    """

    noun: str
    accepted: Mapping[str, str]
    known: Mapping[str, str | None] = field(default_factory=dict)

    def resolve(self, value: object) -> object:
        """Turn an accepted spelling into its one name; say what is wrong with any other."""
        if not isinstance(value, str):
            return value
        name = value.strip().lower()
        if name in self.accepted:
            return self.accepted[name]
        if name not in self.known:
            wrong = Said(EXPECTED, {"expected": self.expected(), "found": shown(value)})
            raise refused(hinted(wrong, nearest(name, self.accepted)))
        if (here := self.known[name]) is not None:
            has = Said(N_("the nearest it has is {name}"), {"name": here})
        else:
            has = Said(N_("it has {names}"), {"names": tuple(self.choices())})
        raise refused(
            N_("{name} is {noun} of AI Toolkit that plafond does not have; {has}"),
            name=shown(value),
            noun=Said(self.noun),
            has=has,
        )

    def expected(self) -> Said:
        """What is expected, in words."""
        return Said(N_("one of {names}"), {"names": tuple(self.choices())})

    def choices(self) -> list[str]:
        """The names that are told apart, each once."""
        return list(dict.fromkeys(self.accepted.values()))

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self.resolve, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "enum": list(self.accepted)}


def one_name(noun: str, *names: str, known: Mapping[str, str | None] | None = None) -> Names:
    """Names without aliases."""
    return Names(noun=noun, accepted={name: name for name in names}, known=known or {})


def _zero_or_one(value: object) -> object:
    # AI Toolkit only tests for truth, so files with 0 and 1 exist.
    return bool(value) if isinstance(value, int) and value in (0, 1) else value


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _one_or_more(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value if isinstance(value, tuple) else (value,)


Channel = Annotated[int, Field(ge=0, le=255)]
Flag = Annotated[
    bool, BeforeValidator(_zero_or_one), Expected(N_("true or false")), WithJsonSchema({"type": "boolean"})
]
Texts = Annotated[
    tuple[str, ...],
    BeforeValidator(_tuple),
    Expected(N_("a list of texts")),
    WithJsonSchema({"type": "array", "items": {"type": "string"}}),
]
TextOrTexts = Annotated[
    tuple[str, ...],
    BeforeValidator(_one_or_more),
    Expected(N_("a text or a list of texts")),
    WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}}),
]
Resolutions = Annotated[
    tuple[Annotated[int, Field(ge=16)], ...],
    BeforeValidator(_one_or_more),
    Field(min_length=1),
    Expected(N_("a whole number of at least 16, or a list of them")),
    WithJsonSchema(
        {
            "type": ["integer", "array"],
            "minimum": 16,
            "items": {"type": "integer", "minimum": 16},
            "minItems": 1,
        }
    ),
]
Colour = Annotated[
    tuple[Channel, Channel, Channel],
    BeforeValidator(_tuple),
    Expected(N_("three whole numbers from 0 to 255")),
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 255},
            "minItems": 3,
            "maxItems": 3,
        }
    ),
]
Settings = Annotated[dict[str, Any], Expected(N_("a mapping"))]

DTYPE = Names(
    noun=N_("a number format"),
    accepted={
        "float32": "float32",
        "bfloat16": "bfloat16",
        "float16": "float16",
        "fp32": "float32",
        "float": "float32",
        "bf16": "bfloat16",
        "fp16": "float16",
        "half": "float16",
    },
)
Dtype = Annotated[str, DTYPE]

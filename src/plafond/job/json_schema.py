"""The JSON Schema of job files, for completion and checks in editors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plafond.job.keys import NOT_USED, SECTIONS, SectionKeys
from plafond.job.known_keys import Known
from plafond.job.sample import SampleItem
from plafond.job.schema import ProcessConfig
from plafond.job.section import Section

Schema = dict[str, Any]

# What the file may give in another way is not required of the key itself.
_REQUIRED_OTHERWISE = {"folder_path"}


def json_schema() -> Schema:
    """Describe a whole job file: its outer layers, every section, and keys that only AI Toolkit acts on."""
    generated = ProcessConfig.model_json_schema()
    definitions: dict[str, Schema] = generated.pop("$defs")
    definitions[ProcessConfig.__name__] = generated
    by_name = {keys.model.__name__: keys for keys in SECTIONS.values()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A training job for AI Toolkit and plafond",
        "type": "object",
        "required": ["job", "config"],
        "properties": {
            "job": {"const": "extension", "description": "Kind of job."},
            "config": {
                "type": "object",
                "required": ["process"],
                "properties": {
                    "name": {
                        "type": "string",
                        "minLength": 1,
                        "description": "Name of the run folder and of the saved files; [name] stands for it.",
                    },
                    "process": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"$ref": f"#/$defs/{ProcessConfig.__name__}"},
                        "description": "The runs, one after the other.",
                    },
                },
            },
            "meta": {
                "type": ["object", "null"],
                "description": "Copied into the metadata of saved files.",
            },
        },
        "$defs": {name: _as_written(schema, by_name[name]) for name, schema in sorted(definitions.items())},
    }


def _as_written(schema: Schema, keys: SectionKeys) -> Schema:
    """Turn the schema of resolved values into that of the section as users write it."""
    model = keys.model
    inherits = model is SampleItem
    properties = {
        name: _field(field, str(model.model_fields[name].description), inherits=inherits)
        for name, field in schema["properties"].items()
        if name not in model.derived
    }
    properties |= {name: _or_null(_input(model, name)) for name in model.inputs}
    properties |= _known(keys.known)
    required = [name for name in schema.get("required", ()) if name not in _REQUIRED_OTHERWISE]
    return {
        "type": "object",
        "description": schema["description"],
        "properties": properties,
        "additionalProperties": False,
        **({"required": required} if required else {}),
    }


def _field(field: Schema, description: str, *, inherits: bool) -> Schema:
    kept = {key: value for key, value in field.items() if key != "title"}
    kept["description"] = description
    if inherits or "$ref" in kept:
        # A preview's values default to those of `sample`; a section's defaults stand at its own keys.
        kept.pop("default", None)
    return _or_null(kept)


def _or_null(schema: Schema) -> Schema:
    """Null stands for the default at every key."""
    notes: Schema = {key: schema.pop(key) for key in ("description", "default") if key in schema}
    if "anyOf" in schema:
        choices = [choice for choice in schema["anyOf"] if choice != {"type": "null"}]
        return {"anyOf": [*choices, {"type": "null"}], **notes}
    return {"anyOf": [schema, {"type": "null"}], **notes}


def _input(model: type[Section], name: str) -> Schema:
    declared = model.inputs[name]
    return {**declared.schema, "description": declared.description}


def _known(known: Mapping[str, Known]) -> Schema:
    return {
        name: {
            "description": f"{NOT_USED[0].upper()}{NOT_USED[1:]}{'; ' + key.why if key.why else ''}.",
            "default": key.default,
            "deprecated": True,
        }
        for name, key in known.items()
    }

"""A process with some settings changed, by their dotted keys, as a job file would change it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plafond.job.sample import SampleItem
from plafond.job.schema import ProcessConfig

Values = Mapping[str, Any]
"""New values by dotted key, as ``train.batch_size`` or ``datasets.0.resolution``."""

Change = dict[str, tuple[Any, Any]]
"""The value before and after, by dotted key."""


def changed(process: ProcessConfig, values: Values) -> ProcessConfig:
    """The process with new values, and with those that follow from them when a job is read."""
    for key, value in values.items():
        old = value_at(process, key)
        process = _with(process, key.split("."), value)
        section, _, name = key.rpartition(".")
        if section == "sample" and name in SampleItem.model_fields:
            items = (
                item.model_copy(update={name: value}) if getattr(item, name) == old else item
                for item in process.sample.samples
            )
            process = _with(process, ["sample", "samples"], tuple(items))
        if key == "train.cache_text_embeddings" and value:
            datasets = tuple(
                data.model_copy(update={"cache_text_embeddings": True}) for data in process.datasets
            )
            process = process.model_copy(update={"datasets": datasets})
    return process


def change_of(process: ProcessConfig, values: Values) -> Change:
    """What new values are instead of."""
    return {key: (value_at(process, key), value) for key, value in values.items()}


def value_at(process: ProcessConfig, key: str) -> Any:
    """The value of a dotted key; lists as lists."""
    found: Any = process
    for part in key.split("."):
        found = found[int(part)] if isinstance(found, tuple) else getattr(found, part)
    return list(found) if isinstance(found, tuple) else found


def _with(node: Any, parts: list[str], value: Any) -> Any:
    if not parts:
        return tuple(value) if isinstance(value, list) else value
    first, rest = parts[0], parts[1:]
    if isinstance(node, tuple):
        place = int(first)
        return (*node[:place], _with(node[place], rest, value), *node[place + 1 :])
    return node.model_copy(update={first: _with(getattr(node, first), rest, value)})

"""Which keys each section has, and what to say about the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plafond.job import known_keys
from plafond.job.dataset import DatasetConfig
from plafond.job.document import KeyPath
from plafond.job.known_keys import Known
from plafond.job.model import ModelConfig
from plafond.job.network import NetworkConfig, NetworkKwargs
from plafond.job.sample import SampleConfig, SampleItem
from plafond.job.save import LoggingConfig, SaveConfig
from plafond.job.schema import PlafondConfig, ProcessConfig
from plafond.job.section import Section
from plafond.job.source import Source
from plafond.job.train import EmaConfig, TrainConfig
from plafond.job.wording import hinted, nearest
from plafond.language.said import N_, Said, Value

NOT_USED = N_("known to AI Toolkit, not used by plafond")
NOT_USED_BECAUSE = N_("known to AI Toolkit, not used by plafond; {why}")
UNKNOWN = N_("unknown key")
UNKNOWN_IGNORED = N_("unknown key, ignored")

# Words that read alike across sections are only offered when they are nearly the same.
_FAR_CUTOFF = 0.85


@dataclass(frozen=True)
class SectionKeys:
    """The keys of one section: those of the model, and those that only AI Toolkit acts on."""

    model: type[Section]
    known: Mapping[str, Known]

    def all(self) -> list[str]:
        """Every key that has a meaning in this section."""
        return [*self.model.keys(), *self.known]


SECTIONS: Mapping[str, SectionKeys] = {
    "": SectionKeys(ProcessConfig, known_keys.PROCESS),
    "train": SectionKeys(TrainConfig, known_keys.TRAIN),
    "train.ema_config": SectionKeys(EmaConfig, known_keys.EMA),
    "model": SectionKeys(ModelConfig, known_keys.MODEL),
    "network": SectionKeys(NetworkConfig, known_keys.NETWORK),
    "network.network_kwargs": SectionKeys(NetworkKwargs, known_keys.NETWORK_KWARGS),
    "datasets": SectionKeys(DatasetConfig, known_keys.DATASET),
    "sample": SectionKeys(SampleConfig, known_keys.SAMPLE),
    "sample.samples": SectionKeys(SampleItem, known_keys.SAMPLE_ITEM),
    "save": SectionKeys(SaveConfig, known_keys.SAVE),
    "logging": SectionKeys(LoggingConfig, known_keys.LOGGING),
    "plafond": SectionKeys(PlafondConfig, {}),
}
"""Every section by its dotted name; the empty name is the process itself."""

LISTS = frozenset({"datasets", "sample.samples"})
"""Sections that come as a list of mappings."""


def take_keys(
    raw: Mapping[str, Any], section: str, path: KeyPath, source: Source, *, strict: bool
) -> dict[str, Any]:
    """Return what plafond acts on, without nulls; warn of the rest.

    Args:
        raw: the mapping as it stands in the file.
        section: dotted name of the section, a key of `SECTIONS`.
        path: where the mapping stands in the file.
        source: takes the warnings.
        strict: make unknown keys an error.
    """
    keys = SECTIONS[section]
    own = set(keys.model.keys())
    taken: dict[str, Any] = {}
    for key, value in raw.items():
        if key in own:
            if value is not None:
                taken[key] = value
        elif key in keys.known:
            known = keys.known[key]
            idle = known.switch is not None and not raw.get(known.switch)
            if value is not None and value != known.default and not idle:
                unused = Said(NOT_USED_BECAUSE, {"why": Said(known.why)}) if known.why else NOT_USED
                source.warn((*path, key), unused)
        elif strict:
            source.problem((*path, key), suggesting(Said(UNKNOWN), key, section))
        else:
            source.warn((*path, key), suggesting(Said(UNKNOWN_IGNORED), key, section))
    return taken


def suggesting(unknown: Said, key: str, section: str) -> Said:
    """End a sentence about an unknown key with where it belongs or how it is spelt."""
    for other, keys in SECTIONS.items():
        if other != section and key in keys.all():
            values: dict[str, Value] = {"text": unknown, "key": key, "section": other}
            if other:
                return Said(N_("{text}; {key} belongs under {section}"), values)
            return Said(N_("{text}; {key} belongs one level up, beside train"), values)
    near = nearest(key, SECTIONS[section].all())
    if near:
        return hinted(unknown, near)
    homes = sections_of_keys()
    near = nearest(key, homes, cutoff=_FAR_CUTOFF)
    if near is None or homes[near]:
        return hinted(unknown, near and f"{homes[near]}.{near}")
    return Said(N_("{text}; did you mean {name}, beside train?"), {"text": unknown, "name": near})


def sections_of_keys() -> dict[str, str]:
    """The first section that has each key."""
    homes: dict[str, str] = {}
    for section, keys in SECTIONS.items():
        for key in keys.all():
            homes.setdefault(key, section)
    return homes

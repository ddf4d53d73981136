"""What a new job starts with, and what changes when another model is chosen: AI Toolkit's defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from plafond.families import families
from plafond.families._contract import BaseModel
from plafond.web.draft import Draft

DATASETS = "datasets."


def new_text() -> str:
    """The text of a new job."""
    return (files("plafond.web") / "assets" / "new_job.yaml").read_text(encoding="utf-8")


@cache
def _assets() -> Mapping[str, Any]:
    text = (files("plafond.web") / "assets" / "arch_defaults.json").read_text(encoding="utf-8")
    found: Mapping[str, Any] = json.loads(text)
    return found


def base_models() -> dict[str, BaseModel]:
    """Every published model that can be trained, by its repository."""
    return {base.repo: base for family in families() for base in family.base_models}


def chosen(draft: Draft) -> str | None:
    """The repository of a job's base model, when it is a published one."""
    path = draft.value("model.name_or_path")
    return path if path in base_models() else None


def defaults(repo: str | None) -> dict[str, Any]:
    """Values of a model by their keys; of one that nobody knows, the common ones."""
    found = _assets()
    return {**found["common"], **found["models"].get(repo, {})}


def choose(draft: Draft, repo: str) -> None:
    """Train on another model: its values replace those that the earlier one had brought, not what was set by hand.

    Raises:
        EditError: the file does not let itself be changed.
    """
    base = base_models()[repo]
    before, after = defaults(chosen(draft)), defaults(repo)
    draft.set("model.arch", base.arch)
    draft.set("model.name_or_path", repo)
    for key, value in after.items():
        if key.startswith(DATASETS):
            count = len(draft.raw("datasets") or ())
            keys = [f"{DATASETS}{index}.{key.removeprefix(DATASETS)}" for index in range(count)]
        else:
            keys = [key]
        for place in keys:
            now = draft.value(place)
            if now != value and now == before[key]:
                write = draft.replace if isinstance(value, dict) else draft.set
                write(place, value)

"""Releases that are known to take more memory, from a table with sources."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from plafond.advice.facts import Facts
from plafond.advice.log import Line, Log


@dataclass(frozen=True, kw_only=True)
class Release:
    """One entry of ``regressions.json``.

    Args:
        id: its name.
        package: whose versions; None where the code in a traceback tells.
        versions: the releases, by their leading numbers.
        phases: where it shows.
        words: patterns that must all stand in the log.
        host: main memory is what it takes.
        effect: what it does and what to use instead.
        source: the report.
    """

    id: str
    package: str | None
    versions: tuple[str, ...]
    phases: tuple[str, ...]
    words: tuple[str, ...]
    host: bool
    effect: str
    source: str


@cache
def releases() -> tuple[Release, ...]:
    """The table."""
    read = json.loads((files("plafond.advice") / "regressions.json").read_text(encoding="utf-8"))
    return tuple(_release(entry) for entry in read["releases"])


def _release(entry: dict[str, Any]) -> Release:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()
    }
    return Release(**values)


def known(log: Log, facts: Facts, phase: str | None, *, host: bool) -> tuple[Release, Line] | None:
    """The entry that explains a failure, and the line that shows it."""
    for release in releases():
        if phase not in release.phases or release.host != host:
            continue
        places = [re.search(word.encode(), log.searched) for word in release.words]
        if not all(places):
            continue
        if release.package is None:
            return release, log.line(log.place(max(place.start() for place in places if place)))
        for package, version in facts.versions:
            if package.removeprefix("py") == release.package and _is(version, release.versions):
                return release, log.line(next(log.find(version.encode())))
    return None


def _is(version: str, releases: tuple[str, ...]) -> bool:
    parts = version.split(".")
    return any(parts[: len(release.split("."))] == release.split(".") for release in releases)

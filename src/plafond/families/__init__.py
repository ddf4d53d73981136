"""One file per model family. Families are found by listing this folder; there is no registry to edit."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from plafond.errors import JobError
from plafond.families._contract import Family
from plafond.language.said import N_


@cache
def families() -> tuple[Family, ...]:
    """All families, by name."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    return tuple(importlib.import_module(f"{__name__}.{name}").FAMILY for name in names)


def family_for(arch: str) -> Family:
    """The family that trains this architecture.

    Raises:
        JobError: no family does (yet).
    """
    for family in families():
        if arch in family.archs:
            return family
    raise JobError(
        N_("the architecture {arch} is not supported yet; supported: {names}"),
        arch=arch,
        names=tuple(arch for family in families() for arch in family.archs),
        key="model.arch",
    )

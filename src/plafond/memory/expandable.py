"""Expandable segments: one answer for the plan, which replays the allocator, and for the run, which sets it up.

With them the caching allocator grows one range instead of asking for a segment per size, so that buckets of many sizes
leave almost nothing unused. torch 2.13 takes its settings, when CUDA is initialised, from the first of `VARIABLES` that
is set, and ignores the others. What a user has set there stays; only what it does not say is added.

Importing this module does not load torch.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, MutableMapping

from plafond.memory.allocator import Mode

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""In the order in which torch looks (``c10/core/AllocatorConfig.cpp``); only the last is not deprecated."""


def mode_for(system: str, environ: Mapping[str, str]) -> Mode:
    """How the allocator of a run works; the same before and after `set_up`.

    Args:
        system: as `platform.platform` gives it, as ``Linux-6.8.0-x86_64-with-glibc2.39``.
        environ: environment variables.
    """
    settings = _settings(environ)
    if system.startswith("Windows") or settings.get("backend", "native") != "native":
        return "default"  # torch 2.13 knows them on Linux only; CUDA's own allocator has no segments at all
    said = settings.get("expandable_segments")
    if said is not None:
        return "expandable" if said == "True" else "default"
    # under WSL some drivers fail at the first such allocation (pytorch issue 192330)
    return "default" if "microsoft" in system.lower() else "expandable"


def run_mode() -> Mode:
    """`mode_for` this machine and this process."""
    return mode_for(platform.platform(), os.environ)


def set_up() -> None:
    """Ask torch for expandable segments, unless `run_mode` is another; before CUDA is initialised."""
    add_to(os.environ, platform.platform())


def add_to(environ: MutableMapping[str, str], system: str) -> None:
    """What `set_up` does, to any environment of any `system`."""
    if mode_for(system, environ) == "default" or "expandable_segments" in _settings(environ):
        return
    name = _variable(environ)
    own = environ.get(name, "").strip().rstrip(",")
    environ[name] = f"{own},expandable_segments:True" if own else "expandable_segments:True"


def _variable(environ: Mapping[str, str]) -> str:
    """The variable that torch reads."""
    return next((name for name in VARIABLES if name in environ), VARIABLES[-1])


def _settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Key and value of each plain setting in it; lists in brackets do not matter here."""
    text = re.sub(r"\s|\[[^\]]*\]", "", environ.get(_variable(environ), ""))
    return dict(part.split(":", 1) for part in text.split(",") if ":" in part)

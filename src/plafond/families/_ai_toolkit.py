"""What AI Toolkit has on the device in each phase, by its own loaders: data, for predicting its runs.

Read in its source at the commit that the project's notes on job files name.
"""

from __future__ import annotations

from dataclasses import dataclass

TRANSFORMER, TEXT, VAE = "transformer", "text", "vae"
DENSE_TRANSFORMER, DENSE_TEXT = (
    "transformer before it is quantised",
    "text encoders before they are quantised",
)


@dataclass(frozen=True, kw_only=True)
class Residency:
    """Who is where, beside what a phase itself makes.

    Args:
        load: moments of loading, each with the parts that are on the device then.
        load_low_vram: the same with ``model.low_vram``.
        stay: parts that are on the device from then on although training does not use them.
        stay_low_vram: the same with ``model.low_vram``.
        offloads: ``model.layer_offloading`` has an effect.
    """

    load: tuple[tuple[str, ...], ...]
    load_low_vram: tuple[tuple[str, ...], ...]
    stay: tuple[str, ...] = ()
    stay_low_vram: tuple[str, ...] = ()
    offloads: bool = True


PER_BLOCK = Residency(
    load=((DENSE_TEXT,), (TRANSFORMER, TEXT)),
    load_low_vram=((DENSE_TEXT,), (TRANSFORMER, TEXT)),
)
"""Blocks are quantised one after the other and wait in main memory; ``low_vram`` is undone before training."""

WHOLE = Residency(
    load=((DENSE_TRANSFORMER,), (TRANSFORMER, DENSE_TEXT), (TRANSFORMER, TEXT)),
    load_low_vram=((TRANSFORMER, DENSE_TEXT), (TRANSFORMER, TEXT)),
    offloads=False,
)
"""The transformer is quantised as a whole on the device, or with ``low_vram`` in main memory."""

WHOLE_THEN_PER_BLOCK = Residency(
    load=((DENSE_TRANSFORMER,), (TRANSFORMER, DENSE_TEXT), (TRANSFORMER, TEXT)),
    load_low_vram=((DENSE_TEXT,), (TRANSFORMER, TEXT)),
)
"""The transformer goes to the device before its blocks are quantised, unless ``low_vram`` keeps it in main memory."""

TWO_EXPERTS = Residency(
    load=(
        (TRANSFORMER, DENSE_TRANSFORMER),
        (TRANSFORMER, TRANSFORMER, DENSE_TEXT),
        (TRANSFORMER, TRANSFORMER, TEXT),
    ),
    load_low_vram=((DENSE_TRANSFORMER,), (DENSE_TEXT,), (TRANSFORMER, TEXT)),
    stay=(TRANSFORMER,),
)
"""Both experts stay on the device; only with ``low_vram`` the one whose turn it is not waits in main memory."""

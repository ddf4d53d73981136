"""Names of number formats for frozen weights: AI Toolkit's, and what plafond stores for each."""

from __future__ import annotations

from collections.abc import Mapping

EXACT: Mapping[str, str] = {
    **dict.fromkeys(("qfloat8", "float8", "qfloat8_e4m3fn"), "float8"),
    **dict.fromkeys(("qint8", "int8"), "int8"),
    "nf4": "nf4",
    **{f"uint{bits}": f"uint{bits}" for bits in range(2, 9)},
    "qint4": "uint4",
    "qint2": "uint2",
}
"""Formats that plafond has, by name; nf4 is none of AI Toolkit's names."""

NEAREST: Mapping[str, str] = {
    **dict.fromkeys(("qfloat8_e4m3fnuz", "qfloat8_e5m2"), "float8"),
    "convrot8": "int8",
    "convrot4": "uint4",
    "nvfp4": "nf4",
    **{f"convrotint{bits}": f"uint{bits}" for bits in range(2, 8)},
    "convrotbitnet": "uint2",
    **{f"orbit{bits}": f"uint{bits}" for bits in (2, 3, 4)},
}
"""Formats of AI Toolkit that plafond does not have, and the one of the same width that takes their place."""

QTYPES = (*EXACT, *NEAREST)


def format_of(qtype: str) -> str | None:
    """What weights are stored as for a `qtype` of a job; None leaves them as they are.

    ``uint3|owner/name/file.safetensors`` names an accuracy recovery adapter as well, which is not used.
    """
    name = qtype.split("|")[0].strip()
    return EXACT.get(name) or NEAREST.get(name)

"""What an unquoted word in a job file means: YAML 1.1 as PyYAML reads it, with AI Toolkit's `1e-4`.

YAML 1.1 takes `yes`, `no`, `on`, `off` for booleans, `010` for eight and `1:30` for ninety; plain PyYAML
would read `1e-4` as a text, so AI Toolkit widens the rule for floats, and so do we. Dates stay texts: no key
takes one.
"""

from __future__ import annotations

import re

Scalar = str | int | float | bool | None

_TRUE = frozenset({"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})
_FALSE = frozenset({"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"})
_NULL = frozenset({"", "~", "null", "Null", "NULL"})

_INT = re.compile(
    r"""[-+]?0b[0-1_]+
    |[-+]?0[0-7_]+
    |[-+]?(?:0|[1-9][0-9_]*)
    |[-+]?0x[0-9a-fA-F_]+
    |[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+""",
    re.VERBOSE,
)
_FLOAT = re.compile(
    r"""[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
    |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN)""",
    re.VERBOSE,
)

# Python refuses to read longer integers, and no key needs them.
_MAX_DIGITS = 400


def resolve_scalar(text: str) -> Scalar:
    """Turn an unquoted word into the value it stands for."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if len(text) > _MAX_DIGITS:
        return text
    if _INT.fullmatch(text):
        return _int(text)
    if _FLOAT.fullmatch(text):
        return _float(text)
    return text


def _int(text: str) -> int | str:
    digits = text.replace("_", "")
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    if digits in ("0b", "0x"):
        return text
    if digits.startswith("0b"):
        return sign * int(digits[2:], 2)
    if digits.startswith("0x"):
        return sign * int(digits[2:], 16)
    if digits.startswith("0"):
        return sign * int(digits, 8)
    return sign * (int(_base_60(digits)) if ":" in digits else int(digits))


def _float(text: str) -> float:
    digits = text.replace("_", "").lower()
    sign = -1.0 if digits.startswith("-") else 1.0
    digits = digits.lstrip("+-")
    if digits in (".inf", ".nan"):
        return sign * float(digits[1:])
    return sign * _base_60(digits)


def _base_60(digits: str) -> float:
    total = 0.0
    for part in digits.split(":"):
        total = total * 60 + float(part)
    return total

import math

import pytest

from plafond.job.scalars import resolve_scalar

CASES = [
    *[(text, None) for text in ("", "~", "null", "Null", "NULL")],
    *[(text, True) for text in ("true", "True", "TRUE", "yes", "Yes", "on", "ON")],
    *[(text, False) for text in ("false", "no", "No", "off", "Off")],
    *[
        (text, text)
        for text in ("y", "n", "tRue", "nUll", "1e", "e4", "0o7", "0x", "0b", "1.2.3", "2024-01-01", "-")
    ],
    *[
        ("0", 0),
        ("-0", 0),
        ("17", 17),
        ("+17", 17),
        ("1_000", 1000),
        ("0x1F", 31),
        ("-0x1F", -31),
        ("0b101", 5),
    ],
    *[("010", 8), ("08", "08"), ("1:30", 90), ("1:30:00", 5400)],
    *[
        ("1e-4", 1e-4),
        ("1E4", 1e4),
        ("-1e4", -1e4),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.5", -0.5),
        ("1.5e3", 1500.0),
    ],
    *[("1_0.5", 10.5), (".inf", math.inf), ("-.inf", -math.inf), ("1:30.5", 90.5)],
]


@pytest.mark.parametrize(("text", "value"), CASES)
def test_a_word(text, value):
    found = resolve_scalar(text)
    assert found == value and type(found) is type(value)


def test_not_a_number():
    assert math.isnan(resolve_scalar(".nan"))


def test_absurdly_long_numbers_stay_text():
    assert resolve_scalar("1" * 5000) == "1" * 5000

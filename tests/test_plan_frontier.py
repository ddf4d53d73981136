"""``plafond plan --frontier``: the table, the JSON, the picture."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from conftest import JobMaker
from plafond.cli import app
from plafond.plan.frontier import Stop

VIRTUAL = ("--device", "cpu")


def asked(job: Path, *options: str) -> Any:
    result = CliRunner().invoke(app, ["plan", str(job), *options, "--frontier"])
    assert result.exit_code in (0, 3), result.output
    return result


def found(job: Path, *options: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(asked(job, *options, "--json").stdout)
    return answer


@pytest.fixture
def job(make_job: JobMaker) -> Path:
    return make_job(datasets={"resolution": [224]}, train={"gradient_checkpointing": "auto", "batch_size": 4})


def test_less_time_takes_more_memory_and_auto_is_the_fastest_that_fits(job: Path) -> None:
    stops = found(job, *VIRTUAL, "--vram", "1GB")["frontier"]["stops"]
    assert 3 <= len(stops) <= 12 and set(stops[0]) == set(Stop.__dataclass_fields__)
    for one, two in pairwise(stops):
        assert one["kept_bytes"] < two["kept_bytes"] and one["device_bytes"] <= two["device_bytes"]
        assert one["step_time"] > two["step_time"]
    assert stops[-1]["step_time"] == 1 and stops[-1]["chosen"]
    middle = (stops[0]["device_bytes"] + stops[-1]["device_bytes"]) // 2
    plan = found(job, *VIRTUAL, "--vram", str(middle))
    (chosen,) = [stop for stop in plan["frontier"]["stops"] if stop["chosen"]]
    assert all(stop["fits"] == (stop["device_bytes"] <= middle) for stop in plan["frontier"]["stops"])
    assert chosen["step_time"] == min(stop["step_time"] for stop in plan["frontier"]["stops"] if stop["fits"])
    bucket = plan["frontier"]["bucket"]
    (train,) = [one for one in plan["phases"] if (one["phase"], one["bucket"]) == ("train", bucket)]
    assert train["device_bytes"] == chosen["device_bytes"]
    assert plan["activation_plan"]["flops_ratio"] == pytest.approx(chosen["step_time"], abs=1e-4)


def test_the_table_fits_and_nothing_is_marked_where_nothing_fits(job: Path) -> None:
    lean = found(job, *VIRTUAL, "--vram", "1GB")["frontier"]["stops"][0]["device_bytes"]
    text = asked(job, *VIRTUAL, "--vram", str(lean - 2**16)).stdout
    table = text[text.index("Memory against speed at ") :].splitlines()
    assert max(map(len, text.splitlines())) <= 100
    assert "← auto" not in text and table[2].endswith("does not fit")
    assert "← auto" in asked(job, *VIRTUAL, "--vram", "1GB").stdout


def test_without_being_asked_nobody_looks(job: Path) -> None:
    result = CliRunner().invoke(app, ["plan", str(job), *VIRTUAL, "--vram", "1GB", "--json"])
    assert "frontier" not in json.loads(result.stdout)


def test_it_can_be_drawn(job: Path, tmp_path: Path) -> None:
    target = tmp_path / "frontier.png"
    assert asked(job, "--gpu", "RTX 4090", "--plot", str(target)).exit_code == 0
    assert Image.open(target).width > 800

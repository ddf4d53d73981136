"""``plafond gc-test``: what it tries, what it recommends, and that it leaves the job alone."""

from __future__ import annotations

import json

import pytest
from PIL import Image
from ruamel.yaml import YAML
from typer.testing import CliRunner

import plafond
from conftest import JobMaker
from plafond.advice.experiment import Trial, _conclusion
from plafond.cli import app
from plafond.families import family_for
from plafond.plan.shapes import shapes_of


def trial(setting: str, seconds: float | None) -> Trial:
    """A trial of which only the time matters."""
    return Trial(
        setting=setting,
        verdict="fits",
        planned_bytes=1,
        left_bytes=1,
        seconds=seconds,
        failure=None if seconds else "at step 1",
    )


@pytest.mark.parametrize(
    ("on", "auto", "off", "expected"),
    [
        (2.0, 1.9, 1.0, "false"),
        (2.0, 1.5, None, "auto"),
        (2.0, 1.5, 1.48, "auto"),
        (2.0, 2.0, None, "true"),
        (2.0, 1.99, 1.98, "true"),
        (None, None, None, "true"),
    ],
)
def test_the_recommendation(on: float | None, auto: float | None, off: float | None, expected: str) -> None:
    times = {"true": on, "auto": auto, "false": off}
    assert _conclusion({name: trial(name, seconds) for name, seconds in times.items()})[0] == expected


def test_ceilings_dictate_what_is_tried(make_job: JobMaker) -> None:
    prompts = [{"prompt": "small"}, {"prompt": "large", "width": 96}]
    job = make_job(
        "gc",
        datasets={"resolution": [64, 96], "num_repeats": 4},
        train={"steps": 4, "batch_size": 4, "disable_sampling": False},
        sample={"samples": prompts, "width": 64, "height": 64},
    )
    document = YAML(typ="safe").load(job)
    (process,) = document["config"]["process"]
    document["config"]["process"].append({**process, "name": "second"})
    with job.open("w") as file:
        YAML(typ="safe").dump(document, file)
    before = job.read_bytes()
    command = ("gc-test", str(job), "--device", "cpu", "--steps", "4", "--json")
    result = CliRunner().invoke(app, [*command, "--vram", "200MB"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert [one["setting"] for one in found["trials"]] == ["true", "auto", "false"]
    assert all(one["seconds"] > 0 for one in found["trials"])
    (process, _) = plafond.load_job(job).processes
    buckets = [str(bucket) for bucket in shapes_of(process, family_for("flux")).batches]
    assert len(buckets) > 2
    assert [one["buckets"] for one in found["trials"]] == [buckets] * 3, "each of them, the largest first"
    runs = sorted((job.parent / "out" / "gc-test").iterdir())
    assert [run.name for run in runs] == ["gc-auto", "gc-false", "gc-true"]
    for run in runs:
        (preview,) = (run / "samples").iterdir()
        with Image.open(preview) as picture:
            assert picture.size == (96, 64), "the largest one, once"
    assert any("2 processes" in caution for caution in found["cautions"])
    on, _, off = found["trials"]
    assert on["peak_bytes"] < off["peak_bytes"] <= off["planned_bytes"]

    between = (on["planned_bytes"] + off["planned_bytes"]) // 2
    result = CliRunner().invoke(app, [*command, "--vram", f"{between}B"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["trials"][-1]["seconds"] is None
    assert "not run" in found["trials"][-1]["failure"]
    assert found["recommended"] in ("true", "auto")
    assert job.read_bytes() == before

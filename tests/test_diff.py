"""Comparing two jobs: every difference is named, alone and together, and its bytes are those of the plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

import plafond
from conftest import JobMaker
from plafond.cli import app
from plafond.errors import UsageError
from plafond.memory.gpus import Ceiling
from plafond.plan.compare import differences
from plafond.plan.forecast import Forecaster

NO_LIMIT = 2**60


def diff(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["diff", *map(str, arguments), "--device", "cpu"])
    if result.exception:
        raise result.exception
    return result.stdout


def found(*arguments: object) -> dict[str, Any]:
    (process,) = json.loads(diff(*arguments, "--json"))["processes"]
    return dict(process)


def peak_of(path: Path) -> int:
    (process,) = plafond.load_job(path).processes
    plan = Forecaster(process, Ceiling(NO_LIMIT, 0, "", None), virtual=True).plan()
    return plan.peak.device_bytes


def test_one_difference_is_one_sentence(make_job: JobMaker) -> None:
    on, off = make_job("with"), make_job("without", train={"gradient_checkpointing": False})
    out = diff(on, off)
    assert out.startswith("Only train.gradient_checkpointing: true → false changed: train at 64x64 +")
    (change,) = found(on, off)["differences"]
    assert change["change"] == {"train.gradient_checkpointing": [True, False]}
    assert change["effect"]["peak_bytes"] == [peak_of(on), peak_of(off)]
    assert change["effect"]["time_ratio"] < 0.9
    assert diff(on, on) == "The jobs ask for the same, whatever their files look like.\n"


def test_the_peak_moves(make_job: JobMaker) -> None:
    preview = {"disable_sampling": False, "batch_size": 1}
    sample = {"width": 96, "height": 96}
    on = make_job("with", train=preview, sample=sample)
    off = make_job(
        "without", train={**preview, "batch_size": 4, "gradient_checkpointing": False}, sample=sample
    )
    out = diff(on, off, "--vram", "2MB")
    assert "2 settings differ. What each does alone:" in out
    assert "the peak moves from preview to train" in " ".join(out.split())
    assert "with.yaml: " in out and "without.yaml: Does not fit: " in out
    assert max(map(len, out.splitlines())) <= 100


def test_each_difference_alone(make_job: JobMaker) -> None:
    a = make_job("a", train={"cache_text_embeddings": False}, sample={"width": 128})
    b = make_job(
        "b",
        train={"cache_text_embeddings": True, "lr": 1e-4},
        network={"linear": 16},
        datasets={"resolution": [32]},
        sample={"width": 96},
    )
    result = found(a, b)
    changes = [entry["change"] for entry in result["differences"]]
    assert changes == [
        {"train.lr": [1e-3, 1e-4]},
        {"train.cache_text_embeddings": [False, True]},
        {"network.linear": [4, 16]},
        {"sample.width": [128, 96]},
        {"datasets.0.resolution": [[64], [32]]},
    ]
    effects = [entry["effect"] for entry in result["differences"]]
    before = peak_of(a)
    peaks = [effect["peak_bytes"][1] - before for effect in effects]
    assert peaks[0] == 0 and peaks[1] < 0 < peaks[2] and peaks[4] < 0
    for entry, effect in zip(changes, effects, strict=True):
        settings = [f"{key}={json.dumps(new)}" for key, (_, new) in entry.items()]
        (process,) = plafond.load_job(a, overrides=settings).processes
        plan = Forecaster(process, Ceiling(NO_LIMIT, 0, "", None), virtual=True).plan()
        assert plan.peak.device_bytes == effect["peak_bytes"][1], entry
    assert result["together"]["peak_bytes"] == [before, peak_of(b)]


def test_settings_that_belong_together_are_one_difference(make_job: JobMaker) -> None:
    (a,) = plafond.load_job(make_job("a")).processes
    (b,) = plafond.load_job(make_job("b", model={"quantize": True, "qtype": "uint4"})).processes
    assert list(differences(a, b)) == [
        {"model.quantize": (False, True), "model.qtype": ("qfloat8", "uint4")},
        {"model.quantize_te": (False, True)},
    ]
    (plain,) = plafond.load_job(make_job("c", network=None)).processes
    ((change,),) = [list(differences(a, plain))]
    assert change == {"network": (a.network, None)}


def test_jobs_of_different_length_are_refused(make_job: JobMaker, tmp_path: Path) -> None:
    one = make_job("one")
    document = YAML(typ="safe").load(one)
    document["config"]["process"] *= 2
    two = tmp_path / "two.yaml"
    with two.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(document, file)
    with pytest.raises(UsageError, match="expected two jobs with as many"):
        diff(one, two)

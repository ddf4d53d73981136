"""What AI Toolkit's own run would take, beside plafond's: its way of training, and who lies on the device."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import plafond
from conftest import JobMaker
from plafond.cli import app
from plafond.families import families
from plafond.families._ai_toolkit import DENSE_TEXT, DENSE_TRANSFORMER, TEXT, TRANSFORMER, VAE
from plafond.job.schema import ProcessConfig
from plafond.memory.gpus import Ceiling
from plafond.plan.ai_toolkit import AiToolkit
from plafond.plan.forecast import Forecaster, Phase, Plan
from truth_cpu import Case, compare

ANY = Ceiling(2**40, 0, "test", None)


def process_of(job: Path, *overrides: str) -> ProcessConfig:
    (process,) = plafond.load_job(job, overrides=overrides).processes
    return process


def phase(plan: Plan, name: str) -> Phase:
    return next(one for one in plan.phases if one.phase == name)


def test_its_blocks_and_adapters_are_predicted_exactly() -> None:
    row = compare(Case(checkpointing=False, dtype="bfloat16", batch=2, plain=True))
    assert abs(row.error) <= 0.002 and abs(row.activations_error) <= 0.004


@pytest.mark.parametrize("checkpointing", ["true", "false"])
def test_it_keeps_copies_that_plafond_does_not(make_job: JobMaker, checkpointing: str) -> None:
    override = f"train.gradient_checkpointing={checkpointing}"
    process = process_of(make_job(), override, "train.dtype=bf16", "datasets.0.cache_latents=true")
    ours = phase(Forecaster(process, ANY, virtual=True).plan(), "train")
    theirs = phase(AiToolkit(process, ANY, virtual=True).plan(), "train")
    assert theirs.activation_bytes > ours.activation_bytes
    assert theirs.summary.kinds["weights"] == ours.summary.kinds["weights"]


def test_parts_that_training_does_not_use_stay(make_job: JobMaker) -> None:
    job = make_job()
    cached = AiToolkit(process_of(job, "datasets.0.cache_latents=true"), ANY, virtual=True)
    live = AiToolkit(process_of(job), ANY, virtual=True)
    vae = cached._bytes[VAE]
    assert phase(live.plan(), "train").device_bytes - phase(cached.plan(), "train").device_bytes == vae > 0
    aside = ("train.cache_text_embeddings=false", "train.unload_text_encoder=true")
    preview = AiToolkit(process_of(job, *aside, "train.disable_sampling=false"), ANY, virtual=True)
    without = AiToolkit(process_of(job, "train.disable_sampling=false"), ANY, virtual=True)
    more = phase(preview.plan(), "preview").device_bytes - phase(without.plan(), "preview").device_bytes
    assert more == preview._bytes[TEXT] > 0
    assert "encode_text" not in {one.phase for one in preview.plan().phases}


def test_loading_passes_through_the_dense_model_unless_it_is_told_not_to(make_job: JobMaker) -> None:
    job = make_job()
    packed = ("model.quantize=true", "model.quantize_te=true", "model.qtype=uint4", "model.qtype_te=uint4")
    whole = AiToolkit(process_of(job, *packed), ANY, virtual=True)
    part = whole._bytes
    assert part[DENSE_TRANSFORMER] > part[TRANSFORMER] and part[DENSE_TEXT] > part[TEXT]
    most = max(part[DENSE_TRANSFORMER], part[TRANSFORMER] + part[DENSE_TEXT])
    assert phase(whole.plan(), "load").device_bytes == most
    low = AiToolkit(process_of(job, *packed, "model.low_vram=true"), ANY, virtual=True)
    assert phase(low.plan(), "load").device_bytes == part[TRANSFORMER] + part[DENSE_TEXT]


def test_what_it_does_not_know_is_left_out(make_job: JobMaker) -> None:
    overrides = ("plafond.activation_plan=offload", "model.layer_offloading=true")
    found = AiToolkit(process_of(make_job(), *overrides), ANY, virtual=True)
    assert found.process.plafond.activation_plan is None
    assert not found.process.model.layer_offloading, "its FLUX loader has no such thing"
    auto = AiToolkit(process_of(make_job(), "train.gradient_checkpointing=auto"), ANY, virtual=True)
    assert auto.process.train.gradient_checkpointing is True


def test_every_family_says_who_is_where() -> None:
    for family in families():
        assert family.residency.load and family.residency.load_low_vram, family.name


def test_the_command_shows_both(make_job: JobMaker) -> None:
    job = make_job()
    arguments = ["plan", str(job), "--vram", "1GB", "--device", "cpu", "--as", "ai-toolkit"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    theirs = answer["ai_toolkit"]
    assert theirs["verdict"] == "fits" and theirs["peak_bytes"] != answer["peak_bytes"]
    assert {one["phase"] for one in theirs["phases"]} >= {"load", "train", "save"}
    text = CliRunner().invoke(app, arguments).stdout
    assert "The same job run by AI Toolkit:" in text and text.count("Fits: the peak is") == 2
    wrong = CliRunner().invoke(app, [*arguments[:-1], "kohya"])
    assert wrong.exit_code and "--as kohya: expected ai-toolkit" in str(wrong.exception)

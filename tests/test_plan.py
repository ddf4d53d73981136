"""The plan: its contract, its verdicts, its remedies, and that more never takes less."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import plafond
from conftest import JobMaker
from plafond.cli import app
from plafond.memory.gpus import Ceiling
from plafond.memory.trace import Event, Trace
from plafond.plan.forecast import Forecaster, Plan
from plafond.plan.remedies import remedies
from plafond.plan.shapes import shapes_of

GIB = 2**30
PHASE_KEYS = {
    *(
        "phase",
        "bucket",
        "frames",
        "batch",
        "weights_bytes",
        "lora_bytes",
        "gradient_bytes",
        "optimizer_bytes",
    ),
    *("activation_bytes", "allocated_bytes", "reserved_bytes", "device_bytes", "flops", "fits"),
}
REMEDY_KEYS = {"id", "change", "saves_bytes", "peak_bytes", "fits", "time_ratio", "quality", "why"}


def forecast(job: Path, *overrides: str, ceiling: int = 24 * GIB, virtual: bool = False) -> Plan:
    (process,) = plafond.load_job(job, overrides=overrides).processes
    return Forecaster(process, Ceiling(ceiling, 600 * 2**20, "test", None), virtual=virtual).plan()


def test_the_json_is_the_contract(make_job: JobMaker) -> None:
    job = make_job(train={"disable_sampling": False})
    result = CliRunner().invoke(app, ["plan", str(job), "--vram", "24GB", "--json"])
    assert result.exit_code == 0
    plan = json.loads(result.stdout)
    assert plan["schema"] == 1 and plan["verdict"] == "fits" and plan["remedies"] == []
    assert plan["ceiling_bytes"] == 24 * GIB
    assert set(plan["peak"]) == {"phase", "bucket", "moment"}
    assert [phase["phase"] for phase in plan["phases"]] == [
        *("cache_latents", "encode_text", "load", "train", "preview", "save"),
    ]
    for phase in plan["phases"]:
        assert set(phase) == PHASE_KEYS
        assert phase["allocated_bytes"] <= phase["reserved_bytes"] <= phase["device_bytes"]
        assert phase["device_bytes"] == phase["reserved_bytes"] + plan["overhead_bytes"]
        parts = ("weights", "lora", "gradient", "optimizer", "activation")
        assert sum(phase[f"{part}_bytes"] for part in parts) == phase["allocated_bytes"]
    assert plan["peak_bytes"] == max(phase["device_bytes"] for phase in plan["phases"])


def test_what_does_not_fit_exits_with_3_and_says_what_to_change(make_job: JobMaker) -> None:
    job = make_job(train={"gradient_checkpointing": False, "batch_size": 4, "cache_text_embeddings": False})
    result = CliRunner().invoke(app, ["plan", str(job), "--device", "cpu", "--vram", "1MB"])
    assert result.exit_code == 3
    assert "Does not fit: train at 64x64 needs " in result.stdout
    assert "checkpointing_on     train.gradient_checkpointing: false → true" in result.stdout
    assert "smaller_batch        train.batch_size: 4 → 1, train.gradient_accumulation: 1 → 4" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100


def test_remedies_keep_their_promise(make_job: JobMaker) -> None:
    job = make_job(
        train={"gradient_checkpointing": False, "batch_size": 4, "cache_text_embeddings": False},
        datasets={"resolution": [32, 64]},
    )
    plan = forecast(job, ceiling=2**20, virtual=True)
    found = remedies(plan)
    assert {"checkpointing_on", "smaller_batch", "cache_text_unload_te", "drop_top_bucket"} <= {
        remedy.id for remedy in found
    }
    for remedy in found:
        changes = [f"{key}={json.dumps(new)}" for key, (_, new) in remedy.change.items()]
        again = forecast(job, *changes, ceiling=2**20, virtual=True)
        assert again.peak.device_bytes == remedy.peak_bytes, remedy.id
        assert remedy.saves_bytes == plan.peak.device_bytes - remedy.peak_bytes > 0
    times = {remedy.id: remedy.time_ratio for remedy in found}
    assert times["checkpointing_on"] > 1.2


def test_shapes_come_from_the_data_or_are_assumed(make_job: JobMaker, tmp_path: Path) -> None:
    (process,) = plafond.load_job(make_job()).processes
    family = Forecaster(process, Ceiling(GIB, 0, "", None)).family
    known = shapes_of(process, family)
    assert {str(bucket): size for bucket, size in known.batches.items()} == {"64x64": 2}
    missing = make_job("missing", datasets={"folder_path": str(tmp_path / "gone"), "resolution": [64, 128]})
    (process,) = plafond.load_job(missing).processes
    assumed = shapes_of(process, family)
    assert "gone: not here; planned for square and 2:1 pictures of every resolution" in str(assumed.assumed)
    assert {"128x128", "64x64"} <= {str(bucket) for bucket in assumed.batches}


MORE = [
    (("train.batch_size=1",), ("train.batch_size=2",)),
    (("train.batch_size=2",), ("train.batch_size=4",)),
    (("datasets.0.resolution=[64]",), ("datasets.0.resolution=[96]",)),
    (("network.linear=4",), ("network.linear=8",)),
    (("train.optimizer=adamw8bit", "network.linear=128"), ("train.optimizer=adamw", "network.linear=128")),
    ((), ("train.ema_config={use_ema: true}",)),
    (("train.gradient_checkpointing=true",), ("train.gradient_checkpointing=false",)),
]


@pytest.mark.parametrize("checkpointing", ["true", "false"])
@pytest.mark.parametrize(("less", "more"), MORE)
def test_more_never_takes_less(
    make_job: JobMaker, less: tuple[str, ...], more: tuple[str, ...], checkpointing: str
) -> None:
    job = make_job()
    common = (f"train.gradient_checkpointing={checkpointing}",)
    small, large = forecast(job, *common, *less), forecast(job, *common, *more)

    def train(plan: Plan) -> int:
        return max(phase.summary.allocated_bytes for phase in plan.phases if phase.phase == "train")

    assert train(small) <= train(large)
    assert small.peak.device_bytes <= large.peak.device_bytes


def test_a_known_plan_needs_no_torch(make_job: JobMaker, tmp_path: Path) -> None:
    job = make_job()
    code = (
        "import sys; from plafond.cli import main\n"
        f"sys.argv = ['plafond', 'plan', {str(job)!r}, '--vram', '24GB']\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code, done.code\n"
        "print('torch' in sys.modules)"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
        )
        for _ in range(2)
    ]
    assert [run.stdout.splitlines()[-1] for run in runs] == ["True", "False"]
    assert runs[0].stdout.splitlines()[:-1] == runs[1].stdout.splitlines()[:-1]
    assert runs[0].stderr == "", "libraries stay silent"


def test_the_allocators_mode_is_part_of_the_question(
    make_job: JobMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("plafond.plan.summaries.folder", lambda: tmp_path / "plans")
    sizes = [12 * 2**20, 14 * 2**20]  # one after the other: two segments, or one range that grows
    events = [Event(0, True, "", None), Event(0, False, "", None), Event(1, True, "", None)]
    trace = Trace(sizes=sizes, kinds=["activations"] * 2, owners=[None] * 2, events=events)
    monkeypatch.setattr("plafond.memory.dryrun.Rehearsal.phase", lambda *_: trace)
    reserved = []
    for setting in ("True", "False", "True", "False"):  # the second pair is remembered
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", f"expandable_segments:{setting}")
        (largest,) = {phase.summary.reserved_bytes for phase in forecast(make_job()).phases}
        reserved.append(largest)
    assert reserved == [20 * 2**20, 26 * 2**20] * 2


def test_the_plot_is_a_picture(make_job: JobMaker, tmp_path: Path) -> None:
    target = tmp_path / "plan.png"
    result = CliRunner().invoke(app, ["plan", str(make_job()), "--gpu", "RTX 4090", "--plot", str(target)])
    assert result.exit_code == 0
    assert Image.open(target).width > 1000


def test_a_ceiling_has_to_be_named(make_job: JobMaker) -> None:
    result = CliRunner().invoke(app, ["plan", str(make_job())])
    assert str(result.exception) == 'say which ceiling is meant: --vram 24GB or --gpu "RTX 4090"'

"""What only a CUDA device can show; skipped without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import plafond
from conftest import JobMaker
from plafond.memory.gpus import MIB
from plafond.memory.meter import Meter
from plafond.model.packing import FORMATS, dense, pack
from plafond.training.budget import Budget, spending
from plafond.training.feed import Feed
from plafond.training.run_folder import RunFolder
from runs import assert_same_weights, folder_of, losses

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = torch.device("cuda", 0)


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plafond", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)


def test_the_budget_is_on_reserved_bytes_and_ends_with_the_run() -> None:
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved(DEVICE)
    before = torch.cuda.get_per_process_memory_fraction(DEVICE)
    with spending(Budget(ceiling=reserved + 256 * MIB), DEVICE) as gauge:
        kept = torch.empty(200 * MIB, dtype=torch.uint8, device=DEVICE)
        peak = gauge.read()
        assert peak is not None and peak >= 200 * MIB
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(200 * MIB, dtype=torch.uint8, device=DEVICE)
        # what is cached, but not in use, does not stand in the way
        del kept
        torch.empty(200 * MIB, dtype=torch.uint8, device=DEVICE)
    assert torch.cuda.get_per_process_memory_fraction(DEVICE) == pytest.approx(before)
    torch.empty(512 * MIB, dtype=torch.uint8, device=DEVICE)


@pytest.mark.parametrize("name", list(FORMATS))
def test_weights_are_packed_as_on_the_cpu(name: str) -> None:
    """The same bytes, and in bfloat16 the same numbers."""
    weight = torch.randn(300, 200, generator=torch.Generator().manual_seed(0)).bfloat16()
    here, layout = pack(weight, name)
    there, same = pack(weight.to(DEVICE), name)
    assert same == layout
    for one, two in zip(here, there, strict=True):
        assert torch.equal(one.view(torch.uint8), two.cpu().view(torch.uint8))
    assert torch.equal(dense(there, layout, torch.bfloat16).cpu(), dense(here, layout, torch.bfloat16))


def test_the_driver_tells_what_the_context_takes() -> None:
    meter = Meter(DEVICE)
    taken = meter.measure(lambda: torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE))
    assert taken.allocated == 64 * MIB <= taken.reserved
    assert taken.device is not None and 50 * MIB < taken.device - taken.reserved < 2048 * MIB


def test_torch_was_told_of_expandable_segments() -> None:
    code = (
        "from plafond.memory.expandable import set_up, run_mode; set_up()\n"
        "import torch; kept = torch.empty(2**25, device='cuda')\n"
        "found = {segment['is_expandable'] for segment in torch.cuda.memory_snapshot()}\n"
        "print(run_mode(), found)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("expandable {True}", "default {False}")


def test_a_warm_up_changes_nothing(make_job: JobMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    sections = {
        "network": {"dropout": 0.3},
        "datasets": {"resolution": [64, 96], "caption_dropout_rate": 0.3},
        "train": {"steps": 4, "dtype": "fp32"},
    }

    def run(name: str) -> RunFolder:
        job = make_job(name, **sections)
        plafond.train(plafond.load_job(job), device="cuda", fresh=True)
        return folder_of(job)

    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        warmed = run("warmed")
        monkeypatch.setattr(Feed, "fullest", lambda self: None)
        plain = run("plain")
    finally:
        torch.use_deterministic_algorithms(False)
    assert losses(plain) == losses(warmed)
    assert_same_weights(plain.final, warmed.final)


def test_every_step_stays_within_its_prediction(make_job: JobMaker) -> None:
    job = make_job(
        datasets={"resolution": [64, 96, 128]}, train={"steps": 12, "gradient_checkpointing": False}
    )
    done = cli("train", str(job), "--device", "cuda")
    assert done.returncode == 0, done.stderr
    rows = folder_of(job).read_metrics()
    assert all(row["allocated_peak"] <= 1.02 * row["predicted_peak"] for row in rows)


def test_predictions_hold_at_full_size(tmp_path: Path) -> None:
    """Minutes: the published model with random weights, or as much of it as the card holds."""
    done = cli("calibrate", "--device", "cuda", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (tmp_path / "calibration.json").write_text(done.stdout)
    assert found["overhead_bytes"] is not None and found["overhead_bytes"] > 50 * MIB
    assert found["rates"]["matmul_flops"] > 1e12
    assert found["rates"]["memory_bandwidth"] > found["rates"]["link_bandwidth"] > 1e9
    trained = [row for row in found["phases"] if row["phase"] == "train"]
    assert trained
    for row in trained:
        assert abs(row["errors"]["allocated"]) < 0.02, row
        assert abs(row["errors"]["reserved"]) < 0.05, row

"""``plafond calibrate``: on the CPU for real; its GPU side with a card that is only described."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from plafond.cli import app
from plafond.data.buckets import Bucket
from plafond.memory import calibration, meter, speed
from plafond.memory.gpus import CONTEXT_BYTES, GIB, MIB
from plafond.memory.meter import Meter, Taken
from plafond.plan import trial
from plafond.plan.trial import Case, Row, Trial

FEW = (
    Case(phase="train", bucket=Bucket(64, 96), batch=2, checkpointing=False),
    Case(phase="train", bucket=Bucket(64, 64)),
    Case(phase="encode_text"),
)


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "file", lambda: tmp_path / "calibration.json")
    monkeypatch.setattr(trial, "ON_CPU", FEW)
    monkeypatch.setattr(speed, "SECONDS", 0.05)
    monkeypatch.setattr(speed, "COPIED", 2**22)


def test_three_counts_of_the_same_phase_agree() -> None:
    """Predicted on tensors without data, counted by a virtual GPU, and profiled in the CPU's allocator."""
    done = CliRunner().invoke(app, ["calibrate", "--device", "cpu", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["schema"] == 1 and found["overhead_bytes"] is None and found["driver"] == ""
    assert [row["phase"] for row in found["phases"]] == ["train", "train", "encode_text"]
    assert found["phases"][0]["bucket"] == "64x96" and found["phases"][0]["batch"] == 2
    for row in found["phases"]:
        assert set(row["predicted_bytes"]) == set(row["measured_bytes"]) == {"allocated", "counted"}
        assert all(size > 10 * MIB for size in row["measured_bytes"].values())
        assert abs(row["errors"]["allocated"]) < 0.002
        assert abs(row["errors"]["counted"]) < 0.002
    assert calibration.known(found["device"]) is not None
    assert calibration.rates_for(found["device"]).matmul_flops == found["rates"]["matmul_flops"] > 0


def test_the_report_fits_100_columns_and_names_the_file() -> None:
    done = CliRunner().invoke(app, ["calibrate", "--device", "cpu"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100 or max(lines, key=len).startswith("Kept in ")
    assert lines[1].startswith("a miniature of ")
    assert any(line.startswith("train         64x96          2  off            allocated ") for line in lines)
    assert any(line.startswith("Largest error of allocated bytes: ") for line in lines)
    assert lines[-1] == f"Kept in {calibration.file()}; later plans for this device use it."


def test_a_device_that_is_not_there_is_a_usage_error() -> None:
    done = CliRunner().invoke(app, ["calibrate", "--device", "cuda:7"])
    assert "this machine has" in str(done.exception)


# ---------------------------------------------------------------------------------------------------- a GPU


class Card:
    """Answers what torch and the driver are asked about a card that is not there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int):
        self.allocated = self.reserved = 0
        self.used = 700 * MIB  # a desktop
        self.processes: list[SimpleNamespace] = []
        self.broken = False
        answers: dict[str, Callable[..., object]] = {
            "get_device_name": lambda device: "NVIDIA GeForce RTX 4090",
            "get_device_capability": lambda device: (8, 9),
            "mem_get_info": lambda device: (free, 24 * GIB),
            "memory_reserved": lambda device: self.reserved,
            "max_memory_reserved": lambda device: self.reserved,
            "max_memory_allocated": lambda device: self.allocated,
            "reset_peak_memory_stats": lambda device: None,
            "empty_cache": lambda: None,
            "synchronize": lambda device: None,
            "_get_nvml_device_index": lambda device: device.index,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
        monkeypatch.setattr(meter.pynvml, "nvmlInit", self._init)
        monkeypatch.setattr(meter.pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
        monkeypatch.setattr(
            meter.pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: SimpleNamespace(used=self.used)
        )
        monkeypatch.setattr(
            meter.pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: self.processes
        )
        monkeypatch.setattr(calibration, "driver_version", lambda: "570.86")
        monkeypatch.setattr(trial, "driver_version", lambda: "570.86")

    def _init(self) -> None:
        if self.broken:
            raise meter.pynvml.NVMLError(meter.pynvml.NVML_ERROR_UNKNOWN)

    def take(self, allocated: int, reserved: int, context: int, *, listed: bool) -> None:
        """What a process of ours does."""
        self.allocated, self.reserved = allocated, reserved
        self.used += reserved + context
        if listed:
            own = SimpleNamespace(pid=os.getpid(), usedGpuMemory=reserved + context)
            self.processes = [SimpleNamespace(pid=1, usedGpuMemory=700 * MIB), own]


@pytest.mark.parametrize("listed", [True, False], ids=["by process", "by difference"])
def test_the_meter_reads_what_is_beside_the_allocator(monkeypatch: pytest.MonkeyPatch, listed: bool) -> None:
    card = Card(monkeypatch, 22 * GIB)
    taken = Meter(torch.device("cuda", 0)).measure(
        lambda: card.take(5 * GIB, 6 * GIB, 450 * MIB, listed=listed)
    )
    assert taken == Taken(allocated=5 * GIB, reserved=6 * GIB, device=6 * GIB + 450 * MIB)


def test_another_process_of_the_same_number_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch, 22 * GIB)
    card.processes = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=100 * MIB)]
    taken = Meter(torch.device("cuda", 0)).measure(lambda: card.take(GIB, GIB, 450 * MIB, listed=False))
    assert taken.device == GIB + 450 * MIB


def test_a_silent_driver_leaves_the_device_bytes_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch, 22 * GIB)
    card.broken = True
    taken = Meter(torch.device("cuda", 0)).measure(lambda: card.take(GIB, GIB, 0, listed=True))
    assert taken == Taken(allocated=GIB, reserved=GIB, device=None)
    # on Windows the driver lists our process, but not what it has
    card = Card(monkeypatch, 22 * GIB)
    card.processes = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)]
    taken = Meter(torch.device("cuda", 0)).measure(lambda: card.take(GIB, GIB, 300 * MIB, listed=False))
    assert taken.device == GIB + 300 * MIB


def test_a_model_is_cut_to_the_card_and_what_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = (
        Case(phase="train", bucket=Bucket(512, 512)),
        Case(phase="train", bucket=Bucket(1024, 1024), checkpointing=False),
        Case(phase="train", bucket=Bucket(256, 256)),
    )
    monkeypatch.setattr(trial, "ON_GPU", cases)
    monkeypatch.setattr(trial, "rates_of", lambda device: calibration.UNKNOWN)
    card = Card(monkeypatch, 15 * GIB)
    context = [300 * MIB, 450 * MIB]

    def measure(self: Meter, run: Callable[[], object]) -> Taken:
        if not context:
            raise torch.OutOfMemoryError
        return Taken(allocated=10 * GIB, reserved=11 * GIB, device=11 * GIB + context.pop())

    monkeypatch.setattr(Meter, "measure", measure)
    found = Trial(torch.device("cuda", 0), lambda title: nullcontext()).run()
    model = str(found.model)
    assert model.startswith("FLUX.1-dev at full width, ") and " of 57 blocks, to fit" in model
    assert [row.case for row in found.rows] == [cases[0], cases[2]]
    (note,) = found.notes
    assert str(note) == "train at 1024x1024, batch 1, no checkpointing: does not fit and was left out"
    predicted = found.rows[0].predicted
    assert predicted["allocated"] <= predicted["reserved"] == predicted["device"] - CONTEXT_BYTES
    assert 9 * GIB < predicted["device"] < 0.95 * 15 * GIB, "as deep as fits"
    assert found.record.overhead_bytes == 450 * MIB, "the largest"
    assert found.record.key == ("NVIDIA GeForce RTX 4090", "570.86", found.record.torch)
    # the next trial predicts with what was measured, and an out-of-memory is a finding
    calibration.save(found.record)
    monkeypatch.setattr(trial, "ON_GPU", cases[:1])
    again = Trial(torch.device("cuda", 0), lambda title: nullcontext()).run()
    assert again.assumed_overhead == 450 * MIB
    assert again.rows[0].measured == {} and again.rows[0].error("allocated") is None
    (note,) = again.notes
    assert str(note) == "train at 512x512, batch 1, checkpointing: memory ran out"
    assert again.record.overhead_bytes is None
    assert card.allocated == 0


def test_an_error_is_positive_when_the_prediction_says_too_much() -> None:
    row = Row(case=FEW[0], predicted={"a": 110, "b": 99, "c": 1}, measured={"a": 100, "b": 100})
    assert row.error("a") == pytest.approx(0.1)
    assert row.error("b") == pytest.approx(-0.01)
    assert row.error("c") is None

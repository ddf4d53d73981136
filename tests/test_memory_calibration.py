"""Records of this machine: kept, found again, void after an update, and used by plans."""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from conftest import JobMaker
from plafond.cli import app
from plafond.memory import calibration, speed
from plafond.memory.calibration import Calibration, Rates, estimated, known, load, rates_for, save
from plafond.memory.gpus import CONTEXT_BYTES, GIB, MIB, catalogued, find_gpu
from plafond.memory.speed import rates_of

RECORD = Calibration(
    device="NVIDIA GeForce RTX 4090",
    driver="570.86",
    torch=version("torch"),
    measured_at="2026-12-02",
    overhead_bytes=480 * MIB,
    rates=Rates(1.5e14, 9e11, 2.4e10),
)


@pytest.fixture(autouse=True)
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(calibration, "file", lambda: tmp_path / "deep" / "calibration.json")
    monkeypatch.setattr(calibration, "driver_version", lambda: RECORD.driver)
    return tmp_path / "deep" / "calibration.json"


def test_a_record_is_found_by_name_and_by_card() -> None:
    assert known(RECORD.device) is None
    save(RECORD)
    save(dataclasses.replace(RECORD, device="NVIDIA L4", overhead_bytes=1))
    assert known(RECORD.device) == known(find_gpu("RTX 4090")) == RECORD
    assert known("NVIDIA GeForce RTX 4090 D") is None
    assert known(find_gpu("RTX 4090 D")) is None


def test_a_record_is_replaced_by_a_newer_one_of_the_same_key(own_file: Path) -> None:
    save(RECORD)
    save(dataclasses.replace(RECORD, device="other"))
    newer = dataclasses.replace(RECORD, overhead_bytes=1)
    save(newer)
    assert known(RECORD.device) == newer
    assert len(load()) == 2
    assert list(own_file.parent.iterdir()) == [own_file], "no temporary file is left"


@pytest.mark.parametrize("change", [{"driver": "571.00"}, {"torch": "2.12.0"}])
def test_an_update_makes_a_record_void(change: dict[str, str]) -> None:
    save(dataclasses.replace(RECORD, **change))
    assert known(RECORD.device) is None
    save(RECORD)
    assert known(RECORD.device) == RECORD


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"device": "x"}]', '["x"]', '[{"rates": {"a": 1}}]'])
def test_a_damaged_or_foreign_file_is_no_record(own_file: Path, text: str) -> None:
    own_file.parent.mkdir()
    own_file.write_text(text)
    assert load() == []
    save(RECORD)
    assert load() == [RECORD]


def test_rates_are_measured_or_estimated() -> None:
    card = find_gpu("RTX 4090")
    guess = rates_for(card)
    assert guess == estimated("NVIDIA GeForce RTX 4090")
    assert 0.4 * card.flops < guess.matmul_flops < 0.8 * card.flops
    assert guess.memory_bandwidth < card.bandwidth and guess.link_bandwidth == card.link
    save(RECORD)
    assert rates_for(card) == rates_for(RECORD.device) == RECORD.rates
    assert rates_for("some processor") == calibration.UNKNOWN
    assert catalogued("some processor") is None


def test_the_processor_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SECONDS", 0.05)
    monkeypatch.setattr(speed, "COPIED", 2**22)
    rates = rates_of(torch.device("cpu"))
    assert rates.matmul_flops > 1e8
    assert rates.memory_bandwidth == rates.link_bandwidth > 1e7


def test_plans_use_the_measured_overhead(make_job: JobMaker) -> None:
    job = str(make_job())

    def plan(*options: str) -> dict[str, object]:
        return json.loads(CliRunner().invoke(app, ["plan", job, *options, "--json"]).stdout)

    command = ["plan", job, "--gpu", "RTX 4090"]
    before = plan("--gpu", "RTX 4090")
    assert before["overhead_bytes"] == CONTEXT_BYTES
    assert "measured" not in CliRunner().invoke(app, command).stdout
    save(RECORD)
    after = plan("--gpu", "RTX 4090")
    assert after["overhead_bytes"] == 480 * MIB
    assert after["ceiling_bytes"] == before["ceiling_bytes"]
    assert before["peak_bytes"] - after["peak_bytes"] == CONTEXT_BYTES - 480 * MIB
    shown = CliRunner().invoke(app, command).stdout
    assert "overhead measured on this machine on 2026-12-02" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 100
    # another card, a size without a card, a virtual GPU: nothing was measured for those
    assert plan("--gpu", "RTX 3090")["overhead_bytes"] == CONTEXT_BYTES
    assert plan("--vram", "24GB")["overhead_bytes"] == CONTEXT_BYTES
    assert plan("--vram", "24GB", "--device", "cpu")["overhead_bytes"] == 0
    assert plan("--vram", "16GB", "--gpu", "RTX 4090")["overhead_bytes"] == 480 * MIB


class _Card:
    """A CUDA device that answers what the plan asks of one."""

    free = 20 * GIB

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (self.free, 24 * GIB))


def test_a_real_gpu_is_planned_for_by_its_own_record(monkeypatch: pytest.MonkeyPatch) -> None:
    from plafond.plan.before import _on_gpu

    device = torch.device("cuda")
    card = _Card(monkeypatch, RECORD.device)
    free = _on_gpu(device, None, None)
    assert (free.bytes, free.overhead_bytes) == (card.free + CONTEXT_BYTES, CONTEXT_BYTES)
    assert str(free.description) == "20.00 GiB free on NVIDIA GeForce RTX 4090"
    assert free.gpu is find_gpu("RTX 4090")
    save(RECORD)
    free = _on_gpu(device, None, None)
    assert free.reserved_bytes == card.free, "what is free is what the allocator may have"
    assert free.overhead_bytes == 480 * MIB
    asked = _on_gpu(device, "16GB", None)
    assert (asked.bytes, asked.overhead_bytes, asked.gpu) == (16 * GIB, 480 * MIB, find_gpu("RTX 4090"))
    other = _on_gpu(device, None, "RTX 3060")
    assert other.overhead_bytes == CONTEXT_BYTES and other.gpu is find_gpu("RTX 3060 12GB")
    _Card(monkeypatch, "Quantum Thing 9000")
    assert _on_gpu(device, "16GB", None).gpu is None

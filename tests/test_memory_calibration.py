"""Records of this machine: measured, kept, found again, and void after an update."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from plafond.memory import calibration
from plafond.memory.calibration import Calibration, find, load_all, measure, save

RECORD = Calibration(
    device="NVIDIA GeForce RTX 4090",
    driver="570.86",
    torch="2.13.0",
    overhead_bytes=480 * 2**20,
    matmul_flops=1.5e14,
    link_bytes_per_second=2.4e10,
    measured_at="2026-12-02",
)


def test_a_record_is_found_by_device_driver_and_torch(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "calibration.json"
    save(RECORD, file)
    save(dataclasses.replace(RECORD, device="other"), file)
    assert find(RECORD.device, RECORD.driver, RECORD.torch, file) == RECORD
    assert find(RECORD.device, "571.00", RECORD.torch, file) is None
    newer = dataclasses.replace(RECORD, overhead_bytes=1)
    save(newer, file)
    assert find(RECORD.device, RECORD.driver, RECORD.torch, file) == newer
    assert len(load_all(file)) == 2


def test_a_damaged_or_foreign_file_is_no_record(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    assert load_all(file) == []
    for text in ("", "{", '[{"device": "x"}]', '["x"]'):
        file.write_text(text)
        assert load_all(file) == []


def test_the_cpu_has_a_matmul_rate_and_no_link(monkeypatch) -> None:
    monkeypatch.setattr(calibration, "MEASURE_SECONDS", 0.05)
    monkeypatch.setattr(calibration, "MATRIX", 512)
    record = measure(torch.device("cpu"))
    assert record.matmul_flops > 1e8
    assert record.link_bytes_per_second is None and record.overhead_bytes is None
    assert record.torch == torch.__version__

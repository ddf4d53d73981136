"""What was measured on this machine, so that later plans need not assume it.

A record belongs to one device with one driver and one torch: an update makes it void. Records stand in one JSON file in
the user's configuration folder.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    import torch

MATRIX = 4096
"""Side of the matrices whose product is timed: large enough to be bound by arithmetic on every card."""
COPY_BYTES = 256 * 2**20
MEASURE_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """One device as it was measured.

    Args:
        device: its name, as the driver gives it.
        driver: version of the driver; empty for a CPU.
        torch: version of torch.
        overhead_bytes: what the process takes beside torch's allocator (context, kernels); None on a CPU.
        matmul_flops: floating-point operations per second of a large product in bfloat16.
        link_bytes_per_second: from pinned main memory to the device; None on a CPU.
        measured_at: day of the measurement, ``YYYY-MM-DD``.
    """

    device: str
    driver: str
    torch: str
    overhead_bytes: int | None
    matmul_flops: float
    link_bytes_per_second: float | None
    measured_at: str

    @property
    def key(self) -> str:
        """What a later run must share with this record."""
        return f"{self.device} | {self.driver} | torch {self.torch}"


def default_file() -> Path:
    """Where records are kept."""
    return platformdirs.user_config_path("plafond") / "calibration.json"


def save(record: Calibration, file: Path | None = None) -> Path:
    """Add a record, in place of an older one of the same device, driver and torch."""
    from plafond.training.run_folder import write_atomically

    target = file or default_file()
    records = {old.key: old for old in load_all(target)}
    records[record.key] = record

    def write(path: Path) -> None:
        path.write_text(json.dumps([asdict(one) for one in records.values()], indent=1), encoding="utf-8")

    write_atomically(target, write)
    return target


def load_all(file: Path | None = None) -> list[Calibration]:
    """All records; none when the file is missing or was written by another version."""
    try:
        rows = json.loads((file or default_file()).read_text(encoding="utf-8"))
        return [Calibration(**row) for row in rows]
    except (OSError, ValueError, TypeError):
        return []


def find(device: str, driver: str, torch_version: str, file: Path | None = None) -> Calibration | None:
    """The record of a device, if it was measured with this driver and torch."""
    for record in load_all(file):
        if (record.device, record.driver, record.torch) == (device, driver, torch_version):
            return record
    return None


def measure(device: torch.device) -> Calibration:
    """Measure the device in a few seconds."""
    import torch

    return Calibration(
        device=device_name(device),
        driver=driver_version() if device.type == "cuda" else "",
        torch=torch.__version__,
        matmul_flops=_matmul_flops(device),
        link_bytes_per_second=_link(device) if device.type == "cuda" else None,
        # last: the products above have loaded their kernels by now
        overhead_bytes=_overhead(device) if device.type == "cuda" else None,
        measured_at=time.strftime("%Y-%m-%d"),
    )


def device_name(device: torch.device) -> str:
    """The driver's name of a GPU, or the processor's."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def driver_version() -> str:
    """Version of NVIDIA's driver; empty when there is none to ask."""
    import pynvml

    try:
        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return ""
    return version if isinstance(version, str) else str(version, "ascii")


def _matmul_flops(device: torch.device) -> float:
    import torch

    side = MATRIX if device.type == "cuda" else MATRIX // 4
    a = torch.randn(side, side, device=device).bfloat16()
    out = torch.empty_like(a)

    def product() -> None:
        torch.mm(a, a, out=out)

    return 2 * side**3 / _seconds(product, device)


def _link(device: torch.device) -> float:
    import torch

    host = torch.empty(COPY_BYTES, dtype=torch.uint8).pin_memory()
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)

    def copy() -> None:
        target.copy_(host, non_blocking=True)

    return COPY_BYTES / _seconds(copy, device)


def _seconds(run: Callable[[], None], device: torch.device) -> float:
    """Seconds of one call, over as many as fit into `MEASURE_SECONDS`."""
    import torch

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    run()
    wait()
    calls, started = 0, time.perf_counter()
    while time.perf_counter() - started < MEASURE_SECONDS:
        for _ in range(5):
            run()
        wait()
        calls += 5
    return (time.perf_counter() - started) / calls


def _overhead(device: torch.device) -> int:
    """Device bytes of this process beside its allocator, by NVML where it tells processes apart."""
    import pynvml
    import torch

    torch.cuda.synchronize(device)
    reserved = torch.cuda.memory_reserved(device)
    free, total = torch.cuda.mem_get_info(device)
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        running = []
    own = [process.usedGpuMemory for process in running if process.pid == os.getpid()]
    if own and own[0]:
        return max(0, int(own[0]) - reserved)
    others = sum(process.usedGpuMemory or 0 for process in running)
    return max(0, total - free - reserved - others)

"""What was measured on this machine (``plafond calibrate``), so that later plans need not assume it.

A record belongs to one device with one driver and one torch: an update makes it void. The records stand in one JSON
file in the user's configuration folder. Reading them needs no torch.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

import platformdirs

from plafond.language.said import N_, Said, Value
from plafond.memory.gpus import Ceiling, Gpu, catalogued

MATMUL_SHARE = 0.6
"""Part of a data sheet's matrix rate that products of training reach. Published training runs in bfloat16 report 40 to
60 % of it for whole steps, whose other operations are counted apart here; large products alone reach 60 to 80 %."""

MEMORY_SHARE = 0.85
"""Part of a data sheet's memory bandwidth that a copy reaches, reads and writes together."""


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a device works; per second.

    Attributes:
        matmul_flops: floating-point operations of large products, 2 per multiply-add.
        memory_bandwidth: bytes read and written in the device's own memory.
        link_bandwidth: bytes from pinned main memory to the device.
    """

    matmul_flops: float
    memory_bandwidth: float
    link_bandwidth: float


UNKNOWN = Rates(matmul_flops=1e11, memory_bandwidth=2e10, link_bandwidth=2e10)
"""Of a device that nobody has measured and that no catalogue has: a few cores of a processor."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """One device as it was measured.

    Args:
        device: its name, as the driver gives it, or the processor's.
        driver: version of NVIDIA's driver; empty for a processor.
        torch: version of torch.
        measured_at: day of the measurement, ``YYYY-MM-DD``.
        overhead_bytes: what the process takes beside torch's allocator (context, kernels); None on a processor, and
            where nothing tells.
        rates: how fast it is.
    """

    device: str
    driver: str
    torch: str
    measured_at: str
    overhead_bytes: int | None
    rates: Rates

    @property
    def key(self) -> tuple[str, str, str]:
        """What a later run must share with this record."""
        return self.device, self.driver, self.torch


def with_overhead(ceiling: Ceiling, device: Gpu | str) -> Ceiling:
    """A ceiling on `device` with the overhead that was measured on this machine, and a word about it, if it was.

    The ceiling itself stays where it is.
    """
    record = known(device)
    if record is None or record.overhead_bytes is None:
        return ceiling
    values: dict[str, Value] = {"ceiling": ceiling.description, "day": record.measured_at}
    where = Said(N_("{ceiling}; overhead measured on this machine on {day}"), values)
    return replace(ceiling, overhead_bytes=record.overhead_bytes, description=where)


def file() -> Path:
    """Where the records are kept."""
    return platformdirs.user_config_path("plafond") / "calibration.json"


def save(record: Calibration) -> None:
    """Keep a record, in place of an older one of the same device, driver and torch.

    Raises:
        OutOfSpaceError: the disk is full; the earlier records are intact.
    """
    from plafond.training.run_folder import write_atomically

    records = {old.key: old for old in load() if old.key != record.key} | {record.key: record}
    text = json.dumps([asdict(one) for one in records.values()], indent=1)

    def write(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    write_atomically(file(), write)


def load() -> list[Calibration]:
    """All records, the newest last; none when there is no file, or another version wrote it."""
    try:
        rows = json.loads(file().read_text(encoding="utf-8"))
        return [Calibration(**{**row, "rates": Rates(**row["rates"])}) for row in rows]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def known(device: Gpu | str) -> Calibration | None:
    """The newest record of a card, or of a device by its name, if driver and torch are still the same."""
    found = [record for record in load() if _is(record, device) and record.torch == version("torch")]
    # only who has records is asked for the driver, which takes a moment
    return next((record for record in reversed(found) if record.driver in ("", driver_version())), None)


def rates_for(device: Gpu | str) -> Rates:
    """How fast a card, or a device by its name, is: as measured on this machine, or estimated from the catalogue."""
    record = known(device)
    return record.rates if record is not None else estimated(device)


def estimated(device: Gpu | str) -> Rates:
    """What the catalogue lets expect."""
    gpu = catalogued(device) if isinstance(device, str) else device
    if gpu is None:
        return UNKNOWN
    return Rates(gpu.flops * MATMUL_SHARE, gpu.bandwidth * MEMORY_SHARE, gpu.link)


@cache
def driver_version() -> str:
    """Version of NVIDIA's driver; empty when there is none to ask."""
    import pynvml

    try:
        pynvml.nvmlInit()
        found = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return ""
    return found if isinstance(found, str) else str(found, "ascii")


def processor() -> str:
    """The name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _is(record: Calibration, device: Gpu | str) -> bool:
    return record.device == device if isinstance(device, str) else catalogued(record.device) is device

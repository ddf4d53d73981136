"""What the machine is doing: devices with their memory, temperature and use, and main memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
from pydantic import BaseModel, Field


class DeviceState(BaseModel):
    """One device at this moment."""

    id: str = Field(description="cpu or cuda:N.")
    name: str
    memory_total: int = Field(description="Bytes; of the CPU, main memory.")
    memory_used: int = Field(description="Bytes that all processes take together.")
    temperature: int | None = Field(None, description="Degrees Celsius, where the driver tells.")
    use: int | None = Field(None, description="Percent of the last moments in which it worked.")
    watts: float | None = None


class Machine(BaseModel):
    """The machine at this moment."""

    devices: list[DeviceState]
    disk_total: int = Field(description="Bytes of the disk that runs are written to.")
    disk_free: int


def look(folder: Path) -> Machine:
    """Everything, as the driver and the system say it now.

    Args:
        folder: a folder on the disk that is meant.
    """
    disk = shutil.disk_usage(folder)
    return Machine(devices=[*_cards(), _cpu()], disk_total=disk.total, disk_free=disk.free)


def _cpu() -> DeviceState:
    memory = psutil.virtual_memory()
    return DeviceState(
        id="cpu",
        name="CPU",
        memory_total=memory.total,
        memory_used=memory.total - memory.available,
        # since the last look; the first one says 0
        use=round(psutil.cpu_percent()),
    )


def _cards() -> list[DeviceState]:
    import pynvml

    found: list[DeviceState] = []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return found
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            card = DeviceState(
                id=f"cuda:{index}",
                name=str(pynvml.nvmlDeviceGetName(handle)),
                memory_total=int(memory.total),
                memory_used=int(memory.used),
            )
            _add_health(card, handle)
            found.append(card)
    except pynvml.NVMLError:
        pass
    finally:
        pynvml.nvmlShutdown()
    return found


def _add_health(card: DeviceState, handle: object) -> None:
    """Add what not every driver tells."""
    import pynvml

    try:
        card.use = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        card.temperature = int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
        card.watts = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
    except pynvml.NVMLError:
        return

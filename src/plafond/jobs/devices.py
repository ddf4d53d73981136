"""Devices that jobs can be queued for, as NVIDIA's driver lists them; nothing here needs torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from plafond.errors import UsageError
from plafond.language.said import N_

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    Args:
        id: ``cpu`` or ``cuda:N``, counted in the order of the bus.
        name: as the driver gives it.
        memory: bytes of its memory; 0 for the CPU.
    """

    id: str
    name: str
    memory: int


def devices() -> tuple[Device, ...]:
    """The GPUs, then the CPU."""
    import pynvml

    found = []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (Device(CPU, "CPU", 0),)
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            found.append(Device(f"cuda:{index}", str(pynvml.nvmlDeviceGetName(handle)), memory))
    except pynvml.NVMLError:
        pass
    finally:
        pynvml.nvmlShutdown()
    return (*found, Device(CPU, "CPU", 0))


def device_for(name: str) -> str:
    """The device that ``--device`` means; ``auto`` is the first GPU, or the CPU when there is none.

    Raises:
        UsageError: there is no such device.
    """
    known = [device.id for device in devices()]
    if name == "auto":
        return known[0]
    wanted = "cuda:0" if name == "cuda" else name
    if wanted in known:
        return wanted
    if not re.fullmatch(r"cpu|cuda:\d+", wanted):
        raise UsageError(N_("--device {name}: expected auto, cpu, cuda or cuda:N"), name=name)
    raise UsageError(N_("--device {name}: this machine has {names}"), name=name, names=tuple(known))

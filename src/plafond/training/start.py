"""From a loaded job to its runs: checks that need no model, the device, and one run per process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from plafond.errors import UsageError
from plafond.families import family_for
from plafond.job.folders import missing_folders
from plafond.job.schema import Job
from plafond.language.said import N_, Speak
from plafond.training.budget import Budget
from plafond.training.loop import train
from plafond.training.result import Result

ONE_DEVICE = N_("--device {name}: this machine has {count} CUDA device")
DEVICES = N_("--device {name}: this machine has {count} CUDA devices")


def run_each(
    job: Job,
    *,
    device: str = "auto",
    fresh: bool = False,
    budgets: Sequence[Budget] = (),
    speak: Speak = str,
) -> Iterator[Result]:
    """Check the whole job first, then run its processes one after the other, yielding each result.

    `budgets` holds one for each process; without them nothing limits the device but itself. `speak` puts what is shown
    meanwhile into words.
    """
    for error in missing_folders(job):
        raise error
    chosen = choose_device(device)
    for index, process in enumerate(job.processes):
        with job.placing(index):
            family_for(process.model.arch)
    for index, process in enumerate(job.processes):
        with job.placing(index):
            budget = budgets[index] if budgets else None
            result = train(job, process, device=chosen, fresh=fresh, budget=budget, speak=speak)
        yield result


def choose_device(name: str) -> torch.device:
    """The device that ``--device`` names; ``auto`` is the first GPU, or the CPU when there is none.

    A GPU comes with its index, which torch's memory limits ask for.

    Raises:
        UsageError: there is no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UsageError(N_("--device {name}: expected auto, cpu, cuda or cuda:N"), name=name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise UsageError(ONE_DEVICE if found == 1 else DEVICES, name=name, count=found)
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device

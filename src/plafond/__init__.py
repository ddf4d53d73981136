"""plafond trains LoRAs for diffusion models under a VRAM ceiling.

The public surface is small; importing it loads neither torch nor diffusers::

    job = plafond.load_job("job.yaml")
    results = plafond.train(job)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plafond.errors import PlafondError

if TYPE_CHECKING:
    from plafond.job.schema import Job
    from plafond.plan.fit import Fitted
    from plafond.training.result import Result

__version__ = "0.1.0"

__all__ = ["PlafondError", "__version__", "fit", "load_job", "train"]


def load_job(
    path: str | Path, *, name: str | None = None, overrides: Sequence[str] = (), strict: bool = False
) -> Job:
    """Read a job file (AI Toolkit's YAML or JSON).

    Args:
        path: the file.
        name: replaces ``config.name``.
        overrides: ``dotted.key=value`` settings that win over the file.
        strict: unknown keys are errors instead of warnings.

    Raises:
        PlafondError: one sentence that names file, line and key.
    """
    from plafond.job.reading import load_job as read

    return read(Path(path), name=name, overrides=overrides, strict=strict)


def fit(
    job: Job,
    *,
    vram: str | None = None,
    gpu: str | None = None,
    device: str = "auto",
    allow_quality: bool = False,
    keep: Collection[str] = (),
) -> Fitted:
    """Find the fewest changes with which a job fits, and of several such sets the fastest.

    Args:
        job: as `load_job` returns it; nothing is written.
        vram: the ceiling, as ``24GB``.
        gpu: or a card, as ``RTX 4090``.
        device: ``auto`` or ``cuda``: a GPU; ``cpu``: a virtual GPU on the CPU.
        allow_quality: allow changes that may change what is learnt.
        keep: settings that stay as they are, as ``train.batch_size``.

    Raises:
        PlafondError: one sentence, about the ceiling or about a file that a program cannot change.
    """
    from plafond.plan.fit import fit as find

    return find(job, vram=vram, gpu=gpu, device=device, allow_quality=allow_quality, keep=keep)


def train(
    job: Job,
    *,
    device: str = "auto",
    fresh: bool = False,
    ceiling: int | None = None,
    recover: bool = True,
) -> list[Result]:
    """Run every process of a job, or continue what was started.

    Args:
        job: as `load_job` returns it.
        device: ``auto``, ``cuda``, ``cuda:N`` or ``cpu``.
        fresh: set an earlier run of that name aside instead of continuing it.
        ceiling: most bytes that tensors may take on the device, which ``gradient_checkpointing: auto`` fills. On
            the CPU this is a virtual GPU; an allocation above it is refused, as on CUDA.
        recover: after an out-of-memory repeat the step in a leaner way; False raises ``torch.OutOfMemoryError``, to
            compare with a prediction.

    Returns:
        One result per process.
    """
    from plafond.memory.expandable import set_up

    set_up()
    from plafond.plan.before import budgets_under
    from plafond.training.start import choose_device, run_each

    chosen = choose_device(device)
    budgets = budgets_under(job, chosen, ceiling=ceiling, recover=recover)
    return list(run_each(job, device=str(chosen), fresh=fresh, budgets=budgets))

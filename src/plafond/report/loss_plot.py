"""The loss over the steps, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plafond.language.said import N_, Said, Speak


def loss_plot(target: Path, metrics: Sequence[Mapping[str, Any]], title: str, speak: Speak) -> None:
    """Draw each step's loss and its running mean; steps that were not applied are marked.

    Args:
        target: the file to write.
        metrics: rows of ``metrics.jsonl``.
        title: heading of the plot.
        speak: puts what is written on it into words.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in metrics if row.get("applied", True) and row.get("loss") is not None]
    steps = [row["step"] for row in rows]
    losses = [row["loss"] for row in rows]
    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=110)
    axes.plot(steps, losses, color="#9ab", linewidth=0.8, label=speak(Said(N_("each step"))))
    axes.plot(
        steps, running_mean(losses), color="#c2410c", linewidth=2, label=speak(Said(N_("running mean")))
    )
    skipped = [row["step"] for row in metrics if not row.get("applied", True)]
    if skipped:
        axes.plot(
            skipped, [min(losses, default=0)] * len(skipped), "kx", label=speak(Said(N_("not applied")))
        )
    axes.set(title=title, xlabel=speak(Said(N_("step"))), ylabel=speak(Said(N_("loss"))))
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(target, format="png")
    pyplot.close(figure)


def running_mean(values: Sequence[float], memory: float = 0.95) -> list[float]:
    """Exponential mean of the values so far, unbiased at the start."""
    means: list[float] = []
    total = weight = 0.0
    for value in values:
        total = memory * total + (1 - memory) * value
        weight = memory * weight + (1 - memory)
        means.append(total / weight)
    return means

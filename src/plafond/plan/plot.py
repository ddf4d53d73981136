"""A plan as a picture: what each phase takes, by kind, and the way through one step, under the ceiling;
and the frontier."""

from __future__ import annotations

from pathlib import Path

from plafond.language.said import N_, Number, Said, Speak, Value
from plafond.language.speech import UNITS
from plafond.memory.gpus import GIB
from plafond.plan.forecast import STAYING, Plan
from plafond.plan.frontier import Frontier
from plafond.plan.words import NAMES

COLOURS = {
    "weights": "#33475b",
    "lora": "#4f8a8b",
    "gradients": "#88b3a5",
    "optimizer": "#c9b458",
    "activations": "#d97b45",
    "overhead": "#c9cdd2",
}
KINDS = {
    "weights": N_("weights"),
    "lora": N_("lora"),
    "gradients": N_("gradients"),
    "optimizer": N_("optimizer"),
    "activations": N_("activations"),
    "overhead": N_("overhead"),
}
UNIT = N_("GiB (2³⁰ bytes)")


def draw(target: Path, plan: Plan, title: str, speak: Speak) -> None:
    """Write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (phases, step) = pyplot.subplots(
        1, 2, figsize=(12, 5), dpi=110, gridspec_kw={"width_ratios": (3, 2)}
    )
    overhead = 0 if plan.virtual else plan.ceiling.overhead_bytes
    labels = [
        speak(Said(NAMES[phase.phase])) + (f"\n{phase.bucket}" if phase.bucket else "")
        for phase in plan.phases
    ]
    base = [0.0] * len(labels)
    for kind, colour in COLOURS.items():
        heights = []
        for phase in plan.phases:
            sizes = {name: phase.summary.kinds.get(name, 0) for name in STAYING}
            sizes |= {"activations": phase.activation_bytes}
            # what the allocator holds beyond live tensors is no tensor's; it stands with the overhead
            sizes["overhead"] = overhead + phase.summary.reserved_bytes - phase.summary.allocated_bytes
            heights.append(sizes[kind] / GIB)
        name = speak(Said(KINDS[kind]))
        phases.bar(range(len(labels)), heights, bottom=base, color=colour, label=name, width=0.75)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    phases.axhline(plan.ceiling.bytes / GIB, color="#b91c1c", linewidth=1.5)
    phases.text(
        -0.4,
        plan.ceiling.bytes / GIB,
        speak(Said(N_("ceiling {size}"), {"size": _in_gib(plan.ceiling.bytes)})),
        color="#b91c1c",
        va="bottom",
    )
    phases.set_xticks(range(len(labels)), labels, fontsize=8, rotation=40, ha="right")
    phases.set_ylabel(speak(Said(UNIT)))
    phases.set_title(speak(Said(N_("{job}: every phase"), {"job": title})))
    phases.legend(frameon=False, fontsize=8, ncols=3, loc="upper left", bbox_to_anchor=(0, -0.24))

    train = max(
        (phase for phase in plan.phases if phase.phase == "train"), key=lambda phase: phase.device_bytes
    )
    curve = [(size + overhead) / GIB for _, size in train.summary.curve]
    step.fill_between(range(len(curve)), curve, color=COLOURS["activations"], alpha=0.35)
    step.plot(curve, color=COLOURS["activations"])
    step.axhline(plan.ceiling.bytes / GIB, color="#b91c1c", linewidth=1.5)
    step.set_ylim(0, None)
    step.set_xticks([])
    step.set_xlabel(speak(Said(N_("two steps, from left to right"))))
    values: dict[str, Value] = {"bucket": str(train.bucket), "batch": train.batch}
    step.set_title(speak(Said(N_("training at {bucket}, batch {batch}"), values)))
    for axes in (phases, step):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, format="png")
    pyplot.close(figure)


def _in_gib(size: int) -> Said:
    return Said(UNITS["GiB"], {"number": Number(size / GIB, 2)})


def draw_frontier(target: Path, frontier: Frontier, title: str, speak: Speak) -> None:
    """Write a PNG of memory against speed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), dpi=110)
    sizes = [stop.device_bytes / GIB for stop in frontier.stops]
    times = [stop.step_time for stop in frontier.stops]
    axes.plot(sizes, times, color=COLOURS["activations"], marker="o", markersize=4)
    limit = Said(N_("{size} may be taken"), {"size": _in_gib(frontier.limit)})
    axes.axvline(frontier.limit / GIB, color="#b91c1c", linewidth=1.5)
    axes.text(
        frontier.limit / GIB,
        0.98,
        f" {speak(limit)}",
        color="#b91c1c",
        va="top",
        transform=axes.get_xaxis_transform(),
    )
    for stop in frontier.stops:
        if stop.chosen:
            values: dict[str, Value] = {
                "size": _in_gib(stop.device_bytes),
                "ratio": Number(stop.step_time, 3),
            }
            axes.plot(stop.device_bytes / GIB, stop.step_time, "o", color=COLOURS["weights"], markersize=9)
            axes.annotate(
                speak(Said(N_("auto: {size}, {ratio}×"), values)),
                (stop.device_bytes / GIB, stop.step_time),
                (10, 10),
                textcoords="offset points",
                color=COLOURS["weights"],
            )
    axes.set_xlabel(speak(Said(N_("device, {unit}"), {"unit": Said(UNIT)})))
    axes.set_ylabel(speak(Said(N_("step time, with nothing computed twice = 1"))))
    head: dict[str, Value] = {"job": title, "bucket": str(frontier.bucket), "batch": frontier.batch}
    axes.set_title(speak(Said(N_("{job}: memory against speed at {bucket}, batch {batch}"), head)))
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, format="png")
    pyplot.close(figure)

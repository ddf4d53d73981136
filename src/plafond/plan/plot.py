"""A plan as a picture: what each phase takes, by kind, and the way through one step, under the ceiling;
and the frontier."""

from __future__ import annotations

from pathlib import Path

from plafond.plan.forecast import STAYING, Plan
from plafond.plan.frontier import Frontier
from plafond.plan.report import NAMES

COLOURS = {
    "weights": "#33475b",
    "lora": "#4f8a8b",
    "gradients": "#88b3a5",
    "optimizer": "#c9b458",
    "activations": "#d97b45",
    "overhead": "#c9cdd2",
}
GIB = 2**30


def draw(target: Path, plan: Plan, title: str) -> None:
    """Write a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (phases, step) = pyplot.subplots(
        1, 2, figsize=(12, 5), dpi=110, gridspec_kw={"width_ratios": (3, 2)}
    )
    overhead = 0 if plan.virtual else plan.ceiling.overhead_bytes
    labels = [NAMES[phase.phase] + (f"\n{phase.bucket}" if phase.bucket else "") for phase in plan.phases]
    base = [0.0] * len(labels)
    for kind, colour in COLOURS.items():
        heights = []
        for phase in plan.phases:
            sizes = {name: phase.summary.kinds.get(name, 0) for name in STAYING}
            sizes |= {"activations": phase.activation_bytes}
            # what the allocator holds beyond live tensors is no tensor's; it stands with the overhead
            sizes["overhead"] = overhead + phase.summary.reserved_bytes - phase.summary.allocated_bytes
            heights.append(sizes[kind] / GIB)
        phases.bar(range(len(labels)), heights, bottom=base, color=colour, label=kind, width=0.75)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    phases.axhline(plan.ceiling.bytes / GIB, color="#b91c1c", linewidth=1.5)
    phases.text(
        -0.4,
        plan.ceiling.bytes / GIB,
        f"ceiling {plan.ceiling.bytes / GIB:.2f} GiB",
        color="#b91c1c",
        va="bottom",
    )
    phases.set_xticks(range(len(labels)), labels, fontsize=8, rotation=40, ha="right")
    phases.set_ylabel("GiB (2³⁰ bytes)")
    phases.set_title(f"{title}: every phase")
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
    step.set_xlabel("two steps, from left to right")
    step.set_title(f"training at {train.bucket}, batch {train.batch}")
    for axes in (phases, step):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, format="png")
    pyplot.close(figure)


def draw_frontier(target: Path, frontier: Frontier, title: str) -> None:
    """Write a PNG of memory against speed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), dpi=110)
    sizes = [stop.device_bytes / GIB for stop in frontier.stops]
    times = [stop.step_time for stop in frontier.stops]
    axes.plot(sizes, times, color=COLOURS["activations"], marker="o", markersize=4)
    axes.axvline(frontier.limit / GIB, color="#b91c1c", linewidth=1.5)
    axes.text(
        frontier.limit / GIB,
        0.98,
        f" {frontier.limit / GIB:.2f} GiB may be taken",
        color="#b91c1c",
        va="top",
        transform=axes.get_xaxis_transform(),
    )
    for stop in frontier.stops:
        if stop.chosen:
            axes.plot(stop.device_bytes / GIB, stop.step_time, "o", color=COLOURS["weights"], markersize=9)
            axes.annotate(
                f"auto: {stop.device_bytes / GIB:.2f} GiB, {stop.step_time:.3f}×",
                (stop.device_bytes / GIB, stop.step_time),
                (10, 10),
                textcoords="offset points",
                color=COLOURS["weights"],
            )
    axes.set_xlabel("device, GiB (2³⁰ bytes)")
    axes.set_ylabel("step time, with nothing computed twice = 1")
    axes.set_title(f"{title}: memory against speed at {frontier.bucket}, batch {frontier.batch}")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(target, format="png")
    pyplot.close(figure)

"""What `gradient_checkpointing: auto` gains under a ceiling, on real steps of a mid-size FLUX on the CPU.

Ceilings lie 25, 50 and 75 % of the way from what full checkpointing takes to what none takes, by dry runs. Under each
the solver's plan is run on a virtual GPU that refuses to go above it, and measured by torch's profiler. Then steps of
every plan are timed in turn, beside diffusers' own full checkpointing and no checkpointing, both with plafond's LoRA
and without plafond's blocks. Times are processor time of one thread, which other work on the machine disturbs least;
nobody counts memory meanwhile, as on a GPU.

    python bench/auto.py [--steps 7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from plafond.activations.ladder import Ladder, curve_of
from plafond.activations.plan import KEEP_ALL, RECOMPUTE_ALL, ActivationPlan, Activations
from plafond.data.batches import Batch, Item
from plafond.data.buckets import Bucket
from plafond.data.folder import Picture
from plafond.families import family_for
from plafond.job.dataset import DatasetConfig
from plafond.job.model import ModelConfig
from plafond.job.network import NetworkConfig, NetworkKwargs
from plafond.job.schema import ProcessConfig
from plafond.job.train import TrainConfig
from plafond.memory.calibration import processor, rates_for
from plafond.memory.dryrun import Rehearsal
from plafond.memory.kernels import Target
from plafond.memory.profiled import mark, measure
from plafond.memory.real import Counted, Real, Silent
from plafond.model.checkpoint import Altered
from plafond.plan.solve import fastest
from plafond.training.optim import make_optimizer
from plafond.training.step import MicroBatch, Stepper
from plafond.training.trainee import make_trainee

MIB = 2**20
CPU = torch.device("cpu")
BUCKET = Bucket(512, 512)
"""1,024 image tokens."""
SHARES = (0.25, 0.5, 0.75)
CLOSED = {0.5: 0.70, 0.75: 0.95}
"""How much of the time between full checkpointing and none has to be gained."""
FAMILY = family_for("flux")
SHAPE = {
    "num_layers": 2,
    "num_single_layers": 4,
    "num_attention_heads": 16,
    "attention_head_dim": 64,
    "axes_dims_rope": [16, 24, 24],
}
"""Width 1024."""
SOURCE = Altered(
    repo=FAMILY.base_models[0].repo,
    changes={**FAMILY.miniature, "transformer": {**FAMILY.miniature["transformer"], **SHAPE}},
)


def process_of(ignore: tuple[str, ...]) -> ProcessConfig:
    return ProcessConfig(
        type="sd_trainer",
        model=ModelConfig(name_or_path="bench", arch="flux"),
        network=NetworkConfig(
            linear=16, linear_alpha=16.0, network_kwargs=NetworkKwargs(ignore_if_contains=ignore)
        ),
        datasets=(DatasetConfig(folder_path="."),),
        train=TrainConfig(optimizer="adamw", dtype="bf16", cache_text_embeddings=True),
    )


def stepping(
    dry: Rehearsal, plan: ActivationPlan | None, *, checkpointing: bool = False
) -> Callable[[int], Any]:
    """Real steps under a plan; without one the blocks are diffusers' own."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dry.dtype)
    try:
        transformer = dry.family.build_transformer(dry.config)
    finally:
        torch.set_default_dtype(before)
    trainee = make_trainee(transformer, dry.family, dry.process, dry.target)
    if plan is None:
        for group in trainee.blocks.values():
            for planned in group:
                del planned.block.forward
        if checkpointing:
            transformer.enable_gradient_checkpointing()  # type: ignore[operator]
    stepper = Stepper(trainee, dry.family, dry.process, CPU, dry.dtype, Activations(default=plan or KEEP_ALL))
    optimizer = make_optimizer(trainee.parameters.values(), dry.process.train)
    picture = Picture(Path("x.png"), "x.png", Path(), BUCKET.width, BUCKET.height, "", None, 1, 0)
    item = Item(picture, dry.process.datasets[0], BUCKET.width, BUCKET)
    latents = torch.randn(1, *dry._latent_shape(BUCKET))
    text = {name: torch.randn(1, *tensor.shape).to(dry.dtype) for name, tensor in dry.text(0, None).items()}

    def step(number: int) -> float:
        micro = MicroBatch(
            batch=Batch(0, 0, BUCKET, (item,)), latents=latents, text=text, step=number, index=0, share=1.0
        )
        return stepper.run([micro], optimizer).loss

    return step


def plans_of(dry: Rehearsal) -> dict[str, tuple[int, ActivationPlan, float]]:
    """For each share of the way its ceiling, the solver's plan and the estimated step time."""

    def needed(plan: ActivationPlan) -> int:
        dry.activations = Activations(default=plan)
        return dry.train(BUCKET, 1).peak().bytes

    none, full = needed(KEEP_ALL), needed(RECOMPUTE_ALL)
    rates = rates_for(processor())
    balance = rates.matmul_flops / rates.memory_bandwidth
    curves = {group: curve_of(menu, balance) for group, menu in dry.menus.items()}
    ladder = Ladder(curves, {group: int(dry.config[key]) for group, key in dry.family.depth.items()})
    print(f"full {full / MIB:.1f} MiB, none {none / MIB:.1f} MiB, balance {balance:.1f} FLOP/byte")
    found = {}
    for share in SHARES:
        ceiling = round(full + share * (none - full))
        rung = fastest(ladder, lambda rung: needed(ladder.plan(rung)), ceiling)
        found[f"auto at {share:.0%}"] = (ceiling, ladder.plan(rung), ladder.slowdown(rung))
    return found


def peaks(dry: Rehearsal, ceiling: int, plan: ActivationPlan) -> tuple[int, int]:
    """Bytes of a real phase under a plan: on a virtual GPU of that size, and by the profiler."""
    dry.activations = Activations(default=plan)

    def real(ledger: Silent | Counted) -> None:
        phase = Real(dry, CPU, ledger)
        phase.activations = dry.activations
        phase.train(BUCKET, 1)

    gpu = Counted(ceiling, granule=1)
    real(gpu)
    return gpu.peak, measure(lambda: real(Silent(mark))).tensors


def compare(ignore: tuple[str, ...], steps: int) -> bool:
    """Print a table; whether every bound is kept."""
    dry = Rehearsal(process_of(ignore), FAMILY, SOURCE, Target("cpu"), granule=1)
    plans = plans_of(dry)
    sizes = {name: peaks(dry, ceiling, plan) for name, (ceiling, plan, _) in plans.items()}
    runs = {
        "none": stepping(dry, None),
        "full (diffusers)": stepping(dry, None, checkpointing=True),
        "none (plafond)": stepping(dry, KEEP_ALL),
        "full (plafond)": stepping(dry, RECOMPUTE_ALL),
        **{name: stepping(dry, plan) for name, (_, plan, _) in plans.items()},
    }
    losses = {name: run(1) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(2, 2 + steps):
        for name, run in runs.items():
            started = time.process_time()
            run(number)
            times[name].append(time.process_time() - started)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    none, full = medians["none"], medians["full (diffusers)"]
    good = len(set(losses.values())) == 1
    print(
        "| plan | s/step | of the gap closed | ceiling, MiB | virtual GPU, MiB | profiler, MiB |\n"
        + "|---" * 6
        + "|"
    )
    for name, taken in medians.items():
        closed = (full - taken) / (full - none)
        row = f"| {name} | {taken:.3f} | {closed:.0%} |"
        if name in plans:
            ceiling, (virtual, profiled) = plans[name][0], sizes[name]
            row += f" {ceiling / MIB:.1f} | {virtual / MIB:.1f} | {profiled / MIB:.1f} |"
            wanted = CLOSED.get(SHARES[list(plans).index(name)], 0.0)
            kept = max(virtual, profiled) <= ceiling and closed >= wanted
            good &= kept
            row += "" if kept else f" MISSED ({wanted:.0%})"
        print(row if name in plans else f"{row} | | |", flush=True)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=7, help="timed steps of each plan")
    options = parser.parse_args()
    good = []
    for title, ignore in (("LoRA on attention and MLP", ("norm",)), ("LoRA on every linear layer", ())):
        print(f"{title}: ", end="")
        good.append(compare(ignore, options.steps))
    raise SystemExit(0 if all(good) else 1)


if __name__ == "__main__":
    main()

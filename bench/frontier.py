"""What activation memory buys at 1024², batch 1, rank 16, bfloat16, by dry runs without data.

Memory is what lies on the device beyond weights, LoRA, gradients and optimizer at the fullest moment of a step; work is
counted as torch's counter does, products and attention only. Where FLUX's LoRA is on attention and MLP, the last
projections' results are read by no backward pass; where it is on the modulation as well, the gates read them.

    python bench/frontier.py [--markdown]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from plafond.activations.ladder import Ladder, curve_of
from plafond.activations.levels import Level
from plafond.activations.plan import KEEP_ALL, RECOMPUTE_ALL, ActivationPlan, Activations
from plafond.data.buckets import Bucket
from plafond.families import family_for
from plafond.job.dataset import DatasetConfig
from plafond.job.model import ModelConfig
from plafond.job.network import NetworkConfig, NetworkKwargs
from plafond.job.schema import ProcessConfig
from plafond.job.train import TrainConfig
from plafond.memory.dryrun import Rehearsal
from plafond.memory.kernels import Target
from plafond.plan.solve import fastest

GIB = 2**30
BUCKET = Bucket(1024, 1024)
BALANCE = 1.0
"""Only products and attention are counted here; elementwise operations shall weigh next to nothing."""
SHARES = (0.25, 0.5, 0.75)
"""Of the way from recomputing everything to keeping everything, where no figures are asked for."""
FULL = "recompute all"
TARGETS = {FULL: (2.3, 0.31), "3.8 GiB": (3.8, 0.225), "7.5 GiB": (7.5, 0.15), "13.5 GiB": (13.5, 0.03)}
"""The most GiB and the most work over keeping everything, with a LoRA on attention and MLP of FLUX."""
FLUX, QWEN = "black-forest-labs/FLUX.1-dev", "Qwen/Qwen-Image"
CASES = (
    ("FLUX.1-dev, LoRA on attention and MLP", "flux", FLUX, ("norm",), (3.8, 7.5, 13.5)),
    ("FLUX.1-dev, LoRA on every linear layer", "flux", FLUX, (), (3.8, 7.5, 13.5)),
    ("Z-Image, LoRA on every linear layer", "zimage", "Tongyi-MAI/Z-Image", (), ()),
    ("Qwen-Image, LoRA on every linear layer", "qwen_image", QWEN, (), ()),
)
"""Title, architecture, model, layers that get no LoRA, and GiB of activations to be kept to."""


@dataclass(frozen=True)
class Row:
    """One plan: bytes of activations and floating-point operations of a step."""

    name: str
    activations: int
    flops: int


def rehearsal(arch: str, repo: str, ignore: tuple[str, ...]) -> Rehearsal:
    process = ProcessConfig(
        type="sd_trainer",
        model=ModelConfig(name_or_path=repo, arch=arch),
        network=NetworkConfig(
            linear=16, linear_alpha=16.0, network_kwargs=NetworkKwargs(ignore_if_contains=ignore)
        ),
        datasets=(DatasetConfig(folder_path="."),),
        train=TrainConfig(dtype="bf16", cache_text_embeddings=True),
    )
    family = family_for(process.model.arch)
    return Rehearsal(process, family, family.locate(process.model), Target("cuda", (8, 9)))


def rows(dry: Rehearsal, ceilings: tuple[float, ...]) -> Iterator[Row]:
    """Nothing kept, everything kept, and what is between."""

    def row(plan: ActivationPlan, name: str) -> Row:
        dry.activations = Activations(default=plan)
        trace = dry.train(BUCKET, 1)
        return Row(name, trace.peak().activations, trace.total_flops)

    none, full = row(KEEP_ALL, "keep all (none)"), row(RECOMPUTE_ALL, FULL)
    yield none
    yield full
    curves = {group: curve_of(menu, BALANCE) for group, menu in dry.menus.items()}
    ladder = Ladder(curves, dry.family.block_counts(dry.config))
    yield row(ActivationPlan(name="attention", default=Level(kind="attention")), "attention")
    between = (none.activations - full.activations) / GIB
    for size in ceilings or [round(full.activations / GIB + share * between, 1) for share in SHARES]:
        known: dict[int, Row] = {}

        def needed(rung: int, known: dict[int, Row] = known, size: float = size) -> int:
            known[rung] = row(ladder.plan(rung), f"{size} GiB")
            return known[rung].activations

        rung = fastest(ladder, needed, int(size * GIB))
        yield known[rung]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--markdown", action="store_true", help="print tables for docs/benchmarks.md")
    options = parser.parse_args()
    missed = []
    for title, arch, repo, ignore, ceilings in CASES:
        print(f"**{title}**\n" if options.markdown else title)
        print("| plan | activations, GiB | TFLOP/step | over none |\n|---|---:|---:|---:|")
        none = 0.0
        for row in rows(rehearsal(arch, repo, ignore), ceilings):
            none = none or row.flops
            size, over = row.activations / GIB, row.flops / none - 1
            most, slowest = TARGETS.get(row.name, (size, over)) if ignore else (size, over)
            wrong = size > most or over > slowest
            missed += [row.name] * wrong
            print(
                f"| {row.name} | {size:.2f} | {row.flops / 1e12:.1f} | {over:+.1%} |"
                + (" MISSED" if wrong else ""),
                flush=True,
            )
        print()
    raise SystemExit(f"missed: {', '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()

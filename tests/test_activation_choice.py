"""What is kept is chosen exactly; curves, ladders, and the fastest plan under a ceiling."""

from __future__ import annotations

import random
from itertools import chain, combinations, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plafond.activations.blocks import PlannedBlock
from plafond.activations.choose import Menu, Unit, owner
from plafond.activations.ladder import Curve, Ladder, Point, curve_of
from plafond.activations.levels import KEEP, RECOMPUTE, Level
from plafond.activations.plan import ActivationPlan, Activations
from plafond.data.buckets import Bucket
from plafond.families import family_for
from plafond.job.dataset import DatasetConfig
from plafond.job.model import ModelConfig
from plafond.job.network import NetworkConfig
from plafond.job.schema import ProcessConfig
from plafond.job.train import TrainConfig
from plafond.memory.dryrun import Rehearsal
from plafond.memory.kernels import Target
from plafond.model.checkpoint import Altered
from plafond.plan.solve import fastest

SIDE = 16


class Tangle(nn.Module):
    """A few random operations on what was made before."""

    def __init__(self, seed: int):
        super().__init__()
        dice = random.Random(seed)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(SIDE, SIDE)) for _ in range(3))
        self.steps = [(dice.randrange(5), dice.random(), dice.random()) for _ in range(9)]

    def forward(self, x: Tensor) -> Tensor:
        made = [x]
        for number, (kind, first, second) in enumerate(self.steps):
            # mostly recent results, so that chains are long
            one = made[-1 - int(first * first * len(made))]
            two = made[-1 - int(second * second * len(made))]
            match kind:
                case 0:
                    made.append(one.sin())
                case 1:
                    made.append(one * two)
                case 2:
                    made.append(one @ self.weights[number % 3])
                case 3:
                    made.append(one.t().tanh())
                case 4:
                    made.append(one.exp() + two)
        return made[-1] * made[-2] + made[-3].sin()


def menu_of(seed: int) -> Menu:
    torch.manual_seed(seed)
    block = PlannedBlock(Tangle(seed), Target("cpu"))
    block(torch.randn(SIDE, SIDE, requires_grad=True))
    assert block.learnt is not None
    return block.learnt.menu


def outcome(menu: Menu, again: set[Unit], balance: float) -> tuple[float, float]:
    """Bytes and FLOP when `again` are computed again: worked out without the code under test."""
    needed = {menu.unit_of[node] for node in menu.needed}
    while True:
        more = {
            menu.unit_of[owner(argument)]
            for unit in needed & again
            for argument in unit.node.all_input_nodes
            if owner(argument) not in menu.state
        }
        if more <= needed:
            break
        needed |= more
    return sum(unit.size for unit in needed - again), sum(unit.cost(balance) for unit in needed & again)


@pytest.mark.parametrize("seed", range(12))
def test_the_choice_is_the_best_of_all(seed: int) -> None:
    menu = menu_of(seed)
    free = [unit for unit in menu.units if unit.repeatable]
    assert len(free) <= 14
    subsets = list(chain.from_iterable(combinations(free, count) for count in range(len(free) + 1)))
    outcomes = [outcome(menu, set(again), 1.0) for again in subsets]
    for price in (0.1, 1.0, 3.0, 10.0, 50.0, 1000.0):
        best = min(price * size + cost for size, cost in outcomes)
        found = menu.choose(Level(kind="selective", price=price, balance=1.0))
        assert price * found.size + found.cost == pytest.approx(best, rel=1e-9), price


def falls(curve: Curve) -> None:
    assert curve.points[-1].cost == 0 and curve.points[-1].level == KEEP
    slopes = []
    for one, two in pairwise(curve.points):
        assert two.size > one.size and two.cost < one.cost
        slopes.append((one.cost - two.cost) / (two.size - one.size))
    assert all(steep > flat for steep, flat in pairwise(slopes)), "convex"


@pytest.mark.parametrize("seed", range(6))
def test_a_curve_is_convex_and_its_levels_give_its_points(seed: int) -> None:
    menu = menu_of(seed)
    curve = curve_of(menu, 1.0)
    falls(curve)
    for point in curve.points:
        found = menu.choose(point.level)
        assert (found.size, found.cost) == (point.size, point.cost)
    assert Curve.from_json(curve.as_json()) == curve


def test_the_work_of_a_convolution_whose_input_needs_no_gradient() -> None:
    block = PlannedBlock(nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 2, 1)), Target("cpu"))
    block(torch.randn(1, 3, 8, 8))
    assert block.learnt is not None
    products = 36 * 2 * (3 * 9 * 4 + 4 * 2)
    assert products <= block.learnt.menu.work(0.0)


def process(*, streamed: bool = False, **train: Any) -> ProcessConfig:
    return ProcessConfig(
        type="sd_trainer",
        model=ModelConfig(name_or_path="x", arch="flux", layer_offloading=streamed),
        network=NetworkConfig(type="lora", linear=4, linear_alpha=4),
        datasets=(DatasetConfig(folder_path="."),),
        train=TrainConfig(cache_text_embeddings=True, **train),
    )


def rehearsal(*, full_depth: bool = False, layers: int = 6, streamed: bool = False) -> Rehearsal:
    family = family_for("flux")
    shape = {"num_layers": layers, "num_single_layers": layers}
    changes = {**family.miniature, "transformer": {**family.miniature["transformer"], **shape}}
    source = Altered(repo=family.base_models[0].repo, changes=changes)
    return Rehearsal(
        process(streamed=streamed), family, source, Target("cuda", (8, 9)), full_depth=full_depth
    )


BUCKET = Bucket(256, 192)


def test_a_transformers_curves_are_convex() -> None:
    dry = rehearsal(layers=1)
    dry.train(BUCKET, 1)
    assert len(dry.menus) == 2
    for menu in dry.menus.values():
        for balance in (1.0, 100.0):
            curve = curve_of(menu, balance)
            falls(curve)
            assert len(curve.points) >= 4
            assert 1.2 < 1 + curve.points[0].cost / curve.work < 1.5


ATTENTION, WORTH = Level(kind="attention"), Level(kind="selective", price=500.0)
MIXED = {
    "two stretches": {
        "transformer_blocks": ((ATTENTION, 1), (WORTH, 5)),
        "single_transformer_blocks": ((RECOMPUTE, 5), (KEEP, 1)),
    },
    "one block of its own": {
        "transformer_blocks": ((RECOMPUTE, 6),),
        "single_transformer_blocks": ((WORTH, 2), (ATTENTION, 4)),
    },
    "input in main memory": {
        "transformer_blocks": ((Level(kind="offload"), 6),),
        "single_transformer_blocks": ((Level(kind="offload"), 5), (WORTH, 1)),
    },
}


@pytest.mark.parametrize("groups", MIXED.values(), ids=MIXED)
def test_stretches_are_lengthened_exactly(groups: dict[str, tuple[tuple[Level, int], ...]]) -> None:
    plan = ActivationPlan(name="mixed", default=KEEP, groups=groups)
    traces = []
    for full in (False, True):
        dry = rehearsal(full_depth=full)
        dry.activations = Activations(default=plan)
        traces.append(dry.train(BUCKET, 1))
    short, deep = traces
    assert short.events == deep.events and short.sizes == deep.sizes
    assert short.peak() == deep.peak() and short.total_flops == deep.total_flops


@pytest.mark.parametrize("level", [RECOMPUTE, KEEP], ids=["recompute", "keep"])
def test_streamed_blocks_are_lengthened_exactly(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them ends the visit of the next but one."""
    # a refusal would trace the deep model instead, and hide here that nothing was lengthened
    monkeypatch.setattr("plafond.memory.dryrun.NotUniform", ZeroDivisionError)
    groups = {
        "transformer_blocks": ((level, 8),),
        "single_transformer_blocks": ((ATTENTION, 1), (level, 7)),
    }
    traces = []
    for full in (False, True):
        dry = rehearsal(full_depth=full, layers=8, streamed=True)
        dry.activations = Activations(default=ActivationPlan(name="mixed", default=KEEP, groups=groups))
        traces.append(dry.train(BUCKET, 1))
    short, deep = traces
    # the norms of all gradients lie in one small tensor
    short.sizes, deep.sizes = ([size for size in trace.sizes if size > 4096] for trace in traces)
    assert short.sizes == deep.sizes
    assert [event[:2] for event in short.events] == [event[:2] for event in deep.events]


def random_ladder(dice: random.Random) -> Ladder:
    curves = {}
    for group in ("one", "two"):
        size, cost, points = 100, 0.0, []
        slopes = sorted(dice.uniform(0.1, 9) for _ in range(dice.randint(0, 5)))
        for number, slope in enumerate([*slopes, None]):
            # from the richest point down: each step saves bytes at a higher price
            level = KEEP if number == 0 else Level(kind="selective", price=float(number))
            points.append(Point(level=level, size=100_000 - size, cost=cost))
            if slope is not None:
                step = dice.randint(50, 5000)
                size, cost = size + step, cost + slope * step
        curves[group] = Curve(points=tuple(reversed(points)), work=1e6)
    return Ladder(curves, {group: dice.randint(1, 9) for group in curves})


def test_a_ladder_rises() -> None:
    dice = random.Random(0)
    for _ in range(20):
        ladder = random_ladder(dice)
        sizes = [ladder.size(rung) for rung in range(len(ladder))]
        times = [ladder.slowdown(rung) for rung in range(len(ladder))]
        assert all(one < two for one, two in pairwise(sizes))
        assert all(one > two for one, two in pairwise(times)) and times[-1] == 1
        # each rung saves at most as much per byte as the one before
        worth = [(a - b) / (d - c) for (a, b), (c, d) in zip(pairwise(times), pairwise(sizes), strict=True)]
        assert all(one >= two * (1 - 1e-6) for one, two in pairwise(worth))
        for rung in range(len(ladder)):
            plan = ladder.plan(rung)
            kept = sum(
                next(point.size for point in curve.points if point.level == level)
                for group, curve in ladder.curves.items()
                for level in plan.levels(group, ladder.depths[group])
            )
            assert kept == sizes[rung]


def test_the_fastest_that_fits_is_found() -> None:
    dice = random.Random(1)
    for _ in range(30):
        ladder = random_ladder(dice)
        grown = 0
        needed = []
        for rung in range(len(ladder)):  # not what blocks keep alone, but it grows
            grown += dice.randint(0, 3000)
            needed.append(ladder.size(rung) + grown)
        asked: list[int] = []

        def bytes_of(rung: int, needed: list[int] = needed, asked: list[int] = asked) -> int:
            asked.append(rung)
            return needed[rung]

        before = 0
        for ceiling in sorted(dice.randint(needed[0] - 5000, needed[-1] + 5000) for _ in range(20)):
            asked.clear()
            found = fastest(ladder, bytes_of, ceiling)
            fitting = [rung for rung, size in enumerate(needed) if size <= ceiling]
            assert found == max(fitting, default=0)
            assert found >= before and found in asked
            before = found

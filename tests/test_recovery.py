"""Out-of-memory at any moment: the run goes on, and its result is that of a run that never met one."""

from __future__ import annotations

import gc
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import plafond
from conftest import JobMaker
from plafond.activations.plan import KEEP_ALL, RECOMPUTE_ALL, Activations
from plafond.memory.residence import counting
from plafond.memory.virtual import VirtualGpu
from plafond.training.loop import Run
from plafond.training.recovery import FILE, Leaner
from plafond.training.run_folder import RunFolder
from plafond.training.transaction import Transaction
from recovery import Refusing, disturbed, transactions
from runs import assert_same_weights, folder_of, losses

PLENTY = 2**40


@pytest.fixture(autouse=True)
def _old_objects_apart() -> Iterator[None]:
    """Every recovery collects garbage, which takes long with all that the libraries have made."""
    gc.freeze()
    yield
    gc.unfreeze()


def run(job: Path, gpu: VirtualGpu | None, *overrides: str, fresh: bool = True) -> RunFolder:
    """Run a job on a virtual GPU of the test's own."""
    loaded = plafond.load_job(job, overrides=overrides)
    if gpu is None:
        plafond.train(loaded, device="cpu", fresh=fresh)
        return folder_of(job)
    with counting(gpu):
        plafond.train(loaded, device="cpu", fresh=fresh)
    return folder_of(job)


def same(one: RunFolder, two: RunFolder) -> None:
    """Bit-equal weights, optimizer, losses; no step missing or doubled."""
    assert_same_weights(one.final, two.final)
    assert losses(one) == losses(two)
    assert [row["step"] for row in two.read_metrics()] == list(range(1, len(losses(one)) + 1))
    states = [
        torch.load(max(folder.path.rglob("*.pt"), key=lambda path: path.name), weights_only=True)
        for folder in (one, two)
    ]
    for left, right in zip(_tensors(states[0]), _tensors(states[1]), strict=True):
        assert torch.equal(left, right)


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


@pytest.fixture
def undisturbed(make_job: JobMaker) -> RunFolder:
    """The reference: two steps with everything random switched on."""
    job = make_job("undisturbed", **SETTINGS)
    return run(job, None)


SETTINGS = {
    "train": {
        "steps": 2,
        "gradient_checkpointing": False,
        "gradient_accumulation": 2,
        "ema_config": {"use_ema": True, "ema_decay": 0.9},
        "disable_sampling": False,
        "skip_first_sample": True,
    },
    "network": {"dropout": 0.1},
    "save": {"save_every": 1},
}


def test_a_refused_allocation_anywhere_changes_nothing(make_job: JobMaker, undisturbed: RunFolder) -> None:
    """Allocations that are spread evenly over the whole run and so over every phase."""
    job = make_job("counted", **SETTINGS)
    whole = VirtualGpu(PLENTY)
    run(job, whole)
    before = whole.live
    for number in range(0, whole.allocations, max(1, whole.allocations // 20)):
        gpu = VirtualGpu(PLENTY, faults={number})
        disturbed = run(make_job("disturbed", **SETTINGS), gpu)
        assert gpu.allocations > number
        same(undisturbed, disturbed)
        assert gpu.live <= before


def test_a_refused_allocation_in_any_step_changes_nothing(make_job: JobMaker) -> None:
    """Eighty steps, in each of which another allocation is refused; they are spread evenly over a step."""
    train = {**SETTINGS["train"], "steps": 82, "disable_sampling": True, "gradient_accumulation": 1}
    settings = {**SETTINGS, "train": train, "save": {"save_every": 5}}
    counted, counts = VirtualGpu(PLENTY), []

    class Counting(Transaction):
        def gradients(self) -> Any:
            counts.append(counted.allocations)
            return super().gradients()

    with transactions(Counting):
        run(make_job("counted", **settings), counted, "train.steps=3")
    size = counts[2] - counts[1]
    reference = run(make_job("reference", **settings), None)
    gpu, live = Refusing(PLENTY), []
    with transactions(disturbed(gpu, live, size // 80)):
        found = run(make_job("disturbed", **settings), gpu)
    same(reference, found)
    assert found.log.read_text().count("out of memory") >= 80
    assert max(live) == min(live), "nothing stays behind"


def test_a_shrinking_ceiling_makes_the_run_leaner_and_it_remembers(make_job: JobMaker) -> None:
    job = make_job("shrinking", train={"steps": 6, "gradient_checkpointing": False})
    reference = run(make_job("reference", train={"steps": 6, "gradient_checkpointing": False}), None)

    class Shrinking(VirtualGpu):
        def grown(self, size: int) -> None:
            super().grown(size)
            if self.allocations == 3000:
                self.ceiling = int(0.75 * self.peak)

    gpu = Shrinking(PLENTY)
    folder = run(job, gpu)
    assert gpu.ceiling < PLENTY
    same(reference, folder)
    assert (folder.path / FILE).is_file()
    # continued under the same ceiling: nothing fails any more
    again = VirtualGpu(gpu.ceiling)
    log = folder.log.read_text().count("out of memory")
    run(job, again, "train.steps=8", fresh=False)
    assert folder.log.read_text().count("out of memory") == log


def test_a_run_with_more_room_takes_it_again(make_job: JobMaker) -> None:
    train = {"steps": 2, "gradient_checkpointing": False}
    job = make_job("roomy", train=train)

    def go(ceiling: int, *overrides: str) -> list[int]:
        loaded = plafond.load_job(job, overrides=overrides)
        plafond.train(loaded, device="cpu", ceiling=ceiling)
        return [row["allocated_peak"] for row in folder_of(job).read_metrics()]

    whole = max(go(2**30))
    shutil.rmtree(folder_of(job).path)
    narrow = int(0.8 * whole)
    assert max(go(narrow)) <= narrow
    assert max(go(narrow, "train.steps=4")) <= narrow
    assert folder_of(job).log.read_text().count("out of memory") == 1, "remembered"
    assert max(go(2**30, "train.steps=6")) == whole


def test_a_job_that_asks_for_a_leaner_plan_by_now_gets_it(tmp_path: Path) -> None:
    row = {"plan": 0, "parts": 2, "room": 1000}  # a plan that keeps attention
    (tmp_path / FILE).write_text(json.dumps({"64x64": row}))
    for plan, taken in ((KEEP_ALL, "attention"), (RECOMPUTE_ALL, "recompute")):
        lean = Leaner(Activations(default=plan), tmp_path, lambda: 1000)
        lean.remember()
        assert lean.activations.of("64x64").default.kind == taken and lean.parts == {"64x64": 2}


def test_what_others_take_is_seen_before_it_fails(
    make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = {"steps": 6, "gradient_checkpointing": False}
    reference = run(make_job("reference", train=train), None)
    job = make_job("watched", train=train)
    record = Run._record

    def shrinking(self: Run, *arguments: Any) -> None:
        record(self, *arguments)
        if self.progress.step == 3 and self.gauge.gpu is not None:
            self.gauge.gpu.ceiling = self.latest["64x64"] - 1

    monkeypatch.setattr(Run, "_record", shrinking)
    plafond.train(plafond.load_job(job), device="cpu", fresh=True, ceiling=2**30)
    folder = folder_of(job)
    text = folder.log.read_text()
    assert "are left for this run, and 64x64 takes" in text and "now keep: attention" in text
    assert "out of memory" not in text
    same(reference, folder)


def test_batches_are_split_when_no_plan_is_lean_enough(make_job: JobMaker) -> None:
    train = {"steps": 4, "batch_size": 4, "gradient_checkpointing": True}
    reference = run(make_job("reference", train=train), None)
    whole = VirtualGpu(PLENTY)
    run(make_job("whole", train=train), whole)
    folder = run(make_job("split", train=train), VirtualGpu(int(0.8 * whole.peak)))
    text = folder.log.read_text()
    assert "are trained in" in text
    found, expected = ([loss for _, loss in losses(one)] for one in (folder, reference))
    assert found == pytest.approx(expected, rel=1e-4)


def test_a_preview_never_ends_a_run(make_job: JobMaker) -> None:
    large = {"width": 512, "height": 512}
    train = {"steps": 2, "disable_sampling": False}
    with_previews = VirtualGpu(PLENTY)
    run(make_job("measured", train={"steps": 2}), with_previews)
    folder = run(make_job("small", train=train, sample=large), VirtualGpu(with_previews.peak))
    assert "no preview after step" in folder.log.read_text()
    assert folder.final.is_file()


def test_other_errors_are_not_caught(make_job: JobMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    from plafond.training.step import Stepper

    def broken(*_: object) -> None:
        raise RuntimeError("not a matter of memory")

    monkeypatch.setattr(Stepper, "micro_step", broken)
    with pytest.raises(RuntimeError, match="not a matter of memory"):
        run(make_job(), None)


def test_when_nothing_helps_the_state_is_saved(make_job: JobMaker) -> None:
    job = make_job(train={"batch_size": 1})
    with pytest.raises(torch.OutOfMemoryError) as caught:
        plafond.train(plafond.load_job(job), device="cpu", fresh=True, ceiling=300_000)
    assert "CUDA out of memory" in str(caught.value)

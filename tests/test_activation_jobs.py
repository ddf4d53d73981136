"""Activation plans in jobs: pinned by hand, or the fastest under a virtual ceiling; no plan changes a loss."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest

import plafond
from conftest import JobMaker
from job_files import JOB, sentence
from plafond.activations.plan import asked_for
from plafond.cli import main
from plafond.memory.gpus import Ceiling
from plafond.plan.forecast import Forecaster, Plan
from plafond.training.run_folder import RunFolder
from runs import assert_same_weights, folder_of, losses
from runs import run as train

AUTO = "train.gradient_checkpointing=auto"


def plan_of(job: Path, ceiling: int, *overrides: str) -> Plan:
    (process,) = plafond.load_job(job, overrides=overrides).processes
    return Forecaster(process, Ceiling(ceiling, 0, "test", None), virtual=True).plan()


def run(job: Path, ceiling: int, *overrides: str) -> RunFolder:
    """Train under a ceiling; nothing may go wrong on the way."""
    loaded = plafond.load_job(job, overrides=overrides)
    plafond.train(loaded, device="cpu", fresh=True, ceiling=ceiling, recover=False)
    return folder_of(job)


PINNED = {
    "one level": "offload",
    "a price": "selective 300",
    "by group": {"transformer_blocks": "offload", "single_transformer_blocks": "selective 50"},
    "numbers of blocks": {"single_transformer_blocks": {"recompute": 1, "keep": 1}},
}


@pytest.mark.parametrize("pinned", PINNED.values(), ids=PINNED)
def test_a_pinned_plan_is_followed(make_job: JobMaker, pinned: object) -> None:
    job = make_job(train={"steps": 2})
    override = f"plafond.activation_plan={json.dumps(pinned)}"
    plan = plan_of(job, 2**40, override)
    phase = next(phase for phase in plan.phases if phase.phase == "train")
    folder = run(job, 2**30, override)
    peaks = [row["allocated_peak"] for row in folder.read_metrics()]
    assert 0 <= phase.summary.allocated_bytes - max(peaks) <= 4096, "it is planned as it is run"


def test_numbers_of_blocks_are_read_from_the_first_to_the_last(make_job: JobMaker) -> None:
    pinned = {"single_transformer_blocks": {"recompute": 2, "selective 300": 3}}
    override = f"plafond.activation_plan={json.dumps(pinned)}"
    (process,) = plafond.load_job(make_job(), overrides=(override, AUTO)).processes
    plan = asked_for(process)
    found = [str(level) for level in plan.levels("single_transformer_blocks", 7)]
    assert found == ["recompute"] * 2 + ["selective at 300 FLOP/byte"] * 5, "the last takes the rest"
    assert {level.kind for level in plan.levels("transformer_blocks", 2)} == {"keep"}


LEVELS = 'expected keep, attention, recompute, offload or "selective 2000" (FLOP per kept byte), or these by group of blocks'
WRONG = {
    "everything": f'{LEVELS}, found "everything"',
    "selective": f'{LEVELS}, found "selective"',
    "selective nan": f'{LEVELS}, found "selective nan"',
    "keep 3": f'{LEVELS}, found "keep 3"',
    "[keep]": f"{LEVELS}, found a list",
    "true": f"{LEVELS}, found true",
    "{blocks: sometimes}": f'{LEVELS}, found "sometimes"',
    "{blocks: {often: 3}}": f'{LEVELS}, found "often"',
    "{blocks: {keep: 0}}": "expected at least 1 block for keep, found 0",
    "{blocks: {keep: two}}": 'expected at least 1 block for keep, found "two"',
}


@pytest.mark.parametrize("value", WRONG)
def test_a_wrong_plan_is_one_sentence(value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = JOB.replace("meta:\n", f"      plafond:\n        activation_plan: {value}\nmeta:\n")
    line = text.splitlines().index(f"        activation_plan: {value}") + 1
    assert sentence(text) == f"job.yaml, line {line}: plafond.activation_plan: {WRONG[value]}"


@pytest.mark.parametrize("command", ["plan", "train"])
def test_an_unknown_group_is_one_sentence(
    make_job: JobMaker, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    pinned = "    plafond: {activation_plan: {blocks: keep}}\n"
    job.write_text(job.read_text().replace("    sample:", pinned + "    sample:", 1))
    arguments = ["plafond", command, str(job), "--device", "cpu", "--vram", "1GB"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    place = next(n for n, text in enumerate(job.read_text().splitlines(), 1) if "activation_plan" in text)
    assert line.endswith(
        f"{job}, line {place}: plafond.activation_plan: the model has no blocks;"
        " its groups of blocks are transformer_blocks, single_transformer_blocks"
    )


def test_a_plan_under_the_ceiling_is_kept_to_and_less_memory_is_never_faster(make_job: JobMaker) -> None:
    job = make_job(train={"steps": 2, "batch_size": 1}, datasets={"resolution": [128]})
    lean = plan_of(job, 2**40, "train.gradient_checkpointing=true").peak.device_bytes
    full = plan_of(job, 2**40, "train.gradient_checkpointing=false").peak.device_bytes
    dice = random.Random(3)
    times = []
    for ceiling in sorted(dice.randint(lean, full) for _ in range(10)):
        plan = plan_of(job, ceiling, AUTO)
        assert plan.verdict == "fits" and plan.peak.device_bytes <= ceiling
        chosen = next(phase.activations for phase in plan.phases if phase.phase == "train")
        assert chosen is not None and chosen.slowdown is not None
        times.append(chosen.slowdown)
        for row in run(job, ceiling, AUTO).read_metrics():
            assert row["allocated_peak"] <= row["predicted_peak"] <= ceiling
    assert all(less >= more for less, more in pairwise(times))
    assert len(set(times)) >= 4, "the ceilings make a difference"
    assert plan_of(job, lean - 16384, AUTO).verdict == "oom"
    best = next(phase for phase in plan_of(job, full, AUTO).phases if phase.phase == "train")
    assert best.activations is not None and best.activations.slowdown == 1


def test_no_plan_changes_the_loss_curve(make_job: JobMaker) -> None:
    """Bit-equal losses and weights after 20 steps, with everything random switched on."""
    sections = {
        "network": {"dropout": 0.3},
        "datasets": {"caption_dropout_rate": 0.3},
        "train": {"steps": 20, "batch_size": 1, "dtype": "bf16"},
    }
    streamed, packed = "model.layer_offloading=true", "model.quantize=true"
    plans = {
        "false": ("train.gradient_checkpointing=false",),
        "true": ("train.gradient_checkpointing=true",),
        "auto": (AUTO,),
        "pinned": (f"plafond.activation_plan={json.dumps(PINNED['by group'])}",),
        "streamed": (streamed, "train.cache_text_embeddings=false"),
        "packed": (packed, "train.gradient_checkpointing=false"),
        "packed and streamed": (packed, streamed, "plafond.activation_plan=offload"),
    }
    jobs = {name: make_job(name, **sections) for name in plans}
    lean, full = (plan_of(jobs[name], 2**40, *plans[name]).peak.device_bytes for name in ("true", "false"))
    for name, overrides in plans.items():
        if name == "auto":
            run(jobs[name], (lean + full) // 2, *overrides)
        else:
            train(jobs[name], overrides=overrides)
    assert len(losses(folder_of(jobs["false"]))) == 20
    for name, job in jobs.items():
        like = folder_of(jobs["packed" if name.startswith("packed") else "false"])
        assert losses(folder_of(job)) == losses(like), name
        assert_same_weights(folder_of(job).final, like.final)
    assert losses(folder_of(jobs["packed"])) != losses(folder_of(jobs["false"]))

"""The virtual GPU: real runs under a ceiling, and what the plan says of them beforehand."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch

import plafond
from conftest import JobMaker
from plafond.language.speech import speaker
from plafond.memory.gpus import Ceiling
from plafond.memory.residence import counting
from plafond.memory.virtual import VirtualGpu, shown
from plafond.plan.forecast import Forecaster, Plan
from plafond.plan.report import sentence
from plafond.training.run_folder import RunFolder
from runs import assert_same_weights, cli, folder_of, losses


def plan_of(job: Path, ceiling: int = 2**40, *overrides: str) -> Plan:
    (process,) = plafond.load_job(job, overrides=overrides).processes
    return Forecaster(process, Ceiling(ceiling, 0, "test", None), virtual=True).plan()


def run(job: Path, ceiling: int | None, *overrides: str, fresh: bool = True) -> RunFolder:
    loaded = plafond.load_job(job, overrides=overrides)
    plafond.train(loaded, device="cpu", fresh=fresh, ceiling=ceiling, recover=False)
    return folder_of(job)


def completes(job: Path, ceiling: int, *overrides: str) -> bool:
    try:
        run(job, ceiling, *overrides)
    except torch.OutOfMemoryError:
        return False
    return True


def test_the_message_is_cudas() -> None:
    with (
        counting(VirtualGpu(10 * 2**20)),
        pytest.raises(
            torch.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate 8\.00 MiB\. GPU 0 has"
        ),
    ):
        kept = [torch.empty(2**21) for _ in range(2)]
        del kept


def test_exactly_the_ceiling_is_allowed() -> None:
    with counting(VirtualGpu(2 * 2**20)) as gpu:
        kept = [torch.empty(2**18) for _ in range(2)]
        assert gpu.live == 2 * 2**20
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1)
        del kept


@pytest.mark.parametrize(("size", "text"), [(512, "512 bytes"), (1536, "1.50 KiB"), (2**31, "2.00 GiB")])
def test_sizes_are_written_as_cuda_does(size: int, text: str) -> None:
    assert shown(size) == text


def test_a_counted_run_trains_the_same_weights(make_job: JobMaker) -> None:
    one, two = make_job("plain"), make_job("counted")
    run(one, None)
    run(two, 2**30)
    assert_same_weights(folder_of(one).final, folder_of(two).final)


@pytest.mark.parametrize(
    "overrides",
    [
        ("train.gradient_checkpointing=false",),
        (
            "train.gradient_checkpointing=true",
            "train.gradient_accumulation=2",
            "train.ema_config.use_ema=true",
        ),
        ("train.cache_text_embeddings=false", "train.dtype=bf16"),
        ("train.optimizer=adamw8bit", "network.linear=64", "train.disable_sampling=false"),
        ("train.optimizer=adafactor", "datasets.0.resolution=[64, 96]"),
        ("model.layer_offloading=true", "train.gradient_checkpointing=true", "train.disable_sampling=false"),
        (
            "model.layer_offloading=true",
            "model.layer_offloading_transformer_percent=0.5",
            "train.cache_text_embeddings=false",
        ),
        ("plafond.activation_plan=offload",),
    ],
    ids=lambda overrides: overrides[0],
)
def test_the_plan_is_exact(make_job: JobMaker, overrides: tuple[str, ...]) -> None:
    runs_as_planned(make_job, overrides)


def runs_as_planned(make_job: JobMaker, overrides: tuple[str, ...]) -> None:
    """A run takes what was planned, and not less."""
    job = make_job(train={"steps": 6})
    plan = plan_of(job, 2**40, *overrides)
    predicted = {
        str(phase.bucket): phase.summary.allocated_bytes for phase in plan.phases if phase.phase == "train"
    }
    measured: dict[str, int] = {}
    for row in run(job, 2**40, *overrides).read_metrics():
        measured[row["bucket"]] = max(measured.get(row["bucket"], 0), row["allocated_peak"])
    assert measured.keys() == predicted.keys()
    assert all(measured[bucket] <= predicted[bucket] for bucket in measured)
    # a batch may have been smaller than the largest of its bucket, but not that of the peak
    assert max(predicted.values()) - max(measured.values()) <= 4096
    assert completes(job, plan.peak.device_bytes, *overrides)
    assert not completes(job, plan.peak.device_bytes - 8192, *overrides)


def test_a_continued_run_is_counted_in_full(make_job: JobMaker) -> None:
    job = make_job(train={"steps": 4})
    folder = run(job, 2**30)
    before = folder.read_metrics()[-1]["allocated_peak"]
    again = run(job, 2**30, "train.steps=8", fresh=False).read_metrics()[-1]
    assert again["step"] == 8
    assert abs(again["allocated_peak"] - before) <= 2048


def test_the_error_names_step_bucket_and_moment(make_job: JobMaker) -> None:
    job = make_job()
    plan = plan_of(job)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        run(job, plan.peak.device_bytes - 8192)
    assert plan.peak.phase == "train"
    (note,) = caught.value.__notes__
    assert sentence(plan_of(job, plan.peak.device_bytes - 8192), speaker("en")).endswith(
        "; it would fail on the largest bucket, 64x64, in the warm-up or in the first steps."
    )
    assert note == "while warming up, before the first step, on a batch of 2 at 64x64"
    assert "virtual GPU on the CPU; in " in str(caught.value)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_warm_up_changes_nothing(make_job: JobMaker, accumulation: int) -> None:
    """Bit-identical files, previews and losses, with everything random switched on."""
    sections = {
        "network": {"dropout": 0.3},
        "datasets": {"resolution": [64, 96], "caption_dropout_rate": 0.3},
        "train": {"steps": 4, "disable_sampling": False, "gradient_accumulation": accumulation},
    }
    plain, warmed = make_job("plain", **sections), make_job("warmed", **sections)
    without, with_ = run(plain, None), run(warmed, 2**40)
    assert losses(without) == losses(with_)
    assert_same_weights(without.final, with_.final)
    for step, pictures in without.previews().items():
        for index, path in pictures.items():
            assert path.read_bytes() == with_.previews()[step][index].read_bytes()


def test_the_warm_up_meets_the_largest_batch_first(make_job: JobMaker) -> None:
    """Memory runs out before step 1, as the plan says, though the run's first batch is a small one."""
    job = make_job(datasets={"resolution": [32, 64, 96]}, train={"gradient_checkpointing": False})
    plan = plan_of(job)
    first = next(phase for phase in plan.phases if phase.phase == "train")
    ceiling = max(phase.device_bytes for phase in plan.phases if phase.device_bytes < first.device_bytes)
    fails = f"it would fail in the warm-up on the largest bucket, {first.bucket}, before step 1."
    assert fails in sentence(plan_of(job, ceiling), speaker("en"))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        run(job, ceiling)
    assert caught.value.__notes__ == [
        f"while warming up, before the first step, on a batch of 2 at {first.bucket}"
    ]
    assert folder_of(job).read_metrics() == []


def test_batches_that_are_all_alike_need_no_warm_up(make_job: JobMaker) -> None:
    job = make_job(train={"batch_size": 1, "gradient_checkpointing": False}, datasets={"num_repeats": 2})
    ceiling = plan_of(job).peak.device_bytes * 3 // 4
    assert "it would fail at the first 64x64 batch." in sentence(plan_of(job, ceiling), speaker("en"))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        run(job, ceiling)
    assert caught.value.__notes__ == ["at step 1, on a batch of 1 at 64x64"]


def test_the_end_says_what_was_predicted_and_measured(make_job: JobMaker) -> None:
    code, _, stderr = cli("train", str(make_job()), "--device", "cpu", "--vram", "1GB")
    assert code == 0
    (line,) = [line for line in stderr.splitlines() if line.startswith("peak at ")]
    found = re.fullmatch(r"peak at 64x64: predicted (.+) MiB, measured (.+) MiB", line)
    assert found and 0 <= float(found[1]) - float(found[2]) <= 0.1


def test_verdicts_hold(make_job: JobMaker) -> None:
    """Twelve draws: the plan says *fits* exactly when the run completes (`bench/verdicts.py` has 60)."""
    dice = random.Random(0)
    job = make_job(train={"steps": 3})
    for _ in range(12):
        overrides = (
            f"train.gradient_checkpointing={dice.choice(['true', 'false'])}",
            f"train.batch_size={dice.choice([1, 2, 4])}",
            f"datasets.0.resolution={dice.choice([[64], [96], [64, 96]])}",
        )
        peak = plan_of(job, 2**40, *overrides).peak.device_bytes
        ceiling = round(peak * dice.uniform(0.9, 1.1))
        verdict = plan_of(job, ceiling, *overrides).verdict
        assert (verdict != "oom") == completes(job, ceiling, *overrides), (overrides, ceiling, peak)


def test_train_plans_first_refuses_and_can_be_forced(make_job: JobMaker) -> None:
    job = make_job(train={"gradient_checkpointing": False})
    off = plan_of(job).peak.device_bytes
    on = plan_of(job, 2**40, "train.gradient_checkpointing=true").peak.device_bytes
    ceiling = f"{(on + off) // 2}"
    command = ("train", str(job), "--device", "cpu", "--vram", ceiling)

    code, _, stderr = cli(*command)
    assert code == 3, stderr
    assert "Does not fit: train at 64x64 needs " in stderr
    assert "checkpointing_on" in stderr and "Nothing was run; --force runs it all the same." in stderr
    assert not folder_of(job).path.exists()

    code, _, stderr = cli(*command, "--force")
    assert code == 0, stderr
    assert "out of memory while warming up, which is repeated: blocks at 64x64 now keep: " in stderr
    assert "Traceback" not in stderr
    assert len(folder_of(job).read_metrics()) == 6

    too_small = ("--vram", "1MB", "--set", "network.linear=256")
    code, _, stderr = cli("train", str(job), "--device", "cpu", *too_small, "--force", "--fresh")
    assert code == 4, stderr
    assert "The plan agrees: load takes " in stderr and "What to do, best first:" in stderr
    said = "plafond: out of memory while loading the model; what was saved is intact: CUDA out of memory. Tried to"
    assert stderr.splitlines()[-1].startswith(said)
    assert "Traceback" not in stderr

    code, _, stderr = cli(*command, "--fresh", "--set", "train.gradient_checkpointing=true")
    assert code == 0, stderr
    assert "micro: Fits: the peak is " in stderr
    rows = folder_of(job).read_metrics()
    assert len(rows) == 6
    assert all(0 < row["allocated_peak"] <= row["predicted_peak"] for row in rows)

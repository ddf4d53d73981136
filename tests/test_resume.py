"""A run that is killed, interrupted or damaged goes on exactly where it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from conftest import JobMaker
from plafond.errors import OutOfSpaceError, ResumeMismatch
from plafond.training import run_folder
from plafond.training.run_folder import remove
from runs import KILLED, assert_same_weights, folder_of, losses, resume_state, run, run_and_die

LONG = {"steps": 30, "optimizer": "adamw8bit", "ema_config": {"use_ema": True, "ema_decay": 0.9}}
NETWORK = {"linear": 64, "linear_alpha": 64, "dropout": 0.2}
"""Large enough that bitsandbytes keeps 8-bit states, with dropout, which draws random numbers."""


def same_run(first: Path, second: Path, step: int) -> None:
    """Weights, optimizer, average and loss curve of two runs are bit-equal."""
    a, b = folder_of(first), folder_of(second)
    assert_same_weights(a.final, b.final)
    assert losses(a) == losses(b)
    one, two = resume_state(a, step), resume_state(b, step)
    for name in one["weights"]:
        assert torch.equal(one["weights"][name], two["weights"][name]), name
        assert torch.equal(one["ema"][name], two["ema"][name]), name
    flat_one, flat_two = flatten(one["optimizer"]), flatten(two["optimizer"])
    assert flat_one.keys() == flat_two.keys()
    for key, value in flat_one.items():
        same = (
            torch.equal(value, flat_two[key]) if isinstance(value, torch.Tensor) else value == flat_two[key]
        )
        assert same, key


def flatten(value: object, path: str = "") -> dict[str, object]:
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flatten(item, f"{path}/{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for index, item in enumerate(value) for k, v in flatten(item, f"{path}/{index}").items()}
    return {path: value}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


@pytest.mark.parametrize(
    "at",
    ["step:14", "after-rename:1", "half-written:4", "after-rename:4", "before-rename:5", "before-rename:6"],
)
def test_thirty_steps_equal_ten_and_twenty_with_a_kill_between(
    make_job: JobMaker, undisturbed: dict[str, Path], at: str
) -> None:
    # saves at 10, 20, 30: file 1 is the first milestone, still without a state; 4 is the second, 5 its state, 6 that
    # state's manifest
    sections = {"train": LONG, "network": NETWORK, "save": {"save_every": 10}}
    if "job" not in undisturbed:
        undisturbed["job"] = make_job("whole", **sections)
        run(undisturbed["job"])
    job = make_job("killed", **sections)
    assert run_and_die(job, at).returncode == KILLED
    done = losses(folder_of(job))[-1][0]
    assert done == {"step:14": 14, "after-rename:1": 10}.get(at, 20)
    run(job)
    assert [step for step, _ in losses(folder_of(job))] == list(range(1, 31))
    same_run(undisturbed["job"], job, 30)
    assert not [path for path in folder_of(job).path.rglob("*.tmp") if "20" not in path.name]


def test_sigterm_finishes_the_step_and_saves(make_job: JobMaker) -> None:
    sections = {"train": LONG, "network": NETWORK, "save": {"save_every": 100}}
    whole, job = make_job("whole", **sections), make_job("stopped", **sections)
    run(whole)
    stopped = run_and_die(job, "signal:13")
    assert stopped.returncode == 130
    assert stopped.stderr.endswith("plafond: stopped after step 13; the same command goes on from there\n")
    assert folder_of(job).resume.joinpath("step_000000013.json").exists()
    run(job)
    same_run(whole, job, 30)


def test_a_damaged_newest_save_is_named_and_the_one_before_is_used(
    make_job: JobMaker, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, job = make_job("whole", train={"steps": 15}), make_job("damaged", train={"steps": 15})
    run(whole)
    run(job, overrides=("train.steps=10",))
    folder = folder_of(job)
    newest = folder.resume / "step_000000010.pt"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    capfd.readouterr()
    run(job)
    shown = " ".join(capfd.readouterr().err.split())
    assert f"the saved state of step 10 is damaged: {newest}; the one before it is used" in shown
    assert "continuing after step 5" in shown
    assert_same_weights(folder_of(whole).final, folder.final)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("network.linear=8", "rank was 4 and is now 8"),
        ("train.optimizer=adamw8bit", "optimizer was adamw and is now adamw8bit"),
        ("network.network_kwargs.only_if_contains=[to_q]", "tensors was 52 and is now 6"),
    ],
)
def test_other_settings_than_the_saved_ones_are_refused(
    make_job: JobMaker, change: str, difference: str
) -> None:
    job = make_job()
    run(job)
    with pytest.raises(ResumeMismatch) as error:
        run(job, overrides=(change, "train.steps=8"))
    assert str(error.value) == (
        f"{folder_of(job).path} holds a run with other settings: {difference}; change the job back, or start anew"
        " with --fresh or another --name"
    )


def test_a_finished_job_with_more_steps_goes_on(make_job: JobMaker) -> None:
    whole, job = make_job("whole", train={"steps": 12}), make_job("more")
    run(whole)
    run(job)
    assert "already trained for 6 steps; raise train.steps to go on" in map(str, run(job).notes)
    run(job, overrides=("train.steps=12",))
    assert_same_weights(folder_of(whole).final, folder_of(job).final)


def test_milestones_stay_beside_the_final_file_and_only_ours_are_pruned(make_job: JobMaker) -> None:
    job = make_job(train={"steps": 10}, save={"save_every": 2, "max_step_saves_to_keep": 2})
    folder = folder_of(job)
    folder.path.mkdir(parents=True)
    mine = folder.path / "micro_favourite.safetensors"
    mine.write_bytes(b"mine")
    run(job)
    assert [step for step, _ in folder.milestones()] == [8, 10]
    assert_same_weights(folder.milestone(10), folder.final)
    assert mine.read_bytes() == b"mine"
    assert sorted(path.name for path in folder.resume.glob("*.pt")) == [
        "step_000000008.pt",
        "step_000000010.pt",
    ]


def test_fresh_sets_the_earlier_run_aside(make_job: JobMaker) -> None:
    job = make_job()
    run(job)
    run(job, fresh=True)
    folder = folder_of(job)
    (aside,) = [path for path in folder.path.parent.iterdir() if path != folder.path]
    assert aside.name.startswith("micro-before-")
    assert_same_weights(aside / "micro.safetensors", folder.final)


def test_a_full_disk_ends_the_run_with_a_sentence_and_the_last_save_intact(
    make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, job = make_job("whole", train={"steps": 10}), make_job("full", train={"steps": 10})
    run(whole)
    folder = folder_of(job)
    sync = run_folder._sync

    def full(path: Path) -> None:
        if "000000010" in path.name:
            raise OSError(28, "No space left on device")
        sync(path)

    monkeypatch.setattr(run_folder, "_sync", full)
    with pytest.raises(OutOfSpaceError) as error:
        run(job)
    assert str(error.value) == (
        f"the disk is full: {folder.milestone(10)} was not written; the last complete save is intact"
    )
    assert not list(folder.path.rglob("*.tmp"))
    monkeypatch.undo()
    run(job)
    assert_same_weights(folder_of(whole).final, folder.final)


def test_a_torn_last_line_of_metrics_is_dropped(make_job: JobMaker) -> None:
    job = make_job()
    run(job)
    folder = folder_of(job)
    with folder.metrics.open("a") as file:
        file.write('{"step": 7, "lo')
    run(job, overrides=("train.steps=8",))
    assert [json.loads(line)["step"] for line in folder.metrics.read_text().splitlines()] == list(range(1, 9))


def test_a_run_that_ai_toolkit_began_goes_on_from_its_newest_lora(
    make_job: JobMaker, capfd: pytest.CaptureFixture[str]
) -> None:
    job = make_job(save={"save_every": 3})
    run(job, overrides=("train.steps=3",))
    folder = folder_of(job)
    remove(folder.resume)
    folder.final.unlink()
    capfd.readouterr()
    run(job)
    shown = capfd.readouterr().err
    assert "continuing after step 3 from micro_000000003.safetensors; the optimizer starts anew" in shown
    assert [step for step, _ in losses(folder)] == [1, 2, 3, 4, 5, 6]

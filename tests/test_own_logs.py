"""What plafond's own runs leave in their logs when memory runs out, as the doctor reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import plafond
from conftest import JobMaker
from plafond.advice.diagnose import diagnose
from plafond.memory.residence import counting
from plafond.memory.virtual import VirtualGpu
from plafond.training.step import Stepper
from runs import folder_of


class Failing(VirtualGpu):
    """A GPU whose memory is all taken as soon as a stage of a run begins.

    Args:
        stage: its name.
        times: it begins so often before that.
    """

    def __init__(self, stage: str, times: int = 1):
        super().__init__(2**40)
        self.wanted, self.left, self.before = stage, times, ""

    def grown(self, size: int) -> None:
        if self.stage == self.wanted and self.before != self.wanted:
            self.left -= 1
        self.before = self.stage
        if self.left <= 0:
            self.ceiling = 0
        super().grown(size)


PLACES = [
    ("caching latents", 1, "cache_latents", "while caching latents"),
    ("encoding text", 1, "encode_text", "while encoding text"),
    ("loading", 1, "load", "while loading the model"),
    ("forward", 1, "train", "at step 1, on a batch of 2 at 64x64"),
    ("backward", 2, "train", "at step 2, on a batch of 2 at 64x64"),
    ("preview", 1, "preview", "in the previews after step 0"),
    ("preview", 2, "preview", "in the previews after step 2"),
]


@pytest.mark.parametrize(("stage", "times", "phase", "place"), PLACES)
def test_a_run_says_where_it_ran_out_of_memory(
    make_job: JobMaker, tmp_path: Path, stage: str, times: int, phase: str, place: str
) -> None:
    sampled = phase == "preview"
    job = make_job(
        "failing",
        train={"steps": 2, "disable_sampling": not sampled, "optimizer": "adamw"},
        sample={"sample_every": 2},
    )
    nothing_there_yet = f"plafond.latent_cache_dir={tmp_path / 'cache'}"
    loaded = plafond.load_job(job, overrides=[nothing_there_yet])
    with counting(Failing(stage, times)), pytest.raises(torch.OutOfMemoryError):
        plafond.train(loaded, device="cpu", fresh=True, recover=False)
    log = folder_of(job).log.read_bytes()
    last = log.splitlines()[-1].decode()
    assert f" OutOfMemoryError: {place}: CUDA out of memory. Tried to allocate" in last
    found = diagnose(log)
    assert (found.memory, found.phase, found.cause) == (True, phase, "does_not_fit"), last
    # on a terminal there is the sentence of the error, in the language of its reader
    for said in (f"plafond: out of memory {place}; what was saved", last):
        assert diagnose(said.encode()).phase == phase


def test_an_update_is_named_too(make_job: JobMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    monkeypatch.setattr(Stepper, "update", failing)
    job = make_job("failing", train={"steps": 2, "disable_sampling": True})
    with pytest.raises(torch.OutOfMemoryError):
        plafond.train(plafond.load_job(job), device="cpu", recover=False)
    log = folder_of(job).log.read_bytes()
    assert b"in the update of step 1: CUDA" in log and diagnose(log).phase == "train"


def test_of_several_runs_in_a_log_the_last_one_counts(make_job: JobMaker) -> None:
    job = make_job("again", train={"steps": 2, "disable_sampling": True})
    with counting(Failing("forward")), pytest.raises(torch.OutOfMemoryError):
        plafond.train(plafond.load_job(job), device="cpu", recover=False)
    log = folder_of(job).log
    assert diagnose(log.read_bytes()).failed
    plafond.train(plafond.load_job(job), device="cpu")
    assert log.read_text().count("# Running job: again on cpu, plafond ") == 2
    assert not diagnose(log.read_bytes()).failed


def test_a_full_run_s_log_names_no_failure(make_job: JobMaker, tmp_path: Path) -> None:
    job = make_job("fine", train={"steps": 2, "disable_sampling": False})
    plafond.train(plafond.load_job(job), device="cpu")
    found = diagnose(folder_of(job).log.read_bytes())
    assert not found.failed and not found.memory

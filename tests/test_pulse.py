"""What a run says about the one before it that was killed, and when main memory becomes scarce."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from conftest import JobMaker
from plafond.language.said import Said
from plafond.training import pulse
from plafond.training.pulse import FILE, Beat, Pulse, end_of, take
from runs import folder_of, run

GIB = 2**30
LAST = Beat(step=7, free=20 * GIB, total=64 * GIB, held=30 * GIB, kills=2, booted=1000.0)


@pytest.mark.parametrize(
    ("last", "now", "said"),
    [
        ({}, {}, "it was killed (20.00 GiB of main memory were left then, and 30.00 GiB were its own)"),
        ({}, {"kills": 3}, "the system killed it because main memory was full"),
        ({"free": GIB}, {}, "the system probably killed it because main memory was full"),
        ({"free": GIB, "kills": None}, {"kills": None}, "the system probably killed it"),
        ({}, {"kills": 0, "booted": 5000.0}, "the machine has been restarted since"),
    ],
)
def test_how_a_run_ended(last: dict[str, int], now: dict[str, int], said: str) -> None:
    sentence = str(end_of(replace(LAST, **last), replace(LAST, **now)))
    assert sentence.startswith("the run before this one ended without a word some time after step 7: " + said)


def test_a_run_that_died_is_told_of_once(make_job: JobMaker) -> None:
    job = make_job(train={"steps": 2})
    run(job)
    folder = folder_of(job)
    left = folder.path / FILE
    assert not left.exists(), "it ended by itself"
    left.write_text(json.dumps(asdict(replace(take(1), kills=-1))))
    run(job, overrides=("train.steps=3",))
    run(job, overrides=("train.steps=4",))
    assert folder.log.read_text().count("ended without a word some time after step 1") == 1


def test_scarce_main_memory_is_said_once_and_the_state_saved(
    make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "EVERY", 0.0)
    monkeypatch.setattr(
        pulse, "take", lambda step: replace(LAST, step=step, free=GIB // 5 if step > 1 else GIB)
    )
    job = make_job(train={"steps": 4})
    run(job)
    folder = folder_of(job)
    assert (
        folder.log.read_text().count("only 0.20 GiB of main memory are left, and 30.00 GiB are this run's")
        == 1
    )
    assert sorted(path.name for path in folder.resume.glob("*.pt")) == [
        "step_000000002.pt",
        "step_000000004.pt",
    ]


def test_a_file_that_is_not_ours_is_no_matter(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("[1, 2")
    said: list[Said] = []
    with Pulse(tmp_path, said.append) as beating:
        assert json.loads((tmp_path / FILE).read_text())["step"] == 0
        assert not beating.beat(1), "it is not time yet"
    assert not said and not list(tmp_path.iterdir())

"""The command line as a user meets it: fast, quiet, one sentence for each mistake."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from conftest import JobMaker
from plafond.plan import models as listed
from runs import folder_of


def plafond(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "plafond", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("code", ["import plafond", "import plafond.cli", "import plafond; plafond.load_job"])
def test_nothing_heavy_is_imported(code: str) -> None:
    heavy = "torch", "diffusers", "transformers", "numpy", "PIL", "matplotlib", "pydantic"
    check = f"{code}; import sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_help_names_every_command_and_the_exit_codes() -> None:
    shown = " ".join(plafond("--help").stdout.split())
    for command in ("train", "check", "demo", "models", "calibrate", "schema"):
        assert command in shown
    assert "Exit codes: 0 done" in shown


def test_models_lists_weights_and_cards() -> None:
    known = {base.title for _, base in listed.published()}
    assert {"FLUX.1-dev", "Flex.1-alpha", "Flex.2-preview", "Stable Diffusion XL", "Z-Image"} <= known
    rows = json.loads(plafond("models", "--json").stdout)["models"]
    assert {row["title"] for row in rows} == known
    for row in rows:
        # some models keep a few layers in float32
        assert 1 <= row["weights_bytes"]["bf16"] / (2 * row["transformer_parameters"]) < 1.01
        peaks = [fit["peak_bytes"] for fit in row["lora"] if fit["weights"] == "bf16"]
        # one of two experts at a time is on the card
        assert row["weights_bytes"]["bf16"] / 2 < min(peaks) and peaks == sorted(peaks)
    assert max(map(len, plafond("models").stdout.split("\n\n")[0].splitlines())) <= 100
    for size, card in ((23 * 2**30, 24), (30 * 2**30, 32), (2**40, None)):
        chosen = listed.smallest_card(size)
        assert (chosen and chosen.marketed_gb) == card


def test_the_table_of_models_is_what_plans_say(monkeypatch: pytest.MonkeyPatch) -> None:
    ((family, base),) = [one for one in listed.published() if one[1].arch == "sd15"]
    rows = listed.table()
    assert {listed.identity(*one) for one in listed.published()} == rows.keys()
    row = rows[listed.identity(family, base)]
    monkeypatch.setattr(listed, "SIDES", (512,))
    monkeypatch.setattr(listed, "CARDS", ("bf16",))
    fresh = listed.planned(family, base)
    assert fresh["weights_bytes"] == row["weights_bytes"]
    (now,), then = fresh["lora"], row["lora"][0]
    assert now == {**then, "peak_bytes": now["peak_bytes"]}
    assert abs(now["peak_bytes"] / then["peak_bytes"] - 1) < 0.005


def test_models_of_no_known_name() -> None:
    done = plafond("models", "zimag")
    assert done.returncode == 2
    assert done.stderr == "plafond: no family or architecture named 'zimag'; did you mean zimage?\n"


def test_train_prints_where_everything_is_and_nothing_else(make_job: JobMaker) -> None:
    job = make_job(train={"disable_sampling": False})
    done = plafond("train", job, "--device", "cpu")
    folder = folder_of(job)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "micro: 6 steps done"
    assert lines[1] == f"  LoRA     {folder.final}"
    assert lines[2].startswith("  loss     ")
    assert lines[3:] == [
        f"  pictures {folder.path / 'before-after.png'} (before and after)",
        f"  curve    {folder.path / 'loss.png'}",
    ]
    assert Image.open(folder.path / "loss.png").width > 500
    for line in done.stderr.splitlines():
        assert line.startswith(
            ("loading ", "micro: 5 pictures", "step ", "latents", "captions", "previews")
        ), line
    # what the libraries had to say went to the log
    assert "torchvision" in folder.log.read_text() or "Loading weights" in folder.log.read_text()


def test_json_result(make_job: JobMaker) -> None:
    job = make_job()
    done = plafond("train", job, "--device", "cpu", "--json", "--set", "train.steps=2", "--name", "other")
    (result,) = json.loads(done.stdout)["runs"]
    assert result["name"] == "other" and result["steps"] == 2
    assert [Path(path).name for path in result["files"]] == ["other.safetensors"]


def test_mistakes_are_one_sentence_and_exit_code_2(make_job: JobMaker, tmp_path: Path) -> None:
    job = make_job()
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = [
        (("train", tmp_path / "nojob.yaml"), "nojob.yaml"),
        (("train", job, "--set", "train.stps=3"), "did you mean train.steps?"),
        (("train", job, "--set", "train.steps=many"), "expected a whole number"),
        (
            ("train", job, "--set", "model.arch=hidream", "--set", "model.is_flux=false"),
            "is not supported yet",
        ),
        (("train", job, "--set", f"datasets.0.folder_path={tmp_path / 'gone'}"), "no such folder"),
        (("train", job, "--set", f"datasets.0.folder_path={empty}"), "empty"),
        (("train", job, "--set", f"model.name_or_path={empty}"), "has no model_index.json"),
        (("train", job, "--device", "gpu"), "expected auto, cpu, cuda or cuda:N"),
    ]
    for arguments, expected in cases:
        done = plafond(*arguments)
        assert done.returncode == 2, arguments
        assert expected in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
        errors = [line for line in done.stderr.splitlines() if line.startswith("plafond: ")]
        assert len(errors) == 1, done.stderr


def test_a_misspelt_key_is_a_warning_and_an_error_when_strict(make_job: JobMaker, tmp_path: Path) -> None:
    job = make_job(train={"bacth_size": 3})
    relaxed = plafond("train", job, "--device", "cpu", "--set", "train.steps=1")
    assert relaxed.returncode == 0
    assert "train.bacth_size: unknown key, ignored; did you mean batch_size?" in relaxed.stderr
    strict = plafond("train", job, "--strict")
    assert strict.returncode == 2
    assert "train.bacth_size: unknown key; did you mean batch_size?" in strict.stderr


def test_a_broken_picture_is_named_and_skipped(make_job: JobMaker, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    for path in filter(Path.is_file, photos.iterdir()):
        (folder / path.name).write_bytes(path.read_bytes())
    good = (folder / "0.png").read_bytes()
    (folder / "0.png").write_bytes(good[: len(good) - 400])
    done = plafond("train", make_job(datasets={"folder_path": str(folder)}), "--device", "cpu")
    assert done.returncode == 0
    assert "0.png" in done.stderr
    assert "  note     " in done.stdout and "0.png" in done.stdout


def test_two_runs_do_not_share_a_folder(make_job: JobMaker) -> None:
    job = make_job()
    folder = folder_of(job)
    with folder.locked():
        done = plafond("train", job, "--device", "cpu")
    assert done.returncode == 2
    assert done.stderr.endswith(
        f"plafond: {folder.path} is in use by another plafond train; stop it or choose another --name\n"
    )


def test_a_live_terminal_shows_progress_and_none_of_the_libraries_chatter(make_job: JobMaker) -> None:
    job = make_job(train={"cache_text_embeddings": False, "optimizer": "adamw8bit"})
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "plafond", "train", str(job), "--device", "cpu"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
    os.close(ours)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    lines = {line.split("\u2501")[0].strip("\u2578\u257a ") for line in re.split(r"[\r\n]+", text)}
    allowed = (
        "",
        "loading the",
        "training",
        "latents",
        "captions",
        "previews",
        "micro: ",
        "LoRA",
        "loss",
        "curve",
    )
    assert all(line.startswith(allowed[1:]) or not line for line in lines), lines
    assert "6/6  loss" in text

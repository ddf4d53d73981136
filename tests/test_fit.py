"""Fitting: what is written fits, says what it changed, changes nothing else, and nothing without need."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

import plafond
from conftest import JobMaker
from plafond.cli import app
from plafond.errors import JobError, UsageError
from plafond.job.editing import edit
from plafond.job.reading import job_of
from plafond.memory.gpus import Ceiling
from plafond.plan.changes import value_at
from plafond.plan.fit import Fitted, Fitter
from plafond.plan.forecast import Forecaster, Plan
from plafond.plan.pace import work

MIB = 2**20

WRITTEN = """\
# my first job
job: extension
config:
  name: micro   # becomes the folder's name
  process:
    - type: sd_trainer
      training_folder: {out}
      network:
        type: lora
        rank: 16  # enough for a cat

      datasets:
        - folder_path: {photos}
          resolution: [ 32, 64 ]  # both sizes
          cache_latents_to_disk: false
      train:
        batch_size: 4      # as in the guide
        steps: 2
        lr: 1e-3
        gradient_checkpointing: {checkpointing}  # try this
        noise_scheduler: 'flowmatch'
        optimizer: "adamw"
        dtype: fp32
        # disable_sampling: true

      model: {{name_or_path: {model}, is_flux: true}}
      sample:
        width: 128
        height: 128
        sample_steps: 2
        prompts:
          - >-
            a thing
            on a table
meta: {{version: '1.0'}}
"""


@pytest.fixture
def job(tmp_path: Path, micro_checkpoint: Path, photos: Path) -> Path:
    return write(tmp_path, micro_checkpoint, photos)


def write(folder: Path, model: Path, photos: Path, checkpointing: str = "false") -> Path:
    path = folder / "job.yaml"
    text = WRITTEN.format(out=folder / "out", photos=photos, model=model, checkpointing=checkpointing)
    path.write_text(text, encoding="utf-8")
    return path


def plan_of(job: plafond.job.schema.Job | Any, size: int) -> Plan:
    (process,) = job.processes
    return Forecaster(process, Ceiling(size, 0, "test", None), virtual=True).plan()


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["fit", *map(str, arguments), "--device", "cpu"])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def fit(path: Path, size: int, **options: Any) -> Fitted:
    return plafond.fit(plafond.load_job(path), vram=f"{size}B", device="cpu", **options)


CEILINGS = {False: (4.2, 3.0, 2.4, 1.4, 1.2), True: (2.4, 1.8, 1.2)}
"""MiB, by whether changes of quality are allowed."""


@pytest.mark.parametrize(("checkpointing", "quality"), list(product(("false", "true"), (False, True))))
def test_what_it_writes_fits_and_is_minimal(
    tmp_path: Path, micro_checkpoint: Path, photos: Path, checkpointing: str, quality: bool
) -> None:
    path = write(tmp_path, micro_checkpoint, photos, checkpointing)
    seen = set()
    for size in (round(size * MIB) for size in CEILINGS[quality]):
        fitted = fit(path, size, allow_quality=quality)
        seen.add(fitted.fits)
        if not fitted.fits:
            assert fitted.missing, size
            continue
        changed = job_of(fitted.text, path)
        plan = plan_of(changed, size)
        assert plan.verdict == "fits", size
        assert quality or all(step.quality == "same" for step in fitted.steps)
        # the file differs in what it says, and in nothing else
        values = {key: new for step in fitted.steps for key, (_, new) in step.change.items()}
        assert all(value_at(changed.processes[0], key) == new for key, new in values.items())
        assert edit(fitted.job.text, 0, values) == fitted.text
        # each change alone taken back
        for step in fitted.steps:
            rest = {key: new for other in fitted.steps if other is not step
                    for key, (_, new) in other.change.items()}  # fmt: skip
            without = plan_of(job_of(edit(fitted.job.text, 0, rest), path), size)
            assert without.verdict == "oom" or work(without) > work(plan), (size, step.id)
    assert True in seen


def test_only_touched_lines_differ(job: Path) -> None:
    code, out = run(job, "--vram", "2.4MB")
    assert code == 0
    old, new = (path.read_text().splitlines() for path in (job, job.with_name("job.fit.yaml")))
    assert [line for line in old if line not in new] == ["        gradient_checkpointing: false  # try this"]
    assert "        gradient_checkpointing: auto  # try this" in new
    assert "-        gradient_checkpointing: false  # try this" in out.splitlines()
    assert job.read_text() == "\n".join(old) + "\n", "the job itself is never written to"


def test_what_it_writes_runs(job: Path) -> None:
    size = round(2.4 * MIB)
    code, _ = run(job, "--vram", size)
    assert code == 0
    fitted = plafond.load_job(job.with_name("job.fit.yaml"))
    (result,) = plafond.train(fitted, device="cpu", ceiling=size)
    assert result.steps == 2


def test_a_job_that_fits_is_left_alone(tmp_path: Path, micro_checkpoint: Path, photos: Path) -> None:
    path = write(tmp_path, micro_checkpoint, photos, "true")
    target = tmp_path / "same.yaml"
    code, out = run(path, "--vram", "8MB")
    assert code == 0
    assert "gradient_checkpointing: auto would make steps" in out and "Nothing was written." in out
    assert not path.with_name("job.fit.yaml").exists()
    assert run(path, "--vram", "8MB", "-o", target)[0] == 0
    assert target.read_bytes() == path.read_bytes()


def test_kept_settings_stay(job: Path) -> None:
    code, out = run(job, "--vram", "2.4MB", "--keep", "gradient_checkpointing", "--keep", "train.batch_size",
                    "--json")  # fmt: skip
    found = json.loads(out)
    changed = {key for step in found["changes"] for key in step["change"]}
    assert not changed & {"train.gradient_checkpointing", "train.batch_size", "plafond.activation_plan"}
    assert (code == 0) == found["fits"]
    code, out = run(job, "--vram", "2.4MB", "--keep", "train", "--keep", "plafond")
    assert code == 3
    assert "without --keep train" in out
    assert not job.with_name("job.fit.yaml").exists()
    with pytest.raises(UsageError, match=r"--keep train\.batchsize: no setting has that name; did you mean"):
        run(job, "--vram", "2.4MB", "--keep", "train.batchsize")
    with pytest.raises(
        UsageError, match=r"--keep sample\.lr: no setting has that name; did you mean train\.lr\?"
    ):
        run(job, "--vram", "2.4MB", "--keep", "sample.lr")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("batch_size", "batch_size"),
        ("config.process.0.train.batch_size", "train.batch_size"),
        ("datasets.0.resolution", "datasets.resolution"),
        ("network.rank", "network.linear"),
        ("rank", "linear"),
        ("sample", "sample"),
    ],
)
def test_what_is_kept_may_be_written_as_in_the_file(job: Path, written: str, kept: str) -> None:
    fitter = Fitter(plafond.load_job(job), Ceiling(MIB, 0, "test", None), virtual=True, keep=[written])
    assert fitter.keep == {kept}


def test_what_is_only_written_out_may_be_kept(job: Path) -> None:
    fitted = fit(job, round(1.2 * MIB), allow_quality=True, keep=["model.quantize_te"])
    assert fitted.fits
    (step,) = [step for step in fitted.steps if step.id == "quantize"]
    assert step.change["model.quantize_te"] == (False, False)


def test_what_would_be_enough(job: Path) -> None:
    code, out = run(job, "--vram", "1.2MB")
    assert code == 3 and "It would fit with --allow-quality, by " in out
    code, out = run(job, "--vram", "1MB", "--allow-quality", "--set", "network.linear=256")
    assert code == 3 and "No change that is known would be enough." in out


def test_settings_of_the_command_line_are_written(job: Path) -> None:
    code, _ = run(job, "--vram", "2.4MB", "--set", "network.linear=8", "--set", "train.steps=7")
    assert code == 0
    (process,) = plafond.load_job(job.with_name("job.fit.yaml")).processes
    assert process.network is not None
    assert (process.network.linear, process.train.steps) == (8, 7)
    assert "rank: 8  # enough for a cat" in job.with_name("job.fit.yaml").read_text()


def test_json_jobs(make_job: JobMaker, tmp_path: Path) -> None:
    (process,) = plafond.load_job(
        make_job(train={"gradient_checkpointing": False, "batch_size": 4})
    ).processes
    data = YAML(typ="safe").load(tmp_path / "micro.yaml")
    path = tmp_path / "micro.json"
    path.write_text(json.dumps(data, indent="\t"), encoding="utf-8")
    size = round(0.75 * plan_of(plafond.load_job(path), MIB).peak.device_bytes)
    assert run(path, "--vram", size)[0] == 0
    fitted = plafond.load_job(tmp_path / "micro.fit.json")
    assert plan_of(fitted, size).verdict == "fits"
    old, new = (file.read_text().splitlines() for file in (path, tmp_path / "micro.fit.json"))
    assert len([line for line in old if line not in new]) <= 3
    assert process != fitted.processes[0]


def test_several_processes_and_anchors(job: Path) -> None:
    text = job.read_text()
    start, stop = text.index("    - type"), text.index("meta:")
    process = text[start:stop]
    text = text[:stop] + process + text[stop:]
    job.write_text(text)
    code, out = run(job, "--vram", "2.4MB", "--json")
    assert code == 0
    assert {step["process"] for step in json.loads(out)["changes"]} == {0, 1}
    # what two processes share is not changed for one of them
    plan = "      plafond: &mine {}\n"
    shared = process.replace("      train:\n", f"{plan}      train: &ours\n")
    start = process.index("      train:\n")
    aliases = "      plafond: *mine\n      train: *ours\n"
    other = process[:start] + aliases + process[process.index("      model:") :]
    job.write_text(text[: text.index("    - type")] + shared + other + "meta: {}\n")
    fitted = fit(job, round(2.4 * MIB))
    processes = job_of(fitted.text, job).processes
    assert processes[0].train == processes[1].train == plafond.load_job(job).processes[0].train
    assert not fitted.fits
    assert "job.yaml does not let itself be changed for " in str(fitted.missing[-1])


def test_settings_that_cannot_be_written_are_refused(job: Path) -> None:
    loaded = plafond.load_job(job, overrides=["datasets.0.resolution=[48]", "sample.prompts=[a, b]"])
    with pytest.raises(JobError, match="change the file by hand"):
        plafond.fit(loaded, vram="3MB", device="cpu")


def test_previews_in_tiles_are_the_first_thing_where_only_they_are_too_large(
    tmp_path: Path, micro_checkpoint: Path, photos: Path
) -> None:
    path = write(tmp_path, micro_checkpoint, photos, "true")
    path.write_text(path.read_text().replace("batch_size: 4", "batch_size: 1").replace(": 128", ": 256"))
    before = plan_of(plafond.load_job(path), 2**40)
    assert before.peak.phase == "preview"
    fitted = fit(path, before.peak.device_bytes - 1, keep=["train"])
    assert [step.change for step in fitted.steps] == [{"plafond.tiled_previews": (False, True)}]
    (after,) = fitted.after
    (result,) = plafond.train(
        job_of(fitted.text, path), device="cpu", ceiling=after.peak.device_bytes, recover=False
    )
    assert result.sheet is not None

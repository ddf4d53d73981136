import json
import sys

import pytest
import typer
from typer.testing import CliRunner

from job_files import CORPUS, JOB, change, write
from plafond.cli.check import check
from plafond.cli.schema import schema
from plafond.job.json_schema import json_schema


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(check)
    app.command()(schema)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_good_job(run, tmp_path):
    (tmp_path / "photos").mkdir()
    write(tmp_path)
    result = run("check", "job.yaml")
    assert result.exit_code == 0
    assert result.output == (
        "job.yaml: fox\n"
        "  model     black-forest-labs/FLUX.1-dev (flux)\n"
        "  trains    lora of rank 16, adamw8bit at 0.0001, bfloat16\n"
        "  steps     2000, batch 1, gradient checkpointing on\n"
        "  dataset   photos: resolution 512, 768\n"
        "  previews  2 every 100 steps\n"
    )


def test_a_missing_folder_is_a_warning(run, tmp_path):
    write(tmp_path)
    result = run("check", "job.yaml")
    assert result.exit_code == 0
    assert "  warning   job.yaml, line 14: datasets.0.folder_path: no such folder: photos\n" in result.output


def test_a_bad_job_among_good_ones(run, tmp_path):
    write(tmp_path)
    write(tmp_path, change("steps: 2000", "steps: 0"), "bad.yaml")
    result = run("check", "bad.yaml", "job.yaml")
    assert result.exit_code == 2
    assert result.output.startswith(
        "  error     bad.yaml, line 19: train.steps: expected a whole number of at least 1, found 0\n"
        "job.yaml: fox\n"
    )


def test_json(run, tmp_path):
    write(tmp_path, change("lr: 1e-4", "lrr: 1e-4"))
    result = run("check", "job.yaml", "gone.yaml", "--json")
    assert result.exit_code == 2
    good, bad = json.loads(result.output)["jobs"]
    assert good == {
        "file": "job.yaml",
        "ok": True,
        "name": "fox",
        "arch": "flux",
        "warnings": [
            "job.yaml, line 20: train.lrr: unknown key, ignored; did you mean lr?",
            "job.yaml, line 14: datasets.0.folder_path: no such folder: photos",
        ],
        "error": None,
        "errors": [],
    }
    assert (bad["ok"], bad["error"]) == (False, "gone.yaml: no such file")
    assert bad["errors"] == [bad["error"]]


def test_all_mistakes_of_a_job_at_once_and_each_once(run, tmp_path):
    text = change("steps: 2000", "steps: 0\n        gradient_checkpointing: mabye")
    text = text.replace("name_or_path:", "low_vram: perhaps\n        name_or_path:")
    write(tmp_path, text)
    result = run("check", "job.yaml", "--json")
    assert result.exit_code == 2
    (found,) = json.loads(result.output)["jobs"]
    keys = [sentence.split(": ")[1] for sentence in found["errors"]]
    assert keys == ["train.steps", "train.gradient_checkpointing", "model.low_vram"]
    assert run("check", "job.yaml").output.count("  error     job.yaml, line ") == 3


def test_strict(run, tmp_path):
    write(tmp_path, change("lr: 1e-4", "lrr: 1e-4"))
    result = run("check", "job.yaml", "--strict")
    assert result.exit_code == 2
    assert result.output == "  error     job.yaml, line 20: train.lrr: unknown key; did you mean lr?\n"


def test_settings_and_name(run, tmp_path):
    write(tmp_path)
    result = run("check", "job.yaml", "--set", "train.steps=3", "--set", "network.rank=4", "--name", "hare")
    assert result.output.startswith("job.yaml: hare\n")
    assert "lora of rank 4" in result.output and "steps     3," in result.output


def test_the_examples_fit_the_width(run):
    result = run("check", *CORPUS)
    assert result.exit_code == 0
    assert all(len(line) <= 100 for line in result.output.splitlines() if str(CORPUS[0].parent) not in line)


def test_schema(run):
    result = run("schema")
    assert result.exit_code == 0 and json.loads(result.output) == json_schema()


def test_reading_a_job_needs_no_torch(tmp_path):
    import subprocess

    code = (
        "import sys, plafond.cli.check, plafond.cli.schema, plafond.job.reading\n"
        f"plafond.job.reading.load_job({str(write(tmp_path, JOB))!r})\n"
        "assert not {'torch', 'diffusers', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

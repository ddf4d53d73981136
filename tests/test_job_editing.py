"""Editing a job file: the value is the one that is asked for, and no other character moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from job_files import CORPUS, JOB
from plafond.job.editing import EditError, edit
from plafond.job.reading import job_of
from plafond.plan.changes import changed, value_at

EDITS: list[dict[str, Any]] = [
    {"train.batch_size": 3},
    {"train.gradient_checkpointing": "auto"},
    {"network.linear": 8},
    {"model.layer_offloading": True},
    {"plafond.activation_plan": "offload"},
    {"sample.height": 256},
    {"train.optimizer": "adafactor", "train.gradient_accumulation": 2},
]


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
@pytest.mark.parametrize("values", EDITS, ids=lambda values: next(iter(values)))
def test_the_corpus_can_be_edited(path: Path, values: dict[str, Any]) -> None:
    text = path.read_text(encoding="utf-8")
    before = job_of(text, path, env={"HF_TOKEN": "x"}).processes[0]
    if before.network is None:
        values = {key: value for key, value in values.items() if not key.startswith("network.")}
    new = edit(text, 0, values)
    assert job_of(new, path, env={"HF_TOKEN": "x"}).processes[0] == changed(before, values)
    old_lines, new_lines = text.splitlines(), new.splitlines()
    assert len([line for line in old_lines if line not in new_lines]) <= len(values)
    assert len(new_lines) - len(old_lines) <= len(values) + 1


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        ("linear: 16", "linear: 8", {"network.linear": 8}),
        ("linear: 16", "rank: 8", {"network.linear": 8}),
        ("steps: 2000", "steps: &n 20", {"train.steps": 7}),
        ("resolution: [512, 768]", "resolution:\n            - 512 # s\n            - 768", {}),
        ("steps: 2000", "gradient_accumulation_steps: 4", {"train.gradient_accumulation": 2}),
        ("quantize: false", "quantize:", {"model.quantize": True}),
        ("meta:", "# the end\n\nmeta:", {"sample.guidance_scale": 3.5}),
    ],
)
def test_ways_to_write(old: str, new: str, values: dict[str, Any]) -> None:
    text = JOB.replace(old, new)
    values = values or {"datasets.0.resolution": [512]}
    for newline in ("\n", "\r\n"):
        found = edit(text.replace("\n", newline), 0, values)
        (process,) = job_of(found, Path("job.yaml")).processes
        for key, value in values.items():
            assert value_at(process, key) == value
        assert ("\n" in found.replace("\r\n", "")) == (newline == "\n")


def test_a_list_on_several_lines_gains_and_loses_items() -> None:
    place = "          resolution: [512, 768]\n"
    assert place in JOB
    lines = [
        "          resolution:  # buckets",
        "            - 512 # small",
        "            # large ones",
        "            - 768",
    ]
    text = JOB.replace(place, "\n".join(lines) + "\n")
    for values, expected in (
        ([512, 768, 1024], [*lines, "            - 1024"]),
        ([256, 512], [lines[0], "            - 256", lines[1], lines[2]]),
        ([512, 640, 768], [*lines[:2], "            - 640", *lines[2:]]),
        ([1536], [lines[0], "            - 1536", lines[2]]),
    ):
        found = edit(text, 0, {"datasets.0.resolution": values})
        assert found == text.replace("\n".join(lines), "\n".join(expected))
        (process,) = job_of(found, Path("job.yaml")).processes
        assert list(process.datasets[0].resolution) == values
    with pytest.raises(EditError, match="several lines"):
        edit(text, 0, {"datasets.0.resolution": [768, 512]})


def test_json_keeps_its_layout() -> None:
    process = {"type": "sd_trainer", "model": {"name_or_path": "x", "arch": "flux"}, "train": {"steps": 3}}
    data = {"job": "extension", "config": {"name": "a", "process": [process]}}
    text = json.dumps(data, indent="\t").replace("{\n", "{ // a comment\n", 1)
    found = edit(text, 0, {"train.batch_size": 2, "train.steps": 4}, suffix=".jsonc")
    assert found == text.replace('"steps": 3', '"steps": 4,\n\t\t\t\t\t"batch_size": 2')
    (done,) = job_of(found, Path("job.jsonc")).processes
    assert (done.train.batch_size, done.train.steps) == (2, 4)


def test_what_cannot_be_edited_is_an_error() -> None:
    for values in ({"datasets.7.resolution": [512]}, {"train": 3}):
        with pytest.raises(EditError):
            edit(JOB, 0, values)

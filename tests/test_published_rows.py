"""How published rows become jobs: units, metrics, layers, and what cannot be mapped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))

from plafond.data.buckets import bucket_for  # noqa: E402
from plafond.families import family_for  # noqa: E402
from plafond.job.reading import load_job  # noqa: E402
from published_rows import GB, GIB, Case, read_cases  # noqa: E402

CASES = {case.id: case for case in read_cases()}
COMPARABLE = [case for case in CASES.values() if not case.needs and not case.unknown]


def test_every_row_is_there_and_has_a_source() -> None:
    files = sorted((BENCH / "data").glob("*_cases.jsonl"))
    counts = [len(path.read_text(encoding="utf-8").splitlines()) for path in files]
    assert [path.stem.partition("_")[0] for path in files] == ["flux", "qwen", "sdxl", "wan", "zimage"]
    assert counts == [31, 32, 9, 68, 34]
    assert len(CASES) == sum(counts)
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(json.loads(line)["confidence"] in ("exact", "good") for line in lines)
    assert all(case.source.startswith("https://") for case in CASES.values())


def test_what_is_compared() -> None:
    figures = [case.id for case in COMPARABLE if case.figure and case.outcome == "fits"]
    assert len(figures) == 32
    assert sum(CASES[name].quantised for name in figures) == 13
    verdicts = {case.id: case.outcome for case in COMPARABLE if case.figure is None or case.outcome == "oom"}
    assert [name for name, outcome in verdicts.items() if outcome == "oom"] == [
        "st-seg-qwen-bf16-none-l40s",
        "st-seg-wan13b-bf16-none-l40s",
        "st-seg-wan14b-bf16-none-h100",
        "st-seg-wan14b-bf16-none-l40s",
        "dp-152-wan-i2v480-63f-noswap",
    ]
    assert len(verdicts) == 17


def test_clips() -> None:
    case = CASES["dp-152-wan-i2v480-63f-noswap"]
    assert (case.width, case.height, case.frames, case.plain) == (512, 512, 61, True)
    assert case.process["model"]["arch"] == "wan21_i2v:14b480p"
    streamed = CASES["st-seg-wan14b-bf16-layer-h100"]
    assert (streamed.width, streamed.height, streamed.frames) == (480, 480, 81)
    assert streamed.process["model"]["layer_offloading"] is True
    assert streamed.figure is not None
    assert (streamed.figure.kind, streamed.figure.other) == ("allocated", None)
    assert CASES["ds-1016-animate-81f-96gb"].needs[0] == "the model Wan-AI/Wan2.2-Animate-14B"


def test_units_and_metrics() -> None:
    printed = CASES["un-flux-512-bf16-compile"].figure
    assert printed is not None
    assert (printed.bytes, printed.kind, printed.other) == (24_700_000_000, "allocated", None)
    smi = CASES["qflux-kontext-bf16"].figure
    assert smi is not None
    assert (smi.bytes, smi.kind, smi.other) == (round(31.3 * GB), "device", round(31.3 * GIB))
    at_failure = CASES["df-10994-flux-bs2-nogc"].figure
    assert at_failure is not None
    assert (at_failure.bytes, at_failure.kind) == (round(78.2 * GIB), "allocated")


def test_a_control_image_becomes_pixels() -> None:
    case = CASES["qflux-kontext-bf16"]
    assert (case.width, case.height, case.batch) == (832, 1152, 2)
    assert case.notes == ("control image planned as more pixels",)


def test_what_cannot_be_compared_says_why() -> None:
    assert CASES["st-seg-zimage-fp8-torchao-none-l40s"].needs == (
        "what layers of a quantised base keep (fp8-torchao)",
    )
    assert CASES["dp-157-sdxl-16gb"].needs == ("a LoRA on the text encoders",)
    assert CASES["df-10196-flux-full-80gb"].needs == ("full fine-tuning",)
    assert CASES["st-flux-lowest-nf4-512"].unknown == ("rank",)
    assert CASES["df-10994-flux-bs2-nogc"].unknown == (
        "what failed: not the step, by the size that was asked for",
    )
    assert CASES["fluxgym-12gb"].needs[0].startswith("block swap")


def test_float8_products_keep_their_weights() -> None:
    case = CASES["hfblog-flux-fp8-h100"]
    assert case.needs == ()
    assert case.process["model"]["quantize"] is False
    assert case.process["train"]["cache_text_embeddings"] is False


@pytest.mark.parametrize("case", COMPARABLE, ids=lambda case: case.id)
def test_the_job_is_one_that_plafond_reads(case: Case, tmp_path: Path) -> None:
    process = {**case.process, "datasets": [{**case.process["datasets"][0], "folder_path": str(tmp_path)}]}
    path = tmp_path / "job.yaml"
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump({"job": "extension", "config": {"name": "x", "process": [process]}}, file)
    job = load_job(path, strict=True)
    dataset = job.processes[0].datasets[0]
    divisor = family_for(job.processes[0].model.arch).divisor
    bucket = bucket_for(case.width, case.height, dataset.resolution[0], divisor)
    # other trainers' sides need not be multiples of ours
    assert abs(bucket.width - case.width) < divisor and abs(bucket.height - case.height) < divisor
    assert job.processes[0].network is not None


def test_quantised_bases_and_offloading() -> None:
    preset = CASES["ot-qwen-lora-16gb"]
    model = preset.process["model"]
    assert (preset.needs, preset.quantised, model["qtype"]) == ((), True, "qfloat8")
    assert (model["layer_offloading"], model["layer_offloading_transformer_percent"]) == (True, 0.5)
    assert CASES["un-flux-512-nf4"].process["model"]["qtype"] == "nf4"
    assert "layer_offloading" not in CASES["ot-z-image-lora-16gb"].process["model"]


def test_captions_of_examples() -> None:
    assert CASES["st-seg-zimage-bf16-none-l40s"].caption == "\N{LARGE BROWN SQUARE}"
    assert CASES["un-zimage-768-nf4"].caption is None

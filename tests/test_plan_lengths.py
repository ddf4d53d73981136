"""Plans cover the longest caption that occurs and the control images that there are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import micro_zimage
import plafond
from conftest import JobMaker
from edit_checks import make_edit_checkpoint
from family_checks import CPU, _plan
from plafond.families import _shared, family_for
from plafond.job.model import ModelConfig
from plafond.memory.gpus import Ceiling
from plafond.plan.forecast import Forecaster
from plafond.plan.lengths import lengths_of
from plafond.plan.notes import notes_of
from plafond.plan.shapes import shapes_of
from runs import folder_of

FIVE = ["a cat", "a dog", "a bird in the sky", "a fish", "sea"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return micro_zimage.make_checkpoint(tmp_path_factory.mktemp("zimage"))


@pytest.fixture
def data(tmp_path: Path, photos: Path) -> Path:
    folder = tmp_path / "data"
    shutil.copytree(photos, folder, ignore=shutil.ignore_patterns("_*"))
    for index, caption in enumerate(FIVE):
        (folder / f"{index}.txt").write_text(caption)
    return folder


def test_the_plan_counts_the_captions_that_there_are(
    make_job: JobMaker, checkpoint: Path, data: Path
) -> None:
    path = make_job(
        model={"name_or_path": str(checkpoint), "arch": "zimage", "is_flux": False},
        datasets={"folder_path": str(data), "caption_dropout_rate": 0.0},
        train={"cache_text_embeddings": False, "steps": 6},
    )
    plan = _plan(path, ())
    # one token per byte and one per mark of the chat
    around = len("user\n" + "\n" + "assistant\n") + 3
    assert plan.lengths.captions is not None and plan.lengths.captions.counted
    assert plan.lengths.captions.tokens == len("a bird in the sky") + around
    plafond.train(plafond.load_job(path), device="cpu", ceiling=2**40, recover=False)
    predicted = {str(one.bucket): one.summary.allocated_bytes for one in plan.phases if one.phase == "train"}
    measured: dict[str, int] = {}
    for row in folder_of(path).read_metrics():
        measured[row["bucket"]] = max(measured.get(row["bucket"], 0), row["allocated_peak"])
    assert all(0 <= predicted[bucket] - measured[bucket] <= 4096 for bucket in predicted)
    (data / "1.txt").write_text("a dog " * 60)
    longer = _plan(path, ())
    assert max(one.summary.allocated_bytes for one in longer.phases if one.phase == "train") > max(
        predicted.values()
    )


def test_other_captions_that_the_encoder_is_given(make_job: JobMaker, data: Path) -> None:
    sections: dict[str, Any] = {"datasets": {"folder_path": str(data), "trigger_word": "sks"}}
    train = {"diff_output_preservation": True, "diff_output_preservation_class": "animal"}
    (process,) = plafond.load_job(make_job(train=train, **sections)).processes
    found = shapes_of(process, family_for("flux")).captions
    assert found is not None
    assert {"sks a cat", "animal a cat", ""} <= set(found) and len(found) == 11
    alone = {"unload_text_encoder": True, "cache_text_embeddings": False}
    (process,) = plafond.load_job(make_job(train=alone, **sections)).processes
    assert shapes_of(process, family_for("flux")).captions == ("sks",)


def test_without_a_tokenizer_bytes_are_counted(make_job: JobMaker, data: Path) -> None:
    path = make_job(
        model={"name_or_path": "Qwen/Qwen-Image", "arch": "qwen_image", "is_flux": False},
        datasets={"folder_path": str(data)},
    )
    (process,) = plafond.load_job(path).processes
    plan = Forecaster(process, Ceiling(2**40, 0, "test", None), virtual=True).plan(only=())
    assert plan.lengths.captions is not None
    assert plan.lengths.captions.tokens == 34 + len("a bird in the sky") + 5
    assert [str(note) for note in notes_of(plan)] == [
        "the tokenizer of Qwen/Qwen-Image is not here: prompts are planned with at most 56 tokens, one for each byte of"
        " the longest"
    ]
    assert lengths_of(process, family_for("flux"), plan_source(), ["a"], 0).captions is None


def plan_source() -> Any:
    return family_for("flux").locate(ModelConfig(name_or_path="black-forest-labs/FLUX.1-dev", arch="flux"))


def test_prompts_with_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The length is what the encoder is given, without the pictures' own tokens; without a tokenizer no less."""
    family = family_for("qwen_image_edit_plus")
    source = family.locate(
        ModelConfig(name_or_path=str(make_edit_checkpoint(tmp_path / "edit")), arch="qwen_image_edit_plus")
    )
    encoders = family.load_text_encoders(source, device=CPU, dtype=torch.float32)
    seen: list[torch.Tensor] = []
    tokenizer = encoders.tokenizer

    def tokenise(text: str, **kwargs: Any) -> Any:
        found = tokenizer(text, **kwargs)
        seen.append(found.input_ids)
        return found

    tokenise.model_max_length = tokenizer.model_max_length  # type: ignore[attr-defined]
    encoders.register_modules(tokenizer=None)
    encoders.tokenizer = tokenise
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    for count in (0, 2):
        found = family.prompt_length(source, ["a", "a cat on a mat"], count)
        family.encode_seen(encoders, "a cat on a mat", [Image.new("RGB", (90, 60))] * count)
        assert found is not None and found.counted
        assert found.tokens == int((seen[-1] != pad).sum())


def test_control_images_by_the_data(make_job: JobMaker, data: Path, tmp_path: Path) -> None:
    """Each bucket is planned with the largest control images that occur in it."""
    controls = tmp_path / "controls"
    controls.mkdir()
    for index in range(5):
        size = (96, 48) if index else (48, 96)
        Image.fromarray(np.zeros((size[1], size[0], 3), dtype=np.uint8)).save(controls / f"{index}.png")
    path = make_job(
        model={"name_or_path": "Qwen/Qwen-Image-Edit-2509", "arch": "qwen_image_edit_plus", "is_flux": False},
        datasets={"folder_path": str(data), "control_path": [str(controls)] * 2},
    )
    (process,) = plafond.load_job(path).processes
    family = family_for("qwen_image_edit_plus")
    found = shapes_of(process, family).controls
    assert found is not None and all(len(sizes) == 2 for sizes in found.values())
    assert all(sizes[0].width != sizes[0].height for sizes in found.values())


def test_the_bound_holds(monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> None:
    family = family_for("zimage")
    source = family.locate(ModelConfig(name_or_path=str(checkpoint), arch="zimage"))
    prompts = ["a cat", "eine Möwe am Strand", "猫"]
    counted = family.prompt_length(source, prompts, 0)
    monkeypatch.setattr(_shared, "_tokenizer_at_hand", lambda source: None)
    monkeypatch.setattr(
        "plafond.families.zimage.CHAT_TOKENS", 30
    )  # of a tokenizer that spells the chat in bytes
    bound = family.prompt_length(source, prompts, 0)
    assert counted is not None and bound is not None
    assert bound.tokens >= counted.tokens and not bound.counted

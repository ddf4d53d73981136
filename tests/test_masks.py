"""Masks and the losses that ask the model without its adapter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import mse_loss

import plafond
from conftest import JobMaker
from family_checks import _plan
from plafond.data.batches import build_items
from plafond.data.buckets import Bucket
from plafond.data.folder import scan
from plafond.data.masks import match_masks, read_masks
from plafond.errors import DataError, JobError
from plafond.families import family_for
from plafond.families._contract import INPAINT
from plafond.job.dataset import DatasetConfig
from plafond.job.schema import ProcessConfig
from plafond.memory.kernels import Target
from plafond.plan.passes import passes_note
from plafond.report.terminal import Terminal
from plafond.training.loss import even, sample_losses
from plafond.training.prepare import Prepared, prepare
from plafond.training.step import MicroBatch, Stepper
from plafond.training.trainee import make_trainee
from runs import folder_of

CPU = torch.device("cpu")


# ---------------------------------------------------------------------------------------------------- reading


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """One wide picture, transparent on its left half, and a small mask of its right quarter."""
    folder, masks = tmp_path / "data", tmp_path / "masks"
    for place in (folder, masks):
        place.mkdir()
    alpha = Image.new("L", (256, 128), 255)
    alpha.paste(0, (0, 0, 128, 128))
    wide = Image.new("RGB", (256, 128), (90, 80, 70))
    wide.putalpha(alpha)
    wide.save(folder / "wide.png")
    mask = Image.new("L", (64, 32), 0)
    mask.paste(255, (48, 0, 64, 32))
    mask.save(masks / "wide.jpg", quality=100)
    Image.new("RGB", (128, 128), (1, 2, 3)).save(folder / "other.png")
    return folder


def masks_of(folder: Path, **settings: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], tuple[str, ...]]:
    """Weights and what is kept by name and side, and the notes."""
    found = match_masks(scan(DatasetConfig(folder_path=str(folder), resolution=(128,), **settings)))
    items = build_items([found], 16)
    grids = {item: (item.bucket.height // 8, item.bucket.width // 8) for item in items}
    weights, kept = read_masks(items, grids.__getitem__)

    def named(masks: dict[Any, Tensor]) -> dict[str, Tensor]:
        return {f"{item.picture.name}{'-x' * item.flip_x}": mask for item, mask in masks.items()}

    return named(weights), named(kept), tuple(map(str, found.notes))


def test_masks_are_cut_turned_and_shrunk_as_pictures_are(pictures: Path, tmp_path: Path) -> None:
    weights, kept, notes = masks_of(pictures, mask_path=str(tmp_path / "masks"), flip_x=True)
    assert kept == {}
    assert weights.keys() == {"wide.png", "wide.png-x"}, "the other picture counts as a whole"
    assert any("no mask for other.png; all of these pictures counts" in note for note in notes)
    width = weights["wide.png"].shape[1]
    share = weights["wide.png"].float().mean(dim=0) / 255
    assert torch.allclose(share[: width * 3 // 4], torch.zeros(1), atol=0.04)
    assert torch.allclose(share[width * 3 // 4 + 1 :], torch.ones(1), atol=0.04)
    assert torch.equal(weights["wide.png-x"], weights["wide.png"].flip(-1))


def test_transparency_is_a_mask_or_a_hole(pictures: Path, tmp_path: Path) -> None:
    weights, _, _ = masks_of(pictures, alpha_mask=True)
    assert weights.keys() == {"wide.png"}, "the other picture has none"
    left, right = weights["wide.png"].chunk(2, dim=1)
    assert not left.any() and (right == 255).all()
    inverted, _, _ = masks_of(pictures, alpha_mask=True, invert_mask=True)
    assert torch.equal(inverted["wide.png"], 255 - weights["wide.png"])
    _, kept, _ = masks_of(pictures, inpaint_path=str(pictures))
    assert torch.equal(kept["wide.png"], weights["wide.png"])


def test_bad_masks_are_one_sentence(pictures: Path, tmp_path: Path) -> None:
    black, empty = tmp_path / "black", tmp_path / "empty"
    black.mkdir()
    empty.mkdir()
    Image.new("L", (8, 8), 0).save(black / "wide.png")
    for settings, sentence in (
        (
            {"mask_path": str(black)},
            f"{black}/wide.png: nothing is left to learn of wide.png; expected some white.",
        ),
        ({"mask_path": str(empty)}, f"{empty}: no mask for any picture; expected files such as other.png."),
        (
            {"mask_path": str(tmp_path / "no")},
            f"{tmp_path}/no: there is no such folder; expected the data set's masks.",
        ),
    ):
        with pytest.raises(DataError) as error:
            masks_of(pictures, **settings)
        assert str(error.value) == sentence
    assert masks_of(pictures, mask_path=str(black), mask_min_value=0.1)[0]
    (black / "wide.png").write_bytes(b"no picture")
    with pytest.raises(DataError) as error:
        masks_of(pictures, mask_path=str(black))
    assert str(error.value).startswith(f"{black}/wide.png: ")


# ---------------------------------------------------------------------------------------------------- losses


def test_weights_count_in_the_mean() -> None:
    one, two, mask = torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8), torch.rand(2, 1, 6, 8)
    found = sample_losses(one, two, "mse", even(mask))
    for place in range(2):
        each = (one[place] - two[place]).square() * mask[place] / mask[place].mean()
        torch.testing.assert_close(found[place], each.mean())
    clip = one.unsqueeze(2).expand(-1, -1, 3, -1, -1)
    torch.testing.assert_close(sample_losses(clip, two.unsqueeze(2), "mse", even(mask)), found)
    assert not even(torch.zeros(1, 1, 2, 2)).any()


Ready = tuple[ProcessConfig, Prepared, Stepper]


@pytest.fixture
def ready(make_job: JobMaker, tmp_path: Path, photos: Path) -> Callable[..., Ready]:
    """A process with `train` and `datasets` settings, its data, and a stepper whose adapter has learnt something."""
    masks = tmp_path / "halves"
    masks.mkdir()
    for index in range(5):
        half = np.zeros((80, 80), dtype=np.uint8)
        half[:, 40:] = 255
        Image.fromarray(half).save(masks / f"{index}.png")

    def make(learnt: float = 0.3, masked: bool = False, **sections: Any) -> Ready:
        data = {
            "caption_dropout_rate": 0.0,
            "trigger_word": "sks",
            **({"mask_path": str(masks)} if masked else {}),
        }
        job = make_job(datasets={**data, **sections.pop("datasets", {})}, **sections)
        (process,) = plafond.load_job(job).processes
        family = family_for("flux")
        with Terminal(sys.stderr) as terminal:
            prepared = prepare(process, family, device=CPU, terminal=terminal)
        transformer = family.load_transformer(prepared.source, device=CPU, dtype=torch.float32)
        trainee = make_trainee(transformer, family, process, Target.of(CPU))
        dice = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, tensor in trainee.parameters.items():
                if name.endswith("lora_B.weight"):
                    tensor.copy_(torch.randn(tensor.shape, generator=dice) * learnt)
        return process, prepared, Stepper(trainee, family, process, CPU, torch.float32)

    return make


def answers(stepper: Stepper, micro: MicroBatch, text: Any) -> tuple[Tensor, Tensor, Tensor]:
    """What the model says with and without its adapter, and the usual target."""
    seen = stepper._see(micro, text)
    with torch.no_grad():
        return (
            stepper._predict(micro, seen),
            stepper._predict(micro, seen, frozen=True),
            seen.noise - seen.latents,
        )


def test_another_caption_is_trained_to_stay(ready: Callable[..., Ready]) -> None:
    for train, caption in (
        ({"diff_output_preservation": True, "diff_output_preservation_class": "dog"}, "a photo of dog thing"),
        ({"blank_prompt_preservation": True}, ""),
    ):
        key = next(iter(train))
        _, prepared, stepper = ready(train={**train, f"{key}_multiplier": 0.5, "batch_size": 1})
        (micro,) = prepared.feed.micros(1)
        assert micro.kept is not None
        own = micro.batch.items[0].picture.caption
        (expected,) = prepared.feed.embed([own.replace("a photo of sks thing", caption) if caption else ""])
        assert torch.equal(micro.kept["prompt_embeds"][0], expected["prompt_embeds"])
        own_pred, _, target = answers(stepper, micro, micro.text)
        kept_pred, prior, _ = answers(stepper, micro, micro.kept)
        loss = mse_loss(own_pred, target) + 0.5 * mse_loss(kept_pred, prior)
        assert 0.5 * mse_loss(kept_pred, prior) > 1e-4
        assert stepper.micro_step(micro) == pytest.approx(float(loss), rel=1e-5)
        together = {
            name: p.grad.clone() for name, p in stepper.trainee.parameters.items() if p.grad is not None
        }
        for parameter in stepper.trainee.parameters.values():
            parameter.grad = None
        (stepper.loss(micro) + stepper.preservation(micro, micro.kept)).backward()
        for name, parameter in stepper.trainee.parameters.items():
            torch.testing.assert_close(parameter.grad, together[name], rtol=1e-4, atol=1e-6)


def test_masks_and_what_they_leave_out(ready: Callable[..., Ready]) -> None:
    train = {"inverted_mask_prior": True, "inverted_mask_prior_multiplier": 0.25, "batch_size": 1}
    _, prepared, stepper = ready(masked=True, datasets={"mask_min_value": 0.2}, train=train)
    (micro,) = prepared.feed.micros(1)
    mask = micro.masks
    assert mask is not None and mask.min() == pytest.approx(0.2) and mask.max() == 1
    pred, prior, target = answers(stepper, micro, micro.text)
    own = ((pred - target).square() * mask / mask.mean()).mean()
    rest = ((pred - prior).square() * (1 - mask) / (1 - mask).mean()).mean()
    assert rest > 1e-4
    assert stepper.micro_step(micro) == pytest.approx(float(own + 0.25 * rest), rel=1e-5)


def test_prior_regularisation_aims_at_the_model_itself(ready: Callable[..., Ready]) -> None:
    _, prepared, stepper = ready(
        datasets={"prior_reg": True, "loss_multiplier": 0.5}, train={"batch_size": 1}
    )
    (micro,) = prepared.feed.micros(1)
    pred, prior, _ = answers(stepper, micro, micro.text)
    assert float(stepper.loss(micro)) == pytest.approx(0.5 * float(mse_loss(pred, prior)), rel=1e-5)
    _, prepared, stepper = ready(learnt=0.0, datasets={"prior_reg": True}, train={"batch_size": 1})
    assert float(stepper.loss(prepared.feed.micros(1)[0])) == 0.0


def test_plans_have_the_further_passes(
    ready: Callable[..., Ready], make_job: JobMaker, tmp_path: Path
) -> None:
    """The plan is what a run takes, with masks, captions that are encoded live, and two more passes."""
    ready(masked=True)
    folder = str(tmp_path / "halves")
    data = {"caption_dropout_rate": 0.0, "trigger_word": "sks", "mask_path": folder}
    flops = []
    for train, more in (
        ({}, None),
        (
            {"diff_output_preservation": True, "cache_text_embeddings": False},
            "train.diff_output_preservation makes each step two forward passes and one backward pass longer",
        ),
        (
            {"inverted_mask_prior": True},
            "train.inverted_mask_prior makes each step a forward pass longer",
        ),
    ):
        path = make_job("planned", datasets=data, train={"steps": 4, **train})
        plan = _plan(path, ())
        note = passes_note(plan.process)
        assert (note and str(note)) == more
        flops.append(plan.flops_per_picture)
        if not train:
            continue
        plafond.train(plafond.load_job(path), device="cpu", fresh=True, ceiling=2**40, recover=False)
        predicted = {
            str(one.bucket): one.summary.allocated_bytes for one in plan.phases if one.phase == "train"
        }
        measured: dict[str, int] = {}
        for row in folder_of(path).read_metrics():
            measured[row["bucket"]] = max(measured.get(row["bucket"], 0), row["allocated_peak"])
        assert all(0 <= predicted[bucket] - measured[bucket] <= 4096 for bucket in predicted)
    assert flops[1] > 1.7 * flops[0] and flops[2] > 1.2 * flops[0]


def test_flex2_fills_what_is_learnt(tmp_path: Path) -> None:
    from plafond.training.feed import Feed

    class Masked:
        bucket = Bucket(64, 64)

    item: Any = Masked()
    feed = Feed.__new__(Feed)
    feed.family, feed.kept = family_for("flex2"), {}
    feed.masks = {item: torch.full((8, 8), 255, dtype=torch.uint8)}
    batch: Any = type("Batch", (), {"items": (item,)})
    assert not feed._holes(batch, torch.zeros(1, 16, 8, 8))[INPAINT].any()
    feed.kept = {item: torch.full((8, 8), 51, dtype=torch.uint8)}
    torch.testing.assert_close(
        feed._holes(batch, torch.zeros(1, 16, 8, 8))[INPAINT], torch.full((1, 1, 8, 8), 0.2)
    )


# ---------------------------------------------------------------------------------------------------- jobs


@pytest.mark.parametrize(
    ("train", "network", "sentence"),
    [
        (
            {"diff_output_preservation": True},
            {},
            "train.diff_output_preservation: expected a trigger_word, in whose place diff_output_preservation_class is"
            " put",
        ),
        (
            {"blank_prompt_preservation": True},
            None,
            "train.blank_prompt_preservation: compares with the model without its adapter, and a job without a network"
            " trains the model itself",
        ),
    ],
)
def test_contradictions(make_job: JobMaker, train: dict[str, Any], network: Any, sentence: str) -> None:
    with pytest.raises(JobError) as error:
        plafond.load_job(make_job(train=train, network=network))
    assert sentence in str(error.value)

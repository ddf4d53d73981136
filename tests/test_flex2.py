"""The Flex.2 family: FLUX with channels for a picture to complete and for a control image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline
from PIL import Image, ImageOps
from torch import Tensor

import micro_flux
from family_checks import CPU, PROMPT, FamilyChecks
from plafond.errors import JobError
from plafond.families._contract import INPAINT, TextEmbedding, control
from plafond.families._holes import holes
from plafond.families.flex2 import CONDITION, FAMILY
from plafond.job.model import ModelConfig
from plafond.job.sample import SampleItem

NOISY = torch.randn(2, 16, 8, 8, generator=torch.Generator().manual_seed(3))


class Reference(FluxPipeline):  # type: ignore[misc]
    """What the model's own pipeline does: FLUX's, with 132 numbers more in each token, given or blank."""

    given: Tensor | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        height, width = kwargs["height"], kwargs["width"]
        pipeline, forward = FluxPipeline(**self.components), self.transformer.forward
        pipeline.set_progress_bar_config(disable=True)
        pipeline.scheduler = self.scheduler
        noise, _ = self.prepare_latents(
            *(1, 16, height, width, torch.float32, CPU), kwargs.pop("generator", None)
        )
        more = torch.cat(
            [torch.zeros_like(noise), torch.ones_like(noise[..., :4]), torch.zeros_like(noise)], 2
        )
        more = more if self.given is None else self.given

        def longer(hidden_states: Tensor, **rest: Any) -> Any:
            return forward(hidden_states=torch.cat([hidden_states, more], dim=2), **rest)

        self.transformer.forward = longer
        try:
            return pipeline(*args, latents=noise, **kwargs)
        finally:
            self.transformer.forward = forward


class TestFlex2(FamilyChecks):
    arch = "flex2"
    pipeline = Reference
    options = {"guidance_scale": 1.0, "max_sequence_length": 32}  # noqa: RUF012
    encoder_parameters = 4_885_371_136
    # FLUX's own tests have these
    test_prompts_of_a_batch_do_not_disturb_each_other = None  # type: ignore[assignment]
    test_blocks_can_be_planned = None  # type: ignore[assignment]

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return micro_flux.make_checkpoint(folder, in_channels=196, out_channels=64)

    def unpack(self, latents: Tensor, height: int, width: int) -> Tensor:
        return FluxPipeline._unpack_latents(latents, height, width, 8)

    @pytest.fixture
    def job(self, make_job: Any, tmp_path: Path, photos: Path) -> Callable[..., Path]:
        """Pictures are their own control images; holes are drawn at random."""
        inner = FamilyChecks.job.__wrapped__(self, make_job, tmp_path, photos)  # type: ignore[attr-defined]

        def make(name: str = "tiny", **sections: dict[str, Any]) -> Path:
            options = {"do_random_inpainting": True, "control_dropout": 0.3, "random_blur_mask": True}
            sections["model"] = {"model_kwargs": options}
            sections["datasets"] = {"control_path": [str(photos)]}
            return inner(name, **sections)  # type: ignore[no-any-return]

        return make

    @pytest.mark.parametrize("checkpointing", ["true"])
    def test_the_plan_is_exact(self, job: Callable[..., Path], checkpointing: str) -> None:  # type: ignore[override]
        self.check_plan(
            job, (f"train.gradient_checkpointing={checkpointing}", "train.disable_sampling=false")
        )

    def draw(self, pipeline: Any) -> Image.Image:
        return pipeline(  # type: ignore[no-any-return]
            PROMPT,
            width=96,
            height=64,
            num_inference_steps=2,
            guidance_scale=4.0,
            max_sequence_length=32,
            generator=torch.Generator().manual_seed(3),
        ).images[0]

    def test_previews_show_their_control_image_or_fill_its_hole(self, tmp_path: Path) -> None:
        family, pipeline, item = FAMILY, self.pipe(), SampleItem(width=96, height=64, sample_steps=2, seed=3)
        vae = pipeline.vae
        text = {name: tensor[0] for name, tensor in self.embed(PROMPT).items()}
        given = Image.effect_noise((96, 64), 90).convert("RGB")
        latents = family.encode_image(vae, _pixels(given))
        clear = Image.linear_gradient("L").resize((96, 64)).point(lambda shade: 255 if shade > 99 else 0)
        given.save(tmp_path / "control.png")
        whole = given.copy()
        whole.putalpha(clear)
        whole.save(tmp_path / "hole.png")
        keep = _pixels(ImageOps.fit(clear, (12, 8), Image.Resampling.BOX).convert("RGB"))[:, :1] / 2 + 0.5
        expected = {
            "control.png": torch.cat([torch.zeros_like(latents), torch.ones(1, 1, 8, 12), latents], 1),
            "hole.png": torch.cat([latents * keep, 1 - keep, torch.zeros_like(latents)], 1),
        }
        drawn = {}
        for name, condition in expected.items():
            shown = item.model_copy(update={"ctrl_img": str(tmp_path / name), "guidance_scale": 4.0})
            seen = torch.from_numpy(np.array(given)).permute(2, 0, 1)
            drawn[name] = family.preview(
                pipeline.transformer, vae, self.source, shown, {**text, control(0): seen}
            )
            pipeline.given = FluxPipeline._pack_latents(condition, 1, 33, 8, 12)
            theirs = self.draw(pipeline)
            assert drawn[name].tobytes() == theirs.tobytes()
        assert drawn["control.png"].tobytes() != drawn["hole.png"].tobytes()


def _pixels(image: Image.Image) -> Tensor:
    from plafond.data.buckets import Bucket
    from plafond.data.images import to_pixels

    return to_pixels(image, Bucket(*image.size))[None]


def condition(text: TextEmbedding, seed: int = 0, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The kept picture, its hole and the control image."""
    model = ModelConfig(name_or_path="x/y", arch="flex2", model_kwargs=options)
    found = FAMILY.condition(text, NOISY, model, torch.Generator().manual_seed(seed))
    assert control(0) not in found and INPAINT not in found
    return found[CONDITION].split([16, 1, 16], dim=1)  # type: ignore[return-value]


def test_the_further_channels_by_option() -> None:
    ones, half = torch.ones(2, 1, 8, 8), torch.zeros(2, 1, 8, 8)
    half[..., :4] = 1
    shown = {control(0): torch.full_like(NOISY, 2.0), control(1): torch.full_like(NOISY, 3.0)}
    kept, hole, seen = condition({"pooled": ones})
    assert not kept.any() and torch.equal(hole, ones) and not seen.any()
    kept, hole, seen = condition({INPAINT: half, **shown})
    assert torch.equal(kept, NOISY * half) and torch.equal(hole, 1 - half)
    picked = {float(condition(shown, seed)[2][0].mean()) for seed in range(9)}
    assert picked == {2.0, 3.0}
    assert {float(condition(shown, seed, control_dropout=0.5)[2][0].mean()) for seed in range(9)} == {0, 2, 3}
    kept, hole, _ = condition({INPAINT: half}, inpaint_dropout=1)
    assert not kept.any() and torch.equal(hole, ones)
    assert torch.equal(condition({INPAINT: half}, invert_inpaint_mask_chance=1)[1], half)
    assert torch.equal(condition({INPAINT: half}, inpaint_random_chance=1)[1], ones)
    drawn = condition({INPAINT: half}, inpaint_random_chance=1, do_random_inpainting=True)[1]
    assert not torch.equal(drawn, ones) and not torch.equal(drawn, 1 - half)
    soft = {
        tuple(condition({INPAINT: half}, seed, random_blur_mask=True)[1].unique().tolist())
        for seed in range(6)
    }
    assert (0.0, 1.0) in soft and len(soft) > 1
    edges = {
        float(condition({INPAINT: ones * (NOISY[:, :1] > 0)}, seed, random_dialate_mask=True)[1].mean())
        for seed in range(6)
    }
    assert len(edges) > 1


def test_random_holes_are_blobs_of_all_sizes() -> None:
    shares = holes(64, 32, 48, torch.Generator().manual_seed(0)).mean(dim=(1, 2, 3))
    assert 0.19 < shares.min() < 0.3 and 0.7 < shares.max() < 0.81


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"control_dropout": 2}, "control_dropout: expected a probability from 0 to 1, found 2"),
        ({"random_blur_mask": "yes"}, "random_blur_mask: expected true or false, found 'yes'"),
    ],
)
def test_options_of_another_kind_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(JobError) as error:
        FAMILY.locate(ModelConfig(name_or_path="x/y", arch="flex2", model_kwargs=options))
    assert str(error.value) == f"model.model_kwargs.{sentence}"

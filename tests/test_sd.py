"""Stable Diffusion 1.5 and XL: schedules, adapters of convolutions, kohya's names, whole checkpoints in one file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline
from diffusers.training_utils import compute_snr
from safetensors.torch import load_file
from torch import nn

import micro_sd
from family_checks import CPU, FamilyChecks, _process
from plafond.data.buckets import Bucket
from plafond.errors import JobError
from plafond.families import family_for
from plafond.job.model import ModelConfig
from plafond.job.train import TrainConfig
from plafond.memory.dryrun import Rehearsal
from plafond.memory.kernels import Target
from plafond.model.conv import LoraConv
from plafond.training.objective import Diffusion, objective_of
from runs import run


class StableDiffusionChecks(FamilyChecks):
    """What both have in common."""

    options = {"guidance_scale": 1.0}  # noqa: RUF012
    latent = (4, 8, 8)
    # the UNet treats the prompts of a batch alone, as every family's pipeline does
    test_prompts_of_a_batch_do_not_disturb_each_other = None  # type: ignore[assignment]

    @pytest.mark.parametrize(
        "overrides",
        [("train.gradient_checkpointing=true", "train.disable_sampling=false", "train.min_snr_gamma=5")],
        ids=["true"],
    )
    def test_the_plan_is_exact(self, job: Callable[..., Path], overrides: tuple[str, ...]) -> None:
        self.check_plan(job, overrides)

    def test_a_whole_checkpoint_in_one_file(self, tmp_path: Path) -> None:
        """Every part's weights are those of the folder; configurations and tokenizers come from elsewhere."""
        family = self.family
        folder = family.load_transformer(self.source, device=CPU, dtype=torch.float32)
        path = micro_sd.write_whole(
            tmp_path / "whole.safetensors",
            self.checkpoint,
            family.native_table(folder),
            xl=self.arch == "sdxl",
        )
        model = ModelConfig(name_or_path=str(path), arch=self.arch, extras_name_or_path=str(self.checkpoint))
        whole = family.locate(model)
        assert whole.fingerprint("vae") != self.source.fingerprint("vae")
        for load in (
            lambda source: family.load_transformer(source, device=CPU, dtype=torch.float32),
            lambda source: family.load_vae(source, device=CPU, dtype=torch.float32),
            lambda source: nn.ModuleList(
                family.text_modules(family.load_text_encoders(source, device=CPU, dtype=torch.float32))
            ),
        ):
            ours, theirs = load(whole).state_dict(), load(self.source).state_dict()
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)

    def test_levels_per_group_of_blocks(self, job: Callable[..., Path]) -> None:
        """Every ResNet and transformer block is a block with a level of its own."""
        process = _process(job())
        rehearsal = Rehearsal(process, self.family, self.source, Target("cpu"))
        counts = self.family.block_counts(self.source.config("unet"))
        rehearsal.train(Bucket(64, 64), 1)
        # before the first adapter nothing learns, and nothing is kept
        assert set(rehearsal.menus) == set(counts) - {"down_blocks.0.resnets", "down_blocks.1.resnets"}


class TestStableDiffusion15(StableDiffusionChecks):
    arch = "sd1"
    pipeline = StableDiffusionPipeline
    encoder_parameters = 123_060_480
    every_phase = False
    test_thirty_steps_lower_the_loss = None  # type: ignore[assignment]
    test_a_stopped_run_goes_on_bit_by_bit = None  # type: ignore[assignment]

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return micro_sd.make_checkpoint(folder)

    def pipe(self) -> Any:
        pipeline = StableDiffusionPipeline.from_pretrained(self.checkpoint, safety_checker=None)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def test_kohyas_names_and_convolutions(self, job: Callable[..., Path]) -> None:
        """1×1 convolutions always, wider ones on demand; alpha counts, and is read again."""
        path = job(network={"linear": 4, "linear_alpha": 2, "conv": 2, "conv_alpha": 1}, train={"steps": 1})
        saved = load_file(run(path).files[-1])
        down = "lora_unet_down_blocks_1"
        assert saved[f"{down}_attentions_0_proj_in.lora_down.weight"].shape == (4, 32, 1, 1)
        assert saved[f"{down}_resnets_0_conv1.lora_down.weight"].shape == (2, 16, 3, 3)
        assert saved[f"{down}_resnets_0_conv1.alpha"] == 1
        assert saved[f"{down}_attentions_0_transformer_blocks_0_attn1_to_q.alpha"] == 2
        kept = shutil.copy(path.parent / "out" / "tiny" / "tiny.safetensors", path.parent)
        start = (f"network.pretrained_lora_path={kept}",)
        again = run(path, fresh=True, overrides=(*start, "train.lr=1e-12", "save.lora_format=both"))
        for name, tensor in load_file(again.files[0]).items():
            torch.testing.assert_close(tensor, saved[name], rtol=1e-4, atol=1e-6)
        pipeline, both = self.pipe(), []
        for file in again.files:
            pipeline.load_lora_weights(file)
            both.append(self.draw(pipeline).tobytes())
            pipeline.unload_lora_weights()
        assert both[0] == both[1], "kohya's names with alpha and PEFT's without are the same adapter"


class TestStableDiffusionXL(StableDiffusionChecks):
    arch = "sdxl"
    pipeline = StableDiffusionXLPipeline
    encoder_parameters = 817_720_320

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return micro_sd.make_xl_checkpoint(folder)


# ---------------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
def test_schedules_equal_diffusers(prediction: str) -> None:
    scheduler = DDPMScheduler.from_config(dict(micro_sd.make_scheduler(prediction).config))
    ours = Diffusion(scheduler.alphas_cumprod, prediction)
    dice = torch.Generator().manual_seed(0)
    latents, noise = torch.randn(5, 4, 2, 2, generator=dice), torch.randn(5, 4, 2, 2, generator=dice)
    steps = torch.tensor([0, 1, 500, 998, 999])
    levels = steps.float() / 1000
    torch.testing.assert_close(ours.mix(latents, noise, levels), scheduler.add_noise(latents, noise, steps))
    target = noise if prediction == "epsilon" else scheduler.get_velocity(latents, noise, steps)
    torch.testing.assert_close(ours.target(latents, noise, levels), target)
    ratio = compute_snr(scheduler, steps)
    expected = torch.minimum(ratio, torch.full_like(ratio, 5.0))
    expected = expected / (ratio if prediction == "epsilon" else ratio + 1)
    settings = TrainConfig(min_snr_gamma=5.0)
    torch.testing.assert_close(ours.weights(levels, settings), expected, rtol=1e-4, atol=1e-6)
    drawn = ours.draw(4000, TrainConfig(max_denoising_steps=499), 0.0, dice, (0.0, 1.0)) * 1000
    torch.testing.assert_close(drawn, drawn.round(), rtol=0, atol=1e-3)
    assert drawn.round().min() >= 500 and drawn.round().max() == 999
    assert 0.48 < (drawn < 750).float().mean() < 0.52


def test_v_prediction_is_asked_for_or_found(tmp_path: Path) -> None:
    folder = micro_sd.make_checkpoint(tmp_path / "v", "v_prediction")
    family = family_for("sd1")
    found = objective_of(family, ModelConfig(name_or_path=str(folder), arch="sd1"))
    assert isinstance(found, Diffusion) and found.velocity
    known = ModelConfig(name_or_path=family.base_models[0].repo, arch="sd1")
    plain, asked = (objective_of(family, known.model_copy(update={"is_v_pred": v})) for v in (False, True))
    assert isinstance(plain, Diffusion) and not plain.velocity
    assert isinstance(asked, Diffusion) and asked.velocity
    other = tmp_path / "other"
    (other / "transformer").mkdir(parents=True)
    (other / "model_index.json").write_text("{}")
    with pytest.raises(JobError) as error:
        family.locate(ModelConfig(name_or_path=str(other), arch="sd1"))
    assert str(error.value) == (
        f"model.arch: {other} holds no unet, as sd1 has one; expected model.arch to name the model's architecture"
    )


def test_an_adapted_convolution_equals_peft() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    torch.manual_seed(0)
    base, like = (nn.Conv2d(6, 10, 3, stride=2, padding=1) for _ in range(2))
    like.load_state_dict(base.state_dict())
    ours = LoraConv(like, 4, 2.0)
    ours.reset(torch.Generator().manual_seed(1))
    theirs: Any = inject_adapter_in_model(
        LoraConfig(r=4, lora_alpha=2, target_modules=["layer"]), nn.ModuleDict({"layer": base})
    )["layer"]
    with torch.no_grad():
        ours.lora_B.normal_(std=0.1)
        theirs.lora_A["default"].weight.copy_(ours.lora_A)
        theirs.lora_B["default"].weight.copy_(ours.lora_B)
    x = torch.randn(2, 6, 8, 8)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    ours.multiplier = 0.0
    assert torch.equal(ours(x), like(x))


def test_published_unets_have_the_blocks_that_are_counted() -> None:
    for arch, transformers in (("sd1", 16), ("sdxl", 70)):
        family = family_for(arch)
        source = family.locate(ModelConfig(name_or_path=family.base_models[0].repo, arch=arch))
        config = source.config("unet")
        with torch.device("meta"):
            unet: Any = family.build_transformer(config)
        counts = family.block_counts(config)
        assert {group: len(blocks) for group, blocks in unet.block_groups.items()} == counts
        assert sum(count for group, count in counts.items() if "attentions" in group) == transformers

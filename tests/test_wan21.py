"""The Wan 2.1 family."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import WanPipeline
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from PIL import Image
from safetensors.torch import save_file

import micro_wan
from family_checks import CPU, PROMPT, FamilyChecks
from plafond.job.model import ModelConfig
from plafond.job.train import TrainConfig
from runs import folder_of, run, weights


class TestWan21(FamilyChecks):
    arch = "wan21:1b"
    pipeline = WanPipeline
    options = {"guidance_scale": 1.0, "num_frames": 1}  # noqa: RUF012
    latent = (16, 1, 8, 8)
    encoder_parameters = 5_680_910_336

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return micro_wan.make_checkpoint(folder)

    def draw(self, pipeline: Any) -> Image.Image:
        return pipeline(  # type: ignore[no-any-return]
            PROMPT,
            negative_prompt="blurred",
            width=96,
            height=64,
            num_frames=1,
            num_inference_steps=2,
            guidance_scale=4.0,
            generator=torch.Generator().manual_seed(3),
            output_type="pil",
        ).frames[0][0]

    # ------------------------------------------------------------------------------------------------ files

    def test_a_native_file_predicts_the_same(self, tmp_path: Path) -> None:
        """Names are those that diffusers converts; what no file holds is computed, and float32 parts stay so."""
        folder = self.family.load_transformer(self.source, device=CPU, dtype=torch.bfloat16)
        native = {
            f"model.diffusion_model.{entry.native}{spelt}": folder.state_dict()[name + suffix]
            for entry in self.family.native_table(folder)
            for name in entry.diffusers
            for suffix, spelt in entry.suffixes
            if name + suffix in folder.state_dict()
        }
        theirs = convert_wan_transformer_to_diffusers(dict(native))
        assert theirs.keys() == folder.state_dict().keys()
        path = tmp_path / "wan.safetensors"
        save_file(native, path)
        model = ModelConfig(name_or_path=str(path), arch="wan21", extras_name_or_path=str(self.checkpoint))
        loaded = self.family.load_transformer(self.family.locate(model), device=CPU, dtype=torch.bfloat16)
        for name, tensor in folder.state_dict().items():
            assert torch.equal(loaded.state_dict()[name], tensor), name
            assert loaded.state_dict()[name].dtype == tensor.dtype, name
        assert loaded.blocks[0].scale_shift_table.dtype == torch.float32
        text = {name: tensor.bfloat16() for name, tensor in self.embed(PROMPT).items()}
        noisy = torch.randn(1, *self.latent, generator=torch.Generator().manual_seed(0)).bfloat16()
        with torch.no_grad():
            one, two = (
                self.family.predict(each, noisy, torch.tensor([0.5]), text, TrainConfig())
                for each in (folder, loaded)
            )
        assert torch.equal(one, two)

    def test_a_lora_under_native_names_is_taken_up(self, job: Callable[..., Path]) -> None:
        """As AI Toolkit saves it: a run in a folder without states goes on from the file."""
        path = job(train={"steps": 2}, save={"save_every": 1})
        run(path)
        folder = folder_of(path)
        saved = weights(folder.milestone(1))
        assert "diffusion_model.blocks.1.self_attn.q.lora_A.weight" in saved
        assert "diffusion_model.blocks.0.ffn.2.lora_B.weight" in saved
        assert not any(name.endswith(".alpha") for name in saved)
        shutil.rmtree(folder.resume)
        folder.milestone(2).unlink()
        run(path)
        assert [row["step"] for row in folder.read_metrics()] == [1, 2]
        started = job(
            "started", train={"steps": 1, "lr": 1e-12}, network={"pretrained_lora_path": str(folder.final)}
        )
        run(started)
        one, two = weights(folder.final), weights(folder_of(started).final)
        assert one.keys() == two.keys()
        for name, tensor in one.items():
            torch.testing.assert_close(two[name], tensor)

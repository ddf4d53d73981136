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
import plafond
from family_checks import CPU, LONG, PROMPT, FamilyChecks
from micro_clips import make_clip
from plafond.data.clips import read_header
from plafond.job.model import ModelConfig
from plafond.job.train import TrainConfig
from plafond.language.speech import speaker
from plafond.plan.report import as_json
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
        return micro_wan.draw(pipeline)

    # ------------------------------------------------------------------------------------------------ clips

    def clips(self, folder: Path) -> Path:
        """Two clips of nine frames, and a picture."""
        folder.mkdir()
        for name in ("one", "two"):
            make_clip(folder / f"{name}.mp4", count=9, size=(64, 64))
        Image.new("RGB", (64, 64), (200, 20, 20)).save(folder / "still.png")
        return folder

    def test_a_clip_is_predicted_as_the_pipeline_does(self) -> None:
        self.check_prediction({**self.options, "num_frames": 9})

    def test_plans_of_clips_are_exact(self, job: Callable[..., Path], tmp_path: Path) -> None:
        folder = self.clips(tmp_path / "clips")
        path = job(
            train={"steps": 4, "disable_sampling": False},
            datasets={"folder_path": str(folder), "num_frames": 9},
            sample={"prompts": [LONG], "neg": LONG, "num_frames": 6, "fps": 5, "width": 96},
        )
        plan = self.check_plan_of(path)
        buckets = {(phase.phase, str(phase.bucket)) for phase in plan.phases}
        assert {("train", "64x64x9f"), ("train", "64x64"), ("preview", "96x64x5f")} <= buckets
        described = as_json(plafond.load_job(path), plan, [], [], speaker("en"))
        assert {phase["frames"] for phase in described["phases"] if phase["phase"] == "train"} == {1, 9}
        run(path, fresh=True)
        result = folder_of(path)
        shown = result.previews()[4][0]
        width, height, clip = read_header(shown)
        assert (shown.suffix, width, height, clip.count, clip.rate) == (".mp4", 96, 64, 5, 5.0)
        assert {row["bucket"] for row in result.read_metrics()} == {"64x64x9f", "64x64"}
        sheet = Image.open(result.path / "before-after.png").convert("RGB")
        assert len(set(sheet.crop((230, 60, 400, 180)).getdata())) > 20, "a frame is shown"

    def test_frames_matter(self, job: Callable[..., Path], tmp_path: Path) -> None:
        """The same frames in another order are another latent and another loss."""
        vae = self.family.load_vae(self.source, device=CPU, dtype=torch.float32)
        transformer = self.family.load_transformer(self.source, device=CPU, dtype=torch.float32)
        pixels = torch.rand(1, 3, 9, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
        other = torch.cat([pixels[:, :, :1], pixels[:, :, 1:].flip(2)], dim=2)
        one, two = (self.family.encode_image(vae, each) for each in (pixels, other))
        assert one.shape == (1, 16, 3, 8, 8)
        torch.testing.assert_close(one[:, :, 0], two[:, :, 0])
        torch.testing.assert_close(one[:, :, :1], self.family.encode_image(vae, pixels[:, :, 0]))
        assert (one[:, :, 1:] - two[:, :, 1:]).abs().max() > 0.01
        text, sigma = self.embed(PROMPT), torch.tensor([0.5])
        with torch.no_grad():
            found = [
                self.family.predict(transformer, each, sigma, text, TrainConfig()) for each in (one, two)
            ]
        assert (found[0] - found[1])[:, :, 0].abs().max() > 1e-4, "later frames bear on the first"

    def test_numbers_of_frames_are_rounded_with_a_warning(self, job: Callable[..., Path]) -> None:
        path = job(datasets={"num_frames": 12}, sample={"num_frames": 40})
        said = [warning.partition(": ")[2] for warning in plafond.load_job(path).warnings]
        assert said == [
            "datasets.0.num_frames: wan21 takes 9 frames instead of 12",
            "sample.num_frames: wan21 takes 37 frames instead of 40",
        ]
        assert [self.family.frames(count) for count in (1, 4, 5, 40, 41, 81)] == [1, 1, 5, 37, 41, 81]

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

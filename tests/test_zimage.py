"""The Z-Image family."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from diffusers import ZImagePipeline
from diffusers.loaders.single_file_utils import convert_z_image_transformer_checkpoint_to_diffusers
from PIL import Image, ImageChops
from safetensors.torch import save_file

import micro_zimage
import plafond
from family_checks import CPU, PROMPT, FamilyChecks
from plafond.errors import JobError
from plafond.job.model import ModelConfig
from plafond.job.train import TrainConfig
from plafond.language.said import Said
from plafond.memory.gpus import Ceiling
from plafond.plan.forecast import Forecaster
from plafond.training.assistant import merge_assistant
from runs import folder_of, losses, run


class TestZImage(FamilyChecks):
    arch = "zimage:turbo"
    pipeline = ZImagePipeline
    options = {"guidance_scale": 0.0}  # noqa: RUF012
    encoder_parameters = 4_022_468_096

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return micro_zimage.make_checkpoint(folder)

    # ------------------------------------------------------------------------------------------------ Turbo

    @pytest.fixture
    def adapter(self, tmp_path: Path) -> Path:
        """A training adapter, spelt as the published one is."""
        dice = torch.Generator().manual_seed(1)
        state = {}
        for name, module in micro_zimage.make_transformer().named_modules():
            if isinstance(module, torch.nn.Linear) and name.startswith("layers."):
                down = torch.randn(4, module.in_features, generator=dice)
                up = torch.randn(module.out_features, 4, generator=dice) * 0.05
                state[f"diffusion_model.{name}.lora_A.weight"] = down
                state[f"diffusion_model.{name}.lora_B.weight"] = up
        path = tmp_path / "adapter.safetensors"
        save_file(state, path)
        return path

    def test_the_assistant_trains_and_does_not_draw(self, adapter: Path) -> None:
        family, text = self.family, self.embed(PROMPT)
        noisy, sigma = torch.randn(1, 16, 8, 8), torch.tensor([0.5])

        def predict(model: torch.nn.Module) -> torch.Tensor:
            with torch.no_grad():
                return family.predict(model, noisy, sigma, text, TrainConfig())

        plain = family.load_transformer(self.source, device=CPU, dtype=torch.float32)
        model = family.load_transformer(self.source, device=CPU, dtype=torch.float32)
        assistant = merge_assistant(model, str(adapter))
        assert assistant is not None
        pipeline = self.pipe()
        pipeline.load_lora_weights(adapter)
        torch.testing.assert_close(predict(model), predict(pipeline.transformer), rtol=1e-4, atol=1e-5)
        assert (predict(model) - predict(plain)).abs().max() > 0.01
        with assistant.left_out(model):
            torch.testing.assert_close(predict(model), predict(plain), rtol=1e-4, atol=1e-5)
        assert (predict(model) - predict(plain)).abs().max() > 0.01

    def test_a_run_with_an_assistant(self, job: Callable[..., Path], adapter: Path) -> None:
        off = {"disable_sampling": False, "steps": 1}
        shown = {"format": "png", "seed": 3}
        plain, helped = job("plain", train=off, sample=shown), job("helped", train=off, sample=shown)
        override = (f"model.assistant_lora_path={adapter}",)
        run(plain)
        run(helped, overrides=override)
        one, two = (folder_of(path) for path in (plain, helped))
        first, second = (Image.open(folder.previews()[0][0]) for folder in (one, two))
        assert max(high for _, high in ImageChops.difference(first, second).getextrema()) <= 1
        assert losses(one) != losses(two)

    def test_the_plan_with_an_assistant_is_exact(self, job: Callable[..., Path], adapter: Path) -> None:
        self.check_plan(job, (f"model.assistant_lora_path={adapter}", "train.disable_sampling=false"))

    def test_all_weights_train_under_a_solved_plan(self, job: Callable[..., Path]) -> None:
        path = job(
            network=None, train={"steps": 4, "gradient_checkpointing": "auto", "optimizer": "adafactor"}
        )
        loaded = plafond.load_job(path)
        plan = Forecaster(loaded.processes[0], Ceiling(2**40, 0, Said("plenty"), None), virtual=True).plan()
        (chosen,) = [one.activations for one in plan.phases if one.phase == "train"]
        assert chosen is not None
        assert {"layers", "noise_refiner", "context_refiner"} <= chosen.plan.groups.keys()
        plafond.train(loaded, device="cpu", ceiling=plan.peak.device_bytes, recover=False)

    def test_an_assistant_for_another_model_is_one_sentence(self, tmp_path: Path) -> None:
        path = tmp_path / "other.safetensors"
        save_file({"transformer.blocks.0.lora_A.weight": torch.zeros(1, 1)}, path)
        model = micro_zimage.make_transformer()
        with pytest.raises(JobError) as error:
            merge_assistant(model, str(path))
        assert str(error.value).startswith(f"model.assistant_lora_path: {path} holds no layer of this model")
        with pytest.raises(JobError) as error:
            merge_assistant(model, "./nowhere.safetensors")
        assert str(error.value) == "model.assistant_lora_path: found no file at ./nowhere.safetensors"

    # ------------------------------------------------------------------------------------------------ files

    def test_a_native_file_gives_the_same_weights(self, tmp_path: Path) -> None:
        folder = self.family.load_transformer(self.source, device=CPU, dtype=torch.float32)
        ours = folder.state_dict()
        native = {}
        for entry in self.family.native_table(folder):
            for suffix, spelt in entry.suffixes:
                parts = [ours[part + suffix] for part in entry.diffusers if part + suffix in ours]
                if parts:
                    native[entry.native + spelt] = torch.cat(parts)
        assert sum(tensor.numel() for tensor in native.values()) == sum(t.numel() for t in ours.values())
        theirs = convert_z_image_transformer_checkpoint_to_diffusers(dict(native))
        assert theirs.keys() == ours.keys()
        path = tmp_path / "zimage.safetensors"
        save_file(native, path)
        source = self.family.locate(
            ModelConfig(name_or_path=str(path), arch="zimage", extras_name_or_path=str(self.checkpoint))
        )
        loaded = self.family.load_transformer(source, device=CPU, dtype=torch.float32).state_dict()
        for name, tensor in ours.items():
            assert torch.equal(loaded[name], tensor) and torch.equal(theirs[name], tensor), name

    def test_de_turbo_has_only_a_transformer(self, tmp_path: Path) -> None:
        shutil.copytree(self.checkpoint / "transformer", tmp_path / "deturbo" / "transformer")
        source = self.family.locate(
            ModelConfig(
                name_or_path=str(tmp_path / "deturbo"),
                arch="zimage:deturbo",
                extras_name_or_path=str(self.checkpoint),
            )
        )
        self.family.load_transformer(source, device=CPU, dtype=torch.float32)
        self.family.load_vae(source, device=CPU, dtype=torch.float32)
        assert source.config("transformer")["n_layers"] == 3

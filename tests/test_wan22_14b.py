"""The Wan 2.2 family of two experts: what it has beyond Wan 2.1."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import WanPipeline
from PIL import Image

import micro_wan
from family_checks import FamilyChecks, _process
from plafond.data.buckets import Bucket
from plafond.errors import JobError
from plafond.memory.dryrun import Rehearsal
from plafond.memory.kernels import Target
from plafond.model.checkpoint import Altered
from plafond.training import objective
from plafond.training.step import Stepper
from runs import folder_of, run, weights

EXPERTS = ("high_noise", "low_noise")


class TestWan22(FamilyChecks):
    arch = "wan22_14b:t2v"
    pipeline = WanPipeline
    options = {"guidance_scale": 1.0, "num_frames": 1}  # noqa: RUF012
    latent = (16, 1, 8, 8)
    encoder_parameters = 5_680_910_336

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return micro_wan.make_checkpoint(folder, boundary=0.875)

    def prepare(self, transformer: Any, sigma: torch.Tensor) -> None:
        transformer.turn("high_noise" if sigma.item() >= 0.875 else "low_noise")

    def draw(self, pipeline: Any) -> Image.Image:
        return micro_wan.draw(pipeline)

    def load_lora(self, pipeline: Any, files: tuple[Path, ...]) -> None:
        micro_wan.load_both(pipeline, files)

    @pytest.mark.parametrize(
        "overrides",
        [
            ("train.gradient_checkpointing=false", "train.cache_text_embeddings=false", "train.dtype=bf16"),
            ("train.gradient_checkpointing=true", "train.disable_sampling=false"),
        ],
        ids=lambda overrides: overrides[0],
    )
    def test_the_plan_is_exact(self, job: Callable[..., Path], overrides: tuple[str, ...]) -> None:
        self.check_plan(job, overrides)

    # ------------------------------------------------------------------------------------------------ turns

    def test_experts_take_turns(self, job: Callable[..., Path]) -> None:
        """Each for two steps, with its own noise levels, and only its adapter changes."""
        path = job(train={"steps": 7, "switch_boundary_every": 2}, save={"save_every": 1})
        seen: list[tuple[int, str, float, float]] = []
        gradients = Stepper.gradients

        def spied(stepper: Stepper, micros: Any) -> Any:
            outcome = gradients(stepper, micros)
            moved = {
                name.partition(".")[0]
                for name, parameter in stepper.trainee.parameters.items()
                if parameter.grad is not None
            }
            (name,) = moved
            idle = {"high_noise": "low_noise", "low_noise": "high_noise"}[name]
            blocks = getattr(stepper.trainee.transformer, idle)
            assert all(block.attn1.to_q.base.weight.numel() == 0 for block in blocks), "in main memory"
            seen.append((micros[0].step, name, *levels))
            levels.clear()
            return outcome

        levels: list[float] = []
        drawn = objective.draw_sigmas

        def noted(*args: Any) -> torch.Tensor:
            sigmas = drawn(*args)
            levels[:] = [float(sigmas.min()), float(sigmas.max())]
            return sigmas

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Stepper, "gradients", spied)
            patch.setattr(objective, "draw_sigmas", noted)
            run(path)
        high, low = EXPERTS
        assert [name for _, name, *_ in seen] == [high, high, low, low, high, high, low]
        assert all(least >= 0.875 if name == "high_noise" else most <= 0.875 for _, name, least, most in seen)
        folder = folder_of(path).path
        names = sorted(file.name for file in folder.glob("*.safetensors"))
        kept = [f"tiny_{number:09d}_{name}.safetensors" for number in (5, 6, 7) for name in EXPERTS]
        assert names == sorted([*kept, *(f"tiny_{name}.safetensors" for name in EXPERTS)])
        one, two = (weights(folder / f"tiny_00000000{number}_high_noise.safetensors") for number in (6, 7))
        assert all(torch.equal(one[name], two[name]) for name in one), "not its turn"

    def test_one_expert_alone(self, job: Callable[..., Path]) -> None:
        path = job(model={"model_kwargs": {"train_high_noise": False}}, train={"steps": 2})
        result = run(path)
        assert [file.name for file in result.files] == ["tiny_low_noise.safetensors"]
        with pytest.raises(JobError) as error:
            run(
                job(
                    "none",
                    model={"model_kwargs": dict.fromkeys(("train_high_noise", "train_low_noise"), False)},
                )
            )
        assert str(error.value).endswith(
            "model.model_kwargs: expected train_high_noise or train_low_noise to be true, found both false"
        )

    def test_adapters_of_both_are_taken_up(self, job: Callable[..., Path]) -> None:
        first = run(job("first", train={"steps": 2}))
        again = job(
            "again",
            train={"steps": 1, "lr": 1e-12},
            network={"pretrained_lora_path": str(first.files[1])},
        )
        for one, two in zip(first.files, run(again).files, strict=True):
            old, new = weights(one), weights(two)
            assert old.keys() == new.keys()
            for name, tensor in old.items():
                torch.testing.assert_close(new[name], tensor)

    def test_a_deep_plan_is_the_long_one(self, job: Callable[..., Path]) -> None:
        """Traces of few blocks, lengthened, equal those of all blocks, in every phase."""
        process = _process(job(train={"switch_boundary_every": 3}))
        source = Altered(repo=str(self.checkpoint), changes={"transformer": {"num_layers": 6}})
        found = []
        for full in (False, True):
            rehearsal = Rehearsal(process, self.family, source, Target("cuda"), full_depth=full)
            found.append(
                [
                    rehearsal.load(),
                    rehearsal.train(Bucket(64, 64, 5), 2),
                    rehearsal.preview(process.sample.samples[0]),
                    rehearsal.save(),
                ]
            )
        for short, long in zip(*found, strict=True):
            assert short.replayable() == long.replayable()
            assert (short.peak(), short.total_flops) == (long.peak(), long.total_flops)

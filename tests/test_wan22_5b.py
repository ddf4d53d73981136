"""The Wan 2.2 family of 5 B: its own autoencoder, and first frames where the data set asks for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import WanPipeline
from PIL import Image

import micro_wan
from family_checks import LONG
from first_frame_checks import FRAMES, FirstFrameChecks
from plafond.families._contract import TextEmbedding
from runs import folder_of, losses, run


class TestWan22Small(FirstFrameChecks):
    arch = "wan22_5b"
    latent = (16, 1, 4, 4)
    encoder_parameters = 5_680_910_336
    behind = 1
    begins = False

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        return micro_wan.make_checkpoint(folder, small=True)

    def beside(self) -> TextEmbedding:
        return {}

    def draw(self, pipeline: Any) -> Image.Image:
        """A picture without a first frame."""
        parts = {name: part for name, part in pipeline.components.items() if not name.startswith("image")}
        return micro_wan.draw(WanPipeline(**parts, expand_timesteps=True))

    def check_plan(self, job: Callable[..., Path], overrides: tuple[str, ...]) -> None:
        """Previews are clips that begin with a frame."""
        first = {"ctrl_img": str(self.folder / "still.png"), "num_frames": FRAMES}
        sample = {"samples": [{"prompt": LONG, "neg": LONG, **first}]}
        plan = self.check_plan_of(job(train={"steps": 4}, sample=sample), overrides)
        assert {phase.bucket and phase.bucket.frames for phase in plan.phases if phase.phase == "train"} == {
            1,
            FRAMES,
        }

    def test_a_clip_without_a_first_frame_is_predicted_as_the_pipeline_does(self) -> None:
        """One noise level for all is what the pipeline says to every token."""
        self.pipeline = WanPipeline  # type: ignore[misc]
        self.check_prediction({"guidance_scale": 1.0, "num_frames": FRAMES})

    def test_what_is_given_is_not_learnt(self, job: Callable[..., Path]) -> None:
        """Of the first frame nothing is asked; without do_i2v it counts as the others do."""
        velocity = torch.ones(1, 16, 2, 4, 4)
        assert self.family.scored(velocity, {"control_1": velocity}).shape == (1, 16, 1, 4, 4)
        found = []
        for given in (True, False):
            path = job(f"given_{given}", train={"steps": 2}, datasets={"do_i2v": given})
            run(path)
            found.append(losses(folder_of(path)))
        assert found[0] != found[1]

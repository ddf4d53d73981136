"""What families that go on from a clip's first frame must pass beside the rest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from diffusers import WanImageToVideoPipeline
from PIL import Image, ImageOps
from torch import Tensor

import micro_wan
from conftest import JobMaker
from family_checks import CPU, LONG, PROMPT, FamilyChecks, _process
from micro_clips import make_clip
from plafond.data.clips import read_frames
from plafond.data.images import to_pixels
from plafond.families._contract import TextEmbedding, control
from plafond.job.train import TrainConfig
from plafond.report.terminal import Terminal
from plafond.training.prepare import prepare

GIVEN = control(0)
FRAMES = 5
SIZE = (64, 64)


class FirstFrameChecks(FamilyChecks):
    """The data are clips and a picture, and previews begin with a frame.

    Attributes:
        options: how the pipeline is asked for one conditional prediction.
        behind: frames of the clip whose latents are given; those behind the first are grey.
        begins: previews of the shared checks begin with a frame.
    """

    pipeline = WanImageToVideoPipeline
    options: ClassVar[dict[str, Any]] = {"guidance_scale": 1.0, "num_frames": FRAMES}
    behind: ClassVar[int] = FRAMES
    begins: ClassVar[bool] = True
    # what prepares first frames for encoder and previews works in main memory, which on the CPU is the same
    every_phase: ClassVar[bool] = False
    folder: Path

    @pytest.fixture(scope="class", autouse=True)
    def _clips(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = request.cls.folder = tmp_path_factory.mktemp("clips")
        for name, turned in (("one", 0), ("two", 90)):
            make_clip(folder / f"{name}.mp4", count=9, size=SIZE, turned=turned)
        pixels = np.random.default_rng(5).integers(0, 255, (80, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "still.png")
        for name in ("one", "two", "still"):
            (folder / f"{name}.txt").write_text(LONG)

    @pytest.fixture
    def job(self, make_job: JobMaker, tmp_path: Path, photos: Path) -> Callable[..., Path]:
        inner = FamilyChecks.job.__wrapped__(self, make_job, tmp_path, photos)  # type: ignore[attr-defined]

        def make(name: str = "tiny", **sections: dict[str, Any]) -> Path:
            sections["datasets"] = {
                "folder_path": str(self.folder),
                "num_frames": FRAMES,
                "do_i2v": True,
                **sections.get("datasets", {}),
            }
            sample = dict(sections.get("sample", {}))
            prompts = sample.pop("prompts", [PROMPT])
            first = {"ctrl_img": str(self.folder / "still.png")} if self.begins else {}
            sections["sample"] = {
                "samples": [{"prompt": prompt, **first} for prompt in prompts],
                **sample,
            }
            return inner(name, **sections)  # type: ignore[no-any-return]

        return make

    @property
    def first(self) -> Image.Image:
        """The previews' first frame."""
        return Image.open(self.folder / "still.png").convert("RGB")

    def latents(self, first: Image.Image, size: tuple[int, int]) -> Tensor:
        """What the model is given of a first frame: (1, C, frames, h, w)."""
        vae = self.family.load_vae(self.source, device=CPU, dtype=torch.float32)
        pixels = torch.zeros(1, 3, self.behind, size[1], size[0])
        fitted = ImageOps.fit(first, size, Image.Resampling.BICUBIC)
        pixels[:, :, 0] = torch.from_numpy(np.array(fitted)).permute(2, 0, 1) / 127.5 - 1
        return self.family.encode_image(vae, pixels)

    def beside(self) -> TextEmbedding:
        return {GIVEN: torch.randn(self.latent, generator=torch.Generator().manual_seed(1))}

    def embed(self, prompt: str, first: Image.Image | None = None) -> TextEmbedding:
        encoders = self.family.load_text_encoders(self.source, device=CPU, dtype=torch.float32)
        text = self.family.encode_seen(encoders, prompt, [first or self.first])
        return {name: tensor[None] for name, tensor in text.items()}

    def worded(self, **prompts: str) -> dict[str, Any]:
        """Prompts as the pipeline takes them; its own way to clean them wants another library."""
        return {f"{name}_embeds": self.embed(prompt)["prompt_embeds"] for name, prompt in prompts.items()}

    def draw(self, pipeline: Any) -> Image.Image:
        first = ImageOps.fit(self.first, (96, 64), Image.Resampling.BICUBIC)
        if pipeline.image_encoder is not None:
            # the encoder sees the file, not what the preview's size leaves of it
            encode = type(pipeline).encode_image
            pipeline.encode_image = lambda _, device: encode(pipeline, self.first, device)
        return micro_wan.draw(pipeline, image=first, **self.worded(**micro_wan.WORDS))

    # ------------------------------------------------------------------------------------------------ checks

    @pytest.mark.parametrize(
        "overrides", [("train.gradient_checkpointing=true", "train.disable_sampling=false")]
    )
    def test_the_plan_is_exact(self, job: Callable[..., Path], overrides: tuple[str, ...]) -> None:
        self.check_plan(job, overrides)

    def test_prediction_equals_the_pipelines_own(self) -> None:
        """Of a clip, with the first frame's latents as the data's are made."""
        pipeline = self.pipe()
        calls: list[tuple[Tensor, Tensor, Tensor]] = []
        step = pipeline.scheduler.step

        def recorded(output: Tensor, timestep: Tensor, sample: Tensor, **kwargs: Any) -> Any:
            calls.append((output, timestep, sample))
            return step(output, timestep, sample, **kwargs)

        pipeline.scheduler.step = recorded
        first = ImageOps.fit(self.first, (96, 64))
        words = self.worded(prompt=PROMPT)
        pipeline(image=first, **words, height=64, width=96, num_inference_steps=2, **self.options)
        transformer = self.family.load_transformer(self.source, device=CPU, dtype=torch.float32)
        text = {**self.embed(PROMPT, first), GIVEN: self.latents(first, (96, 64))}
        assert len(calls) == 2
        for output, timestep, sample in calls:
            sigma = (timestep / 1000).reshape(1)
            self.prepare(transformer, sigma)
            with torch.no_grad():
                velocity = self.family.predict(transformer, sample, sigma, text, TrainConfig())
            torch.testing.assert_close(
                self.family.scored(velocity, text), self.family.scored(output, text), rtol=1e-4, atol=1e-5
            )

    def test_clips_are_given_their_own_first_frames(self, job: Callable[..., Path], tmp_path: Path) -> None:
        process = _process(job())
        with Terminal(sys.stderr) as terminal:
            feed = prepare(process, self.family, device=CPU, terminal=terminal).feed
        clips = {}
        for batch in (feed.micros(step)[0] for step in range(1, 5)):
            if batch.batch.bucket.frames > 1:
                clips |= {
                    item.picture.name: (item, given)
                    for item, given in zip(batch.batch.items, batch.text[GIVEN], strict=True)
                }
            elif GIVEN in batch.text:
                torch.testing.assert_close(batch.text[GIVEN], batch.latents)
        assert clips.keys() == {"one.mp4", "two.mp4"}
        for item, given in clips.values():
            (first,) = read_frames(item.picture.path, item.picture.frames[:1])
            pixels = to_pixels(first, item.bucket)[:, None]
            padded = torch.cat([pixels, torch.zeros_like(pixels).expand(-1, self.behind - 1, -1, -1)], dim=1)
            vae = self.family.load_vae(self.source, device=CPU, dtype=torch.float32)
            torch.testing.assert_close(given[None], self.family.encode_image(vae, padded[None]))

    def test_the_first_frame_matters(self) -> None:
        """Another one gives another prediction of the frames behind it."""
        text, found = self.embed(PROMPT), []
        transformer = self.family.load_transformer(self.source, device=CPU, dtype=torch.float32)
        for color in ("red", "blue"):
            given = text[GIVEN] = self.latents(Image.new("RGB", SIZE, color), SIZE)
            shape = (*given.shape[:2], 2, *given.shape[3:])
            noisy = torch.randn(shape, generator=torch.Generator().manual_seed(0))
            with torch.no_grad():
                found.append(
                    self.family.predict(transformer, noisy, torch.tensor([0.5]), text, TrainConfig())
                )
        assert (found[0] - found[1])[:, :, 1:].abs().max() > 1e-4

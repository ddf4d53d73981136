"""What families with control images must pass beside the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from diffusers import QwenImagePipeline
from PIL import Image
from torch import Tensor

import micro_qwen_image
from conftest import JobMaker
from family_checks import CPU, LONG, PROMPT, FamilyChecks
from micro_qwen import make_tokenizer
from plafond.errors import DataError, JobError
from plafond.families._contract import TextEmbedding, control
from plafond.job.train import TrainConfig
from runs import folder_of, losses, run


def make_edit_checkpoint(folder: Path, **changes: object) -> Path:
    """A Qwen-Image-Edit folder; its image processor has the published numbers."""
    torch.manual_seed(0)
    QwenImagePipeline(
        scheduler=micro_qwen_image.make_scheduler(),
        vae=micro_qwen_image.make_vae(),
        text_encoder=micro_qwen_image.make_encoder(),
        tokenizer=make_tokenizer(2000),
        transformer=micro_qwen_image.make_transformer(**changes),
    ).save_pretrained(folder)
    (folder / "processor").mkdir()
    numbers = {
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "min_pixels": 3136,
        "max_pixels": 12845056,
    }
    (folder / "processor" / "preprocessor_config.json").write_text(json.dumps(numbers))
    return folder


class EditChecks(FamilyChecks):
    """Every picture has as many control images as the family takes."""

    # what prepares control images for the encoder and for previews works in main memory, which on the CPU is the same
    every_phase: ClassVar[bool] = False
    folder: Path

    @pytest.fixture(scope="class", autouse=True)
    def _controls(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
        request.cls.folder = tmp_path_factory.mktemp("controls")
        dice = np.random.default_rng(5)
        for place in range(3):
            (request.cls.folder / f"{place}").mkdir()
            for index in range(5):
                # square, as plans take them to be
                pixels = dice.integers(0, 255, (80, 80, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(request.cls.folder / f"{place}" / f"{index}.webp")

    @property
    def folders(self) -> list[str]:
        """Folders of control images."""
        return [str(self.folder / str(place)) for place in range(self.family.controls)]

    @property
    def images(self) -> list[Image.Image]:
        """The control images of one picture."""
        return [Image.open(Path(folder) / "1.webp") for folder in self.folders]

    @pytest.fixture
    def job(self, make_job: JobMaker, tmp_path: Path, photos: Path) -> Callable[..., Path]:
        inner = FamilyChecks.job.__wrapped__(self, make_job, tmp_path, photos)  # type: ignore[attr-defined]

        def make(name: str = "tiny", **sections: dict[str, Any]) -> Path:
            sections["datasets"] = {"control_path": self.folders, **sections.get("datasets", {})}
            sections["model"] = {"model_kwargs": {"match_target_res": True}, **sections.get("model", {})}
            sample = dict(sections.get("sample", {}))
            controls = {
                f"ctrl_img_{place + 1}": str(Path(folder) / "1.webp")
                for place, folder in enumerate(self.folders)
            }
            prompts = sample.pop("prompts", [PROMPT])
            sections["sample"] = {
                **sample,
                "samples": [{"prompt": prompt, **controls} for prompt in prompts],
            }
            return inner(name, **sections)  # type: ignore[no-any-return]

        return make

    def seen(self, prompt: str) -> TextEmbedding:
        """The prompt's embedding, with the control images where the encoder looks at them."""
        if not self.family.sees_controls:
            return self.embed(prompt)
        encoders = self.family.load_text_encoders(self.source, device=CPU, dtype=torch.float32)
        text = self.family.encode_seen(encoders, prompt, self.images)
        return {name: tensor[None] for name, tensor in text.items()}

    def given(self, text: TextEmbedding) -> dict[str, Any]:
        """An embedding as the pipeline takes it."""
        return dict(text)

    # ------------------------------------------------------------------------------------------------ checks

    @pytest.mark.parametrize("checkpointing", ["false", "true"])
    def test_the_plan_is_exact(self, job: Callable[..., Path], checkpointing: str) -> None:  # type: ignore[override]
        self.check_plan(job, (f"train.gradient_checkpointing={checkpointing}",))

    def test_prediction_equals_the_pipelines_own(self) -> None:
        """The same latents, embeddings and control images give the same velocity."""
        pipeline, text = self.pipe(), self.seen(PROMPT)
        calls: list[tuple[Tensor, Tensor, Tensor]] = []
        step, prepare, kept = pipeline.scheduler.step, pipeline.prepare_latents, []

        def recorded(output: Tensor, timestep: Tensor, sample: Tensor, **kwargs: Any) -> Any:
            calls.append((output, timestep, sample))
            return step(output, timestep, sample, **kwargs)

        def prepared(images: Any, *args: Any) -> Any:
            kept.extend(images if isinstance(images, list) else [images])
            return prepare(images, *args)

        pipeline.scheduler.step, pipeline.prepare_latents = recorded, prepared
        images = self.images if self.family.controls > 1 else self.images[0]
        pipeline(images, **self.given(text), height=64, width=96, num_inference_steps=2, **self.options)
        transformer = self.family.load_transformer(self.source, device=CPU, dtype=torch.float32)
        vae = self.family.load_vae(self.source, device=CPU, dtype=torch.float32)
        assert len(kept) == self.family.controls
        for place, pixels in enumerate(kept):
            pixels = pixels[:, :, 0] if pixels.dim() == 5 else pixels
            text[control(place)] = self.family.encode_image(vae, pixels)
        for output, timestep, sample in calls:
            sigma = (timestep / 1000).reshape(1)
            with torch.no_grad():
                velocity = self.family.predict(
                    transformer, self.unpack(sample, 64, 96), sigma, text, TrainConfig()
                )
            torch.testing.assert_close(velocity, self.unpack(output, 64, 96), rtol=1e-4, atol=1e-5)

    def test_control_images_matter(self, job: Callable[..., Path], tmp_path: Path) -> None:
        """Others give another loss: through the encoder, and through the transformer alone."""
        family, text = self.family, self.seen(PROMPT)
        transformer = family.load_transformer(self.source, device=CPU, dtype=torch.float32)
        noisy, sigma = torch.randn(1, 16, 8, 8), torch.tensor([0.5])
        found = []
        for fill in (0.0, 1.0):
            text[control(0)] = torch.full((1, 16, 8, 8), fill)
            with torch.no_grad():
                found.append(family.predict(transformer, noisy, sigma, text, TrainConfig()))
        assert (found[0] - found[1]).abs().max() > 1e-3
        other = tmp_path / "other"
        other.mkdir()
        for index in range(5):
            Image.new("RGB", (80, 80), (200, 10, 10)).save(other / f"{index}.png")
        one = job("one", train={"steps": 2})
        two = job("two", train={"steps": 2}, datasets={"control_path": [str(other)] * self.family.controls})
        run(one)
        run(two)
        assert losses(folder_of(one)) != losses(folder_of(two))

    def test_missing_control_images_are_named(self, job: Callable[..., Path], tmp_path: Path) -> None:
        few = tmp_path / "few"
        shutil.copytree(self.folder / "0", few)
        (few / "1.webp").unlink()
        (few / "3.webp").unlink()
        with pytest.raises(DataError) as error:
            run(job(datasets={"control_path": [str(few)]}))
        assert str(error.value) == (
            f"{few}: no control image for 1.png, 3.png; expected files of the same names."
        )
        with pytest.raises(JobError) as failed:
            run(job(datasets={"control_path": [str(few)] * 4}))
        assert "control_path: expected at most " in str(failed.value)


class QwenEditChecks(EditChecks):
    """Families whose encoder, Qwen2.5-VL, looks at the control images."""

    options: ClassVar[dict[str, Any]] = {"true_cfg_scale": 1.0}
    scale: ClassVar[str] = "true_cfg_scale"

    def pipe(self) -> Any:
        parts = QwenImagePipeline.from_pretrained(self.checkpoint).components
        pipeline = self.pipeline(processor=None, **parts)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def draw(self, pipeline: Any) -> Image.Image:
        negative = {f"negative_{name}": tensor for name, tensor in self.seen("blurred").items()}
        return pipeline(  # type: ignore[no-any-return]
            self.images if self.family.controls > 1 else self.images[0],
            **self.seen(PROMPT),
            **negative,
            width=96,
            height=64,
            num_inference_steps=2,
            true_cfg_scale=4.0,
            generator=torch.Generator().manual_seed(3),
        ).images[0]

    def unpack(self, latents: Tensor, height: int, width: int) -> Tensor:
        return QwenImagePipeline._unpack_latents(latents, height, width, 8)[:, :, 0]

    def test_the_encoder_sees_what_the_whole_model_does(self) -> None:
        """Our call of the parts equals Qwen2.5-VL's own on the same tokens."""
        from transformers import Qwen2_5_VLForConditionalGeneration

        encoders = self.family.load_text_encoders(self.source, device=CPU, dtype=torch.float32)
        calls: dict[str, Any] = {}
        tokenizer, processor = encoders.tokenizer, encoders.processor

        def tokenise(text: str, **kwargs: Any) -> Any:
            calls["tokens"] = tokenizer(text, **kwargs)
            return calls["tokens"]

        tokenise.model_max_length = tokenizer.model_max_length  # type: ignore[attr-defined]

        def process(**kwargs: Any) -> Any:
            calls["pixels"] = processor(**kwargs)
            return calls["pixels"]

        encoders.register_modules(tokenizer=None, processor=None)
        encoders.tokenizer, encoders.processor = tokenise, process
        text = self.family.encode_seen(encoders, PROMPT, self.images)
        whole = Qwen2_5_VLForConditionalGeneration.from_pretrained(self.checkpoint, subfolder="text_encoder")
        ids = calls["tokens"].input_ids
        with torch.no_grad():
            states = whole(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                mm_token_type_ids=(ids == whole.config.image_token_id).int(),
                **calls["pixels"],
                output_hidden_states=True,
            ).hidden_states[-1]
        expected = states[0, encoders.prompt_template_encode_start_idx :]
        torch.testing.assert_close(text["prompt_embeds"], expected, rtol=1e-4, atol=1e-5)

    def test_long_prompts_with_controls(self) -> None:
        """The mask covers words and pictures."""
        text = self.seen(LONG)
        assert text["prompt_embeds"].shape[1] == text["prompt_embeds_mask"].sum()

"""What every model family must pass; a family's test file derives from `FamilyChecks`."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from PIL import Image, ImageChops
from torch import Tensor

import plafond
from conftest import JobMaker
from plafond.activations.blocks import blocks_of
from plafond.data.buckets import Bucket
from plafond.families import family_for
from plafond.families._contract import Family, TextEmbedding
from plafond.job.model import ModelConfig
from plafond.job.schema import ProcessConfig
from plafond.job.train import TrainConfig
from plafond.memory.dryrun import Rehearsal
from plafond.memory.gpus import Ceiling
from plafond.memory.kernels import Target
from plafond.model.checkpoint import Source
from plafond.plan.forecast import Forecaster, Plan
from plafond.report.terminal import Terminal
from plafond.training.embeddings import stack
from plafond.training.export import DTYPES
from plafond.training.optim import make_optimizer
from plafond.training.prepare import prepare
from plafond.training.run_folder import RunFolder
from plafond.training.step import Stepper
from plafond.training.trainee import make_trainee
from runs import assert_same_weights, folder_of, losses, run

CPU = torch.device("cpu")
PROMPT = "a photo of sks thing"
LONG = f"{PROMPT}, " * 40
"""More than any tokenizer takes here: plans count with the most."""


class FamilyChecks:
    """Says of one family what the checks need to know.

    Attributes:
        arch: as a job names it.
        pipeline: diffusers' pipeline.
        options: how the pipeline is asked for one conditional prediction.
        scale: the pipeline's name for the guidance scale of previews.
        latent: shape of a small picture's latents.
        encoder_parameters: of the published text encoders.
        every_phase: plans are exact in all phases, not only while training.
    """

    arch: ClassVar[str]
    pipeline: ClassVar[Any]
    options: ClassVar[dict[str, Any]]
    scale: ClassVar[str] = "guidance_scale"
    latent: ClassVar[tuple[int, ...]] = (16, 8, 8)
    encoder_parameters: ClassVar[int]
    every_phase: ClassVar[bool] = True
    checkpoint: Path
    captions: Path

    @staticmethod
    def make_checkpoint(folder: Path) -> Path:
        """Write a tiny checkpoint of the real classes."""
        raise NotImplementedError

    def unpack(self, latents: Tensor, height: int, width: int) -> Tensor:
        """The pipeline's latents as (B, C, h, w)."""
        return latents

    def prepare(self, transformer: Any, sigma: Tensor) -> None:
        """What training does with the transformer before it predicts at a noise level."""

    def beside(self) -> TextEmbedding:
        """What the model is given beside a prompt when it is asked for a small picture."""
        return {}

    # ------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture(scope="class", autouse=True)
    def _checkpoint(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
        request.cls.checkpoint = request.cls.make_checkpoint(tmp_path_factory.mktemp("checkpoint"))

    @pytest.fixture
    def job(self, make_job: JobMaker, tmp_path: Path, photos: Path) -> Callable[..., Path]:
        """Write a job on the tiny checkpoint; its captions are as long as tokenizers take."""
        data = tmp_path / "photos"
        shutil.copytree(photos, data, ignore=shutil.ignore_patterns("_*"))
        for path in data.glob("*.txt"):
            path.write_text(LONG)

        def make(name: str = "tiny", **sections: dict[str, Any]) -> Path:
            model = {"name_or_path": str(self.checkpoint), "arch": self.arch, "is_flux": False}
            sections["model"] = {**model, **sections.get("model", {})}
            sections["datasets"] = {
                "folder_path": str(data),
                "caption_dropout_rate": 0.0,
                **sections.get("datasets", {}),
            }
            return make_job(name, **sections)

        return make

    @property
    def family(self) -> Family:
        """The family."""
        return family_for(self.arch.partition(":")[0])

    @property
    def source(self) -> Source:
        """The tiny checkpoint's parts."""
        return self.family.locate(ModelConfig(name_or_path=str(self.checkpoint), arch=self.arch))

    def embed(self, prompt: str) -> TextEmbedding:
        """A batch of one prompt."""
        encoders = self.family.load_text_encoders(self.source, device=CPU, dtype=torch.float32)
        (text,) = self.family.encode_text(encoders, [prompt])
        return {name: tensor[None] for name, tensor in text.items()}

    def pipe(self) -> Any:
        """The pipeline on the tiny checkpoint."""
        pipeline = self.pipeline.from_pretrained(self.checkpoint)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    # ------------------------------------------------------------------------------------------------ checks

    def test_published_models_have_their_size(self) -> None:
        for base in self.family.base_models:
            source = self.family.locate(ModelConfig(name_or_path=base.repo, arch=base.arch))
            with torch.device("meta"):
                config = source.config(self.family.denoiser)
                transformer = self.family.build_transformer(config)
                encoders = self.family.build_text_encoders(source)
                self.family.build_vae(source)
            assert _size(transformer) == base.transformer_parameters
            assert sum(map(_size, self.family.text_modules(encoders))) == self.encoder_parameters
            groups = Counter(place.group for place, _ in blocks_of(transformer))
            assert groups == self.family.block_counts(config)
            # quantising leaves only embedders and outputs
            packed = (*self.family.lora_blocks, *self.family.packed_blocks)
            left = [
                module
                for name, module in transformer.named_modules()
                if isinstance(module, torch.nn.Linear) and not any(block in name for block in packed)
            ]
            assert sum(map(_size, left)) < 0.05 * base.transformer_parameters

    def test_prediction_equals_the_pipelines_own(self) -> None:
        self.check_prediction(self.options)

    def check_prediction(self, options: dict[str, Any]) -> None:
        """`predict` gives what the pipeline's own call gives."""
        pipeline = self.pipe()
        calls: list[tuple[Tensor, Tensor, Tensor]] = []
        step = pipeline.scheduler.step

        def recorded(output: Tensor, timestep: Tensor, sample: Tensor, **kwargs: Any) -> Any:
            calls.append((output, timestep, sample))
            return step(output, timestep, sample, **kwargs)

        pipeline.scheduler.step = recorded
        height, width = 64, 96
        pipeline(PROMPT, height=height, width=width, num_inference_steps=2, **options)
        transformer = self.family.load_transformer(self.source, device=CPU, dtype=torch.float32)
        text = self.embed(PROMPT)
        assert len(calls) == 2
        for output, timestep, sample in calls:
            sigma = (timestep / 1000).reshape(1)
            self.prepare(transformer, sigma)
            with torch.no_grad():
                velocity = self.family.predict(
                    transformer, self.unpack(sample, height, width), sigma, text, TrainConfig()
                )
            torch.testing.assert_close(velocity, self.unpack(output, height, width), rtol=1e-4, atol=1e-5)

    def test_prompts_of_a_batch_do_not_disturb_each_other(self) -> None:
        transformer = self.family.load_transformer(self.source, device=CPU, dtype=torch.float32)
        encoders = self.family.load_text_encoders(self.source, device=CPU, dtype=torch.float32)
        found = self.family.encode_text(encoders, ["a cat", "a dog that is seen from far away"])
        texts = [{**text, **self.beside()} for text in found]
        noisy = torch.randn(2, *self.latent, generator=torch.Generator().manual_seed(0))
        sigma = torch.tensor([0.3, 0.8])
        with torch.no_grad():
            both = self.family.predict(transformer, noisy, sigma, stack(texts), TrainConfig())
            for index, text in enumerate(texts):
                one = slice(index, index + 1)
                alone = self.family.predict(transformer, noisy[one], sigma[one], stack([text]), TrainConfig())
                torch.testing.assert_close(both[one], alone, rtol=1e-4, atol=1e-5)

    def test_blocks_can_be_planned(self, job: Callable[..., Path]) -> None:
        """Every block's operations are known, so that it can keep what a plan says."""
        process = _process(job())
        trainee, micro, stepper = self._ready(process)
        turns = trainee.turns
        for step in (
            [1] if turns is None else [1 + turns.every * place for place in range(len(turns.experts))]
        ):
            stepper.micro_step(replace(micro, step=step))
        for group in self.family.depth:
            assert all(block.learnt is not None for block in trainee.blocks[group]), group

    def test_thirty_steps_lower_the_loss(self, job: Callable[..., Path]) -> None:
        process = _process(job(train={"lr": 5e-3}, network={"linear": 8, "linear_alpha": 8}))
        trainee, micro, stepper = self._ready(process)
        optimizer = make_optimizer(trainee.parameters.values(), process.train)
        found = [stepper.run([micro], optimizer).loss for _ in range(30)]
        assert found[-1] < 0.9 * found[0]

    def _ready(self, process: ProcessConfig) -> tuple[Any, Any, Stepper]:
        with Terminal(sys.stderr) as terminal:
            prepared = prepare(process, self.family, device=CPU, terminal=terminal)
        dtype = DTYPES[process.train.dtype]
        transformer = self.family.load_transformer(prepared.source, device=CPU, dtype=dtype)
        trainee = make_trainee(transformer, self.family, process, Target.of(CPU))
        stepper = Stepper(trainee, self.family, process, CPU, dtype)
        return trainee, prepared.feed.micros(1)[0], stepper

    @pytest.mark.parametrize(
        "overrides",
        [
            ("train.gradient_checkpointing=false",),
            ("train.gradient_checkpointing=true", "train.disable_sampling=false"),
            ("train.cache_text_embeddings=false", "train.dtype=bf16"),
        ],
        ids=lambda overrides: overrides[0],
    )
    def test_the_plan_is_exact(self, job: Callable[..., Path], overrides: tuple[str, ...]) -> None:
        self.check_plan(job, overrides)

    def check_plan(self, job: Callable[..., Path], overrides: tuple[str, ...]) -> None:
        """The plan is what a run under a virtual ceiling takes."""
        self.check_plan_of(job(train={"steps": 4}, sample={"prompts": [LONG], "neg": LONG}), overrides)

    def check_plan_of(self, path: Path, overrides: tuple[str, ...] = ()) -> Plan:
        """The plan, which is exact."""
        plan = _plan(path, overrides)
        predicted = {
            str(one.bucket): one.summary.allocated_bytes for one in plan.phases if one.phase == "train"
        }
        measured: dict[str, int] = {}
        for row in _counted(path, 2**40, overrides).read_metrics():
            measured[row["bucket"]] = max(measured.get(row["bucket"], 0), row["allocated_peak"])
        assert measured.keys() == predicted.keys()
        assert all(measured[bucket] <= predicted[bucket] for bucket in measured)
        assert max(predicted.values()) - max(measured.values()) <= 4096
        if not self.every_phase:
            return plan
        # what is cached now is not made again
        later = max(
            one.device_bytes for one in plan.phases if one.phase not in ("cache_latents", "encode_text")
        )
        assert _completes(path, later, overrides)
        assert not _completes(path, later - 16384, overrides)
        if plan.peak.device_bytes > later:
            _forget(path)
            assert _completes(path, plan.peak.device_bytes, overrides)
            _forget(path)
            assert not _completes(path, plan.peak.device_bytes - 16384, overrides)
        return plan

    def test_standing_pictures_take_what_lying_ones_take(self, job: Callable[..., Path]) -> None:
        if not self.family.either_way:
            pytest.skip("each is planned by itself")
        process = _process(job())
        found = []
        for bucket in (Bucket(96, 64), Bucket(64, 96)):
            trace = Rehearsal(process, self.family, self.source, Target("cuda", (8, 9))).train(bucket, 2)
            found.append([(event.allocates, trace.sizes[event.allocation]) for event in trace.events])
        assert found[0] == found[1]

    def test_a_stopped_run_goes_on_bit_by_bit(self, job: Callable[..., Path]) -> None:
        whole, halves = job("whole"), job("halves")
        result = run(whole)
        run(halves, overrides=("train.steps=3",))
        again = run(halves)
        for one, two in zip(result.files, again.files, strict=True):
            assert_same_weights(one, two)
        assert losses(folder_of(whole)) == losses(folder_of(halves))

    def test_diffusers_draws_our_preview_from_the_saved_file(self, job: Callable[..., Path]) -> None:
        path = job(
            train={"disable_sampling": False, "lr": 0.05, "steps": 6},
            sample={"format": "png", "seed": 3, "width": 96, "height": 64, "neg": "blurred"},
        )
        result = run(path)
        ours = Image.open(folder_of(path).previews()[6][0])
        assert ours.size == (96, 64)
        pipeline = self.pipe()
        draw = partial(self.draw, pipeline)
        base = draw()
        self.load_lora(pipeline, result.files)
        assert _difference(ours, draw()) <= 1, "at most one step of 256 in any pixel"
        assert _difference(ours, base) > 8

    def load_lora(self, pipeline: Any, files: tuple[Path, ...]) -> None:
        """Give the pipeline what a run has saved."""
        pipeline.load_lora_weights(files[-1])

    def draw(self, pipeline: Any) -> Image.Image:
        """What the pipeline draws where the job asks for a preview."""
        return pipeline(  # type: ignore[no-any-return]
            PROMPT,
            negative_prompt="blurred",
            width=96,
            height=64,
            num_inference_steps=2,
            generator=torch.Generator().manual_seed(3),
            **{self.scale: 4.0},
        ).images[0]


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _difference(one: Image.Image, two: Image.Image) -> float:
    return float(max(high for _, high in ImageChops.difference(one, two).getextrema()))


def _process(path: Path, overrides: tuple[str, ...] = ()) -> ProcessConfig:
    (process,) = plafond.load_job(path, overrides=overrides).processes
    return process


def _plan(path: Path, overrides: tuple[str, ...]) -> Plan:
    return Forecaster(_process(path, overrides), Ceiling(2**40, 0, "test", None), virtual=True).plan()


def _counted(path: Path, ceiling: int, overrides: tuple[str, ...]) -> RunFolder:
    loaded = plafond.load_job(path, overrides=overrides)
    plafond.train(loaded, device="cpu", fresh=True, ceiling=ceiling, recover=False)
    return folder_of(path)


def _forget(path: Path) -> None:
    for folder in path.parent.rglob("_*_cache"):
        shutil.rmtree(folder)


def _completes(path: Path, ceiling: int, overrides: tuple[str, ...]) -> bool:
    try:
        _counted(path, ceiling, overrides)
    except torch.OutOfMemoryError:
        return False
    return True

"""What a run computes: means, plans, optimizers, full fine-tunes, non-finite steps, previews, saved files."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from PIL import Image, ImageChops
from safetensors import safe_open
from torch import Tensor, nn

import plafond
from conftest import JobMaker
from plafond.errors import JobError, NonFiniteError
from plafond.families import family_for
from plafond.families._contract import TextEmbedding
from plafond.families.flux import Flux, bypass_guidance
from plafond.job.schema import ProcessConfig
from plafond.job.train import TrainConfig
from plafond.memory.kernels import Target
from plafond.report.terminal import Terminal
from plafond.training.optim import make_optimizer, make_state, round_stochastically, state_tensors
from plafond.training.prepare import Prepared, prepare
from plafond.training.start import choose_device
from plafond.training.step import Stepper
from plafond.training.trainee import make_trainee
from runs import assert_same_weights, folder_of, losses, run, weights

CPU = torch.device("cpu")


def set_up(job: Path, tmp_path: Path, *overrides: str) -> tuple[ProcessConfig, Prepared, Stepper]:
    """A job ready to train, without the loop."""
    (process,) = plafond.load_job(job, overrides=overrides).processes
    family = family_for("flux")
    with (tmp_path / "log.txt").open("w") as log, Terminal(log) as terminal:
        prepared = prepare(process, family, device=CPU, terminal=terminal)
    transformer = family.load_transformer(prepared.source, device=CPU, dtype=torch.float32)
    return (
        process,
        prepared,
        Stepper(
            make_trainee(transformer, family, process, Target("cpu")), family, process, CPU, torch.float32
        ),
    )


def test_accumulated_gradients_are_the_mean_over_samples(make_job: JobMaker, tmp_path: Path) -> None:
    # five pictures in batches of two leave one batch of one: a mean of batch means would be wrong
    job = make_job(train={"gradient_accumulation": 3, "batch_size": 2})
    _, prepared, stepper = set_up(job, tmp_path)
    micros = prepared.feed.micros(1)
    sizes = [len(micro.batch.items) for micro in micros]
    assert sorted(sizes) == [1, 2, 2]
    parameters = stepper.trainee.parameters
    expected: dict[str, Tensor] = {}
    total = 0.0
    for micro, size in zip(micros, sizes, strict=True):
        loss = stepper.loss(micro)
        loss.backward()
        total += float(loss.detach()) * size / 5
        for name, parameter in parameters.items():
            assert parameter.grad is not None
            expected[name] = expected.get(name, 0) + parameter.grad * size / 5
            parameter.grad = None
    assert math.fsum(stepper.micro_step(micro) for micro in micros) == pytest.approx(total, rel=1e-6)
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-7)


def test_checkpointing_changes_nothing(make_job: JobMaker) -> None:
    network = {"linear": 4, "dropout": 0.3}
    recomputed = make_job("recomputed", network=network, train={"gradient_checkpointing": True})
    kept = make_job("kept", network=network, train={"gradient_checkpointing": False})
    run(recomputed)
    run(kept)
    assert losses(folder_of(recomputed)) == losses(folder_of(kept))
    assert_same_weights(folder_of(recomputed).final, folder_of(kept).final)


def test_live_and_cached_text_train_alike(make_job: JobMaker) -> None:
    cached = make_job("cached")
    live = make_job("live", train={"cache_text_embeddings": False})
    run(cached)
    run(live)
    assert_same_weights(folder_of(cached).final, folder_of(live).final)


OPTIMIZERS = ["adamw", "adam", "adamw8bit", "adam8bit", "lion", "lion8bit", "adafactor", "prodigy"]


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "adam8bit"])
def test_every_optimizer_trains_and_resumes(make_job: JobMaker, optimizer: str) -> None:
    train = {"optimizer": optimizer, "steps": 4, "lr": 1e-3}
    sections = {"train": train, "network": {"linear": 64}, "save": {"save_every": 2}}
    whole, job = make_job("whole", **sections), make_job("parts", **sections)
    run(whole)
    run(job, overrides=("train.steps=2",))
    run(job)
    assert_same_weights(folder_of(whole).final, folder_of(job).final)
    assert any(tensor.any() for name, tensor in weights(folder_of(job).final).items() if "lora_B" in name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_that_is_made_beforehand_changes_nothing(name: str, dtype: torch.dtype) -> None:
    if name == "prodigy" and dtype == torch.bfloat16:
        pytest.skip("refused for full fine-tunes")

    def trained(*, beforehand: bool) -> list[Tensor]:
        torch.manual_seed(0)
        shapes = [(96, 80), (16, 96), (7,)]  # eight bits and fewer than 4,096 elements
        parameters = [nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
        settings = TrainConfig(lr=1e-3, optimizer=name, optimizer_params={"weight_decay": 0.1})
        optimizer = make_optimizer(parameters, settings)
        if beforehand:
            make_state(optimizer)
            assert list(state_tensors(optimizer)) and all(one.grad is None for one in parameters)
        sizes = sorted(tensor.nbytes for tensor in state_tensors(optimizer))
        for step in range(3):
            torch.manual_seed(step)
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        if beforehand:
            assert sizes == sorted(tensor.nbytes for tensor in state_tensors(optimizer)), (
                "all of it was there"
            )
        return [parameter.detach() for parameter in parameters]

    for one, two in zip(trained(beforehand=True), trained(beforehand=False), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    "schedule", ["cosine", "cosine_with_restarts", "linear", "step", "constant_with_warmup"]
)
def test_every_schedule_resumes_where_it_was(make_job: JobMaker, schedule: str) -> None:
    params = {"num_warmup_steps": 3} if schedule == "constant_with_warmup" else {}
    train = {"lr_scheduler": schedule, "lr_scheduler_params": params, "steps": 6}
    whole, job = make_job("whole", train=train), make_job("parts", train=train)
    run(whole)
    run(job, overrides=("train.steps=3",))
    run(job)
    rates = [[row["lr"] for row in folder_of(one).read_metrics()] for one in (whole, job)]
    # the first half was run with steps=3, which a schedule that spans the run sees
    assert rates[0][4:] == rates[1][4:]
    assert len(set(rates[0])) > 1


def test_unknown_optimizer_parameters_are_one_sentence(make_job: JobMaker) -> None:
    job = make_job(train={"optimizer_params": {"weight_decai": 0.1}})
    with pytest.raises(JobError) as error:
        run(job)
    place, _, rest = str(error.value).partition("train.optimizer_params: ")
    assert place.startswith(f"{job}, line ")
    assert rest.startswith("adamw does not take {'weight_decai': 0.1}: ")


def test_full_fine_tune_trains_the_chosen_parameters(make_job: JobMaker, micro_checkpoint: Path) -> None:
    job = make_job(
        network=None,
        model={"only_if_contains": ["transformer.single_transformer_blocks."]},
        train={"optimizer": "adafactor"},
        save={"dtype": "float32", "save_format": "diffusers"},
    )
    result = run(job)
    (folder,) = result.files
    tuned = FluxTransformer2DModel.from_pretrained(folder, subfolder="transformer").state_dict()
    base = FluxTransformer2DModel.from_pretrained(micro_checkpoint, subfolder="transformer").state_dict()
    changed = {name for name in base if not torch.equal(base[name], tuned[name])}
    assert changed
    assert all(name.startswith("single_transformer_blocks.") for name in changed)


def test_bfloat16_full_fine_tune_does_not_lose_small_updates() -> None:
    # A step of 1e-5 on weights near 1 is far below bfloat16's spacing of 2⁻⁷; nearest rounding would drop it.
    torch.manual_seed(0)
    weight = nn.Parameter(torch.ones(20_000, dtype=torch.bfloat16))
    settings = TrainConfig(lr=1e-5, optimizer="adamw", optimizer_params={"weight_decay": 0.0})
    optimizer = make_optimizer([weight], settings)
    for _ in range(50):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert float(weight.detach().float().mean()) == pytest.approx(1 - 50 * 1e-5, abs=5e-5)
    values = torch.full((100_000,), 1 + 2**-9)
    rounded = round_stochastically(values).float()
    assert set(rounded.tolist()) == {1.0, 1 + 2**-7}
    assert float(rounded.mean()) == pytest.approx(1 + 2**-9, abs=1e-4)


class Broken:
    """Makes the model's prediction NaN for the given calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, calls: range):
        self.count, self.calls, self.predict = 0, calls, Flux.predict
        monkeypatch.setattr(Flux, "predict", lambda *arguments: self.run(*arguments))

    def run(
        self,
        family: Flux,
        model: nn.Module,
        noisy: Tensor,
        sigma: Tensor,
        text: TextEmbedding,
        settings: TrainConfig,
    ) -> Tensor:
        self.count += 1
        velocity = self.predict(family, model, noisy, sigma, text, settings)
        return velocity * math.nan if self.count in self.calls else velocity


def test_a_non_finite_step_is_not_applied_and_is_named(
    make_job: JobMaker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job = make_job(save={"save_every": 1, "max_step_saves_to_keep": 9})
    Broken(monkeypatch, range(3, 4))
    run(job)
    folder = folder_of(job)
    rows = folder.read_metrics()
    assert [row["applied"] for row in rows] == [True, True, False, True, True, True]
    assert rows[2]["loss"] is None
    assert [Path(sample).suffix for sample in rows[2]["samples"]] == [".png"] * len(rows[2]["samples"])
    assert_same_weights(folder.milestone(2), folder.milestone(3))
    assert "step 3: loss nan, gradient nan; not applied (" in capfd.readouterr().err


def test_ten_non_finite_steps_in_a_row_stop_the_run_saved(
    make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(train={"steps": 20})
    Broken(monkeypatch, range(4, 99))
    with pytest.raises(NonFiniteError) as error:
        run(job)
    folder = folder_of(job)
    assert error.value.exit_code == 1
    assert str(error.value) == (
        "loss or gradients were not finite for 10 steps in a row, up to step 13; the state is saved in"
        f" {folder.path}; try a lower train.lr, or train.dtype float32"
    )
    assert (folder.resume / "step_000000013.json").exists()


def test_guidance_bypass_leaves_the_guidance_embedding_out(micro_checkpoint: Path) -> None:
    model = FluxTransformer2DModel.from_pretrained(micro_checkpoint, subfolder="transformer")
    embed = model.time_text_embed
    time, pooled = torch.tensor([500.0]), torch.randn(1, 32)
    with bypass_guidance(model, True):
        one = embed(time, torch.tensor([1000.0]), pooled)
        two = embed(time, torch.tensor([4000.0]), pooled)
    assert torch.equal(one, two)
    assert not torch.equal(one, embed(time, torch.tensor([1000.0]), pooled))
    assert "forward" not in vars(embed)


def test_regularisation_takes_the_even_steps(make_job: JobMaker, tmp_path: Path, photos: Path) -> None:
    job = make_job()
    (process,) = plafond.load_job(job).processes
    reg = process.datasets[0].model_copy(update={"is_reg": True})
    process = process.model_copy(update={"datasets": (process.datasets[0], reg)})
    with (tmp_path / "log.txt").open("w") as log, Terminal(log) as terminal:
        feed = prepare(process, family_for("flux"), device=CPU, terminal=terminal).feed
    for step in range(1, 7):
        (micro,) = feed.micros(step)
        assert micro.batch.items[0].config.is_reg == (step % 2 == 0)


def test_previews_are_drawn_and_named_as_ai_toolkit_does(make_job: JobMaker) -> None:
    sample = {
        "sample_every": 3,
        "seed": 7,
        "walk_seed": True,
        "samples": [{"prompt": "a"}, {"prompt": "a", "width": 96, "seed": 7}, {"prompt": "a"}],
    }
    job = make_job(sample=sample, train={"disable_sampling": False})
    result = run(job)
    shown = folder_of(job).previews()
    assert {step: sorted(items) for step, items in shown.items()} == {step: [0, 1, 2] for step in (0, 3, 6)}
    assert all(path.name.endswith(f"__{0:09d}_{index}.jpg") for index, path in shown[0].items())
    assert [Image.open(path).size for path in shown[0].values()] == [(64, 64), (96, 64), (64, 64)]
    assert result.sheet is not None and result.plot is not None
    assert Image.open(result.sheet).width > 400


@pytest.mark.parametrize(
    ("train", "steps"),
    [
        ({"disable_sampling": True}, set()),
        ({"disable_sampling": False, "skip_first_sample": True}, {6}),
        ({"disable_sampling": False}, {0, 6}),
    ],
)
def test_previews_can_be_left_out(make_job: JobMaker, train: dict[str, bool], steps: set[int]) -> None:
    job = make_job(train=train)
    run(job)
    assert set(folder_of(job).previews()) == steps


@pytest.mark.parametrize("form", ["auto", "both"])
def test_diffusers_draws_our_preview_from_the_saved_file(
    make_job: JobMaker, micro_checkpoint: Path, form: str
) -> None:
    job = make_job(
        train={"disable_sampling": False, "lr": 0.05, "steps": 10},
        sample={"format": "png", "seed": 3},
        save={"lora_format": form},
    )
    result = run(job)
    ours = Image.open(folder_of(job).previews()[10][0])
    pipeline = FluxPipeline.from_pretrained(micro_checkpoint)
    pipeline.set_progress_bar_config(disable=True)

    def draw() -> Image.Image:
        return pipeline(
            "a photo of sks thing",
            width=64,
            height=64,
            num_inference_steps=2,
            guidance_scale=4.0,
            max_sequence_length=32,
            generator=torch.Generator().manual_seed(3),
        ).images[0]

    base = draw()
    pipeline.load_lora_weights(result.files[-1])
    theirs = draw()
    largest = max(high for _, high in ImageChops.difference(ours, theirs).getextrema())
    assert largest <= 1, "at most one step of 256 in any pixel"
    assert max(high for _, high in ImageChops.difference(ours, base).getextrema()) > 8


def test_saved_files_say_what_they_are_and_keep_captions_private(make_job: JobMaker) -> None:
    job = make_job()
    run(job)
    with safe_open(folder_of(job).final, "pt") as file:
        metadata, names = file.metadata(), sorted(file.keys())
    assert names[0].startswith("transformer.single_transformer_blocks.0.attn.to_k.lora_A.weight")
    assert metadata["ss_base_model_version"] == "flux.1"
    assert metadata["ss_network_dim"] == metadata["ss_network_alpha"] == "4"
    assert json.loads(metadata["training_info"]) == {"step": 6, "epoch": 2}
    assert metadata["modelspec.sai_model_spec"] == "1.0.1"
    assert metadata["modelspec.hash_sha256"] == f"0x{metadata['sshs_model_hash']}"
    text = json.dumps(metadata)
    assert "sks" not in text and "photos" not in text
    told = make_job("told", save={"metadata_captions": True})
    run(told)
    with safe_open(folder_of(told).final, "pt") as file:
        assert "a photo of sks thing" in file.metadata()["ss_tag_frequency"]


def test_config_yaml_runs_again(make_job: JobMaker) -> None:
    job = make_job()
    run(job, overrides=("train.lr=0.002",))
    folder = folder_of(job)
    again = plafond.load_job(folder.path / "config.yaml", name="again")
    assert again.warnings == ()
    assert again.processes[0].train.lr == 0.002
    plafond.train(again, device="cpu")
    assert_same_weights(folder.final, folder.path.parent / "again" / "again.safetensors")


def test_starts_from_a_saved_lora(make_job: JobMaker) -> None:
    first = make_job("first")
    run(first)
    path = str(folder_of(first).final)
    second = make_job("second", network={"pretrained_lora_path": path}, train={"lr": 1e-12, "steps": 1})
    run(second)
    a, b = weights(folder_of(first).final), weights(folder_of(second).final)
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=1e-8, rtol=0)


def test_choose_device_names_what_there_is() -> None:
    assert choose_device("cpu") == CPU
    with pytest.raises(plafond.PlafondError) as error:
        choose_device("gpu")
    assert str(error.value) == "--device gpu: expected auto, cpu, cuda or cuda:N"


def test_processes_of_one_file_run_in_order_under_their_own_names(make_job: JobMaker) -> None:
    path = make_job()
    job = plafond.load_job(path)
    (process,) = job.processes
    second = process.model_copy(
        update={"name": "second", "train": process.train.model_copy(update={"steps": 2})}
    )
    results = plafond.train(dataclasses.replace(job, processes=(process, second)), device="cpu")
    assert [(result.name, result.steps) for result in results] == [("micro", 6), ("second", 2)]
    assert (path.parent / "out" / "second" / "second.safetensors").exists()


def test_caches_stand_where_the_job_says(make_job: JobMaker, tmp_path: Path) -> None:
    place = tmp_path / "fast disk"
    run(make_job(datasets={"cache_latents_to_disk": True}), overrides=(f"plafond.latent_cache_dir={place}",))
    for folder in ("_latent_cache", "_t_e_cache"):
        assert list((place / folder).rglob("*.safetensors")), folder

"""The FLUX family: real loading code on checkpoints in the real layout, and parity with the diffusers pipeline."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from diffusers import FluxPipeline
from safetensors.torch import save_file

from micro_flux import make_checkpoint, make_transformer
from plafond.errors import CheckpointError, JobError
from plafond.families import families, family_for
from plafond.families.flux import FAMILY
from plafond.job.model import ModelConfig
from plafond.job.train import TrainConfig
from plafond.model.checkpoint import Source
from plafond.training.assistant import merge_assistant
from test_native_names import to_native

CPU = torch.device("cpu")
SETTINGS = TrainConfig()


def locate(name: Path | str, extras: Path | None = None) -> Source:
    return FAMILY.locate(
        ModelConfig(name_or_path=str(name), arch="flux", extras_name_or_path=str(extras) if extras else None)
    )


def test_families_are_found_by_listing_the_folder() -> None:
    assert FAMILY in families()
    assert family_for("flux") is FAMILY
    with pytest.raises(JobError) as error:
        family_for("hidream")
    assert str(error.value).startswith(
        "model.arch: the architecture hidream is not supported yet; supported: "
    )


def test_prediction_equals_the_pipelines_own_call(micro_checkpoint: Path) -> None:
    """One denoising step of the pipeline is latents + (sigma' - sigma) * velocity; ours must give that velocity."""
    pipeline = FluxPipeline.from_pretrained(micro_checkpoint)
    pipeline.set_progress_bar_config(disable=True)
    source = locate(micro_checkpoint)
    encoders = FAMILY.load_text_encoders(source, device=CPU, dtype=torch.float32)
    (text,) = FAMILY.encode_text(encoders, ["a photo of a cat"])
    transformer = FAMILY.load_transformer(source, device=CPU, dtype=torch.float32)
    noise = torch.randn(1, 16, 8, 12, generator=torch.Generator().manual_seed(0))
    packed = FluxPipeline._pack_latents(noise, 1, 16, 8, 12)
    after = pipeline(
        "a photo of a cat",
        height=64,
        width=96,
        num_inference_steps=1,
        guidance_scale=1.0,
        latents=packed,
        max_sequence_length=32,
        output_type="latent",
    ).images
    with torch.no_grad():
        batched = {name: tensor[None] for name, tensor in text.items()}
        velocity = FAMILY.predict(transformer, noise, torch.ones(1), batched, SETTINGS)
    expected = FluxPipeline._unpack_latents(after, 64, 96, 8)
    torch.testing.assert_close(noise - velocity, expected, rtol=1e-5, atol=1e-5)


def test_encoded_pictures_decode_to_themselves_through_the_pipelines_scaling(micro_checkpoint: Path) -> None:
    vae = FAMILY.load_vae(locate(micro_checkpoint), device=CPU, dtype=torch.float32)
    pixels = torch.rand(2, 3, 64, 96) * 2 - 1
    latents = FAMILY.encode_image(vae, pixels)
    assert latents.shape == (2, 16, 8, 12)
    raw = vae.encode(pixels).latent_dist.mode()
    torch.testing.assert_close(latents / 0.4 + 0.1, raw)


def test_text_differs_by_prompt_and_has_the_tokenizers_length(micro_checkpoint: Path) -> None:
    encoders = FAMILY.load_text_encoders(locate(micro_checkpoint), device=CPU, dtype=torch.float32)
    one, two = FAMILY.encode_text(encoders, ["a cat", "a dog"])
    assert one["prompt_embeds"].shape == (32, 32) and one["pooled"].shape == (32,)
    assert not torch.equal(one["pooled"], two["pooled"])
    assert not torch.equal(one["prompt_embeds"], two["prompt_embeds"])


@pytest.mark.parametrize("names", ["diffusers", "native", "comfy"])
def test_a_single_transformer_file_gives_the_same_weights(
    micro_checkpoint: Path, tmp_path: Path, names: str
) -> None:
    folder = FAMILY.load_transformer(locate(micro_checkpoint), device=CPU, dtype=torch.float32)
    state = folder.state_dict() if names == "diffusers" else to_native(folder)
    if names == "comfy":
        state = {f"model.diffusion_model.{name}": tensor for name, tensor in state.items()}
    path = tmp_path / "flux.safetensors"
    save_file({name: tensor.contiguous().clone() for name, tensor in state.items()}, path)
    source = locate(path, extras=micro_checkpoint)
    single = FAMILY.load_transformer(source, device=CPU, dtype=torch.bfloat16)
    for name, tensor in folder.state_dict().items():
        assert torch.equal(single.state_dict()[name], tensor.bfloat16()), name
    assert not any(parameter.requires_grad for parameter in single.parameters())


def test_a_file_of_another_size_is_one_sentence(micro_checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "wide.safetensors"
    save_file(make_transformer(num_attention_heads=4).state_dict(), path)
    with pytest.raises(CheckpointError) as error:
        FAMILY.load_transformer(locate(path, micro_checkpoint), device=CPU, dtype=torch.float32)
    assert str(error.value) == (
        f"{path}: time_text_embed.timestep_embedder.linear_1.weight has shape (64, 256), the model has (32, 256)"
    )


def test_bad_locations_are_one_sentence(tmp_path: Path, micro_checkpoint: Path) -> None:
    with pytest.raises(JobError) as error:
        locate(tmp_path)
    assert str(error.value) == (
        f"model.name_or_path: {tmp_path} has no model_index.json; expected a diffusers folder, a .safetensors file"
        " or a Hugging Face id"
    )
    with pytest.raises(JobError) as error:
        locate(tmp_path / "nowhere")
    assert str(error.value) == (
        f"model.name_or_path: found no folder or file at {tmp_path / 'nowhere'}; a Hugging Face id looks like"
        " owner/name"
    )
    with pytest.raises(JobError) as error:
        locate(tmp_path / "nowhere.safetensors")
    assert str(error.value) == f"model.name_or_path: found no file at {tmp_path / 'nowhere.safetensors'}"
    incomplete = tmp_path / "incomplete"
    shutil.copytree(micro_checkpoint, incomplete)
    shutil.rmtree(incomplete / "vae")
    with pytest.raises(CheckpointError) as failed:
        FAMILY.load_vae(locate(incomplete), device=CPU, dtype=torch.float32)
    assert str(failed.value).startswith(f"cannot load {incomplete}/vae: ")
    assert "\n" not in str(failed.value)
    truncated = tmp_path / "truncated"
    shutil.copytree(micro_checkpoint, truncated)
    weights = truncated / "transformer" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError) as failed:
        FAMILY.load_transformer(locate(truncated), device=CPU, dtype=torch.float32)
    assert str(failed.value).startswith(f"cannot load {truncated}/transformer: ")


def test_the_hub_is_asked_for_ids_and_its_refusal_is_one_sentence() -> None:
    source = locate("black-forest-labs/FLUX.1-dev")
    assert source.repo == "black-forest-labs/FLUX.1-dev"
    with pytest.raises(CheckpointError) as error:
        FAMILY.load_vae(source, device=CPU, dtype=torch.float32)
    assert str(error.value).startswith("cannot load black-forest-labs/FLUX.1-dev/vae: ")
    assert "\n" not in str(error.value)


def test_schnell_trains_with_its_adapter_and_draws_without(tmp_path: Path) -> None:
    """The adapter is merged as diffusers would; schnell has no guidance to be given."""
    folder = make_checkpoint(tmp_path / "schnell", guidance_embeds=False)
    source, dice = locate(folder), torch.Generator().manual_seed(1)
    model = FAMILY.load_transformer(source, device=CPU, dtype=torch.float32)
    adapter: dict[str, torch.Tensor] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and "transformer_blocks." in name:
            down = torch.randn(2, layer.in_features, generator=dice)
            adapter[f"transformer.{name}.lora_A.weight"] = down
            up = torch.randn(layer.out_features, 2, generator=dice) * 0.05
            adapter[f"transformer.{name}.lora_B.weight"] = up
    path = tmp_path / "pytorch_lora_weights.safetensors"
    save_file(adapter, path)
    noise, sigma = torch.randn(1, 16, 8, 8, generator=dice), torch.tensor([0.5])
    text = {
        "prompt_embeds": torch.randn(1, 8, 32, generator=dice),
        "pooled": torch.randn(1, 32, generator=dice),
    }

    def predict(transformer: torch.nn.Module) -> torch.Tensor:
        with torch.no_grad():
            return FAMILY.predict(transformer, noise, sigma, text, SETTINGS)

    pipeline = FluxPipeline.from_pretrained(folder)
    plain = predict(pipeline.transformer)
    pipeline.load_lora_weights(path)
    assistant = merge_assistant(model, str(path))
    assert assistant is not None and len(assistant.parts) == len(adapter) // 2
    torch.testing.assert_close(predict(model), predict(pipeline.transformer), rtol=1e-4, atol=1e-5)
    assert (predict(model) - plain).abs().max() > 0.01
    with assistant.left_out(model):
        torch.testing.assert_close(predict(model), plain, rtol=1e-4, atol=1e-5)


def test_shift_is_flux_s_line() -> None:
    assert FAMILY.shift(32, 32) == pytest.approx(0.5)
    assert FAMILY.shift(128, 128) == pytest.approx(1.15)

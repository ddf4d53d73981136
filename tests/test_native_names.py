"""Native names against diffusers' own converters, which are the reference."""

from __future__ import annotations

import pytest
import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from diffusers.loaders.single_file_utils import convert_flux_transformer_checkpoint_to_diffusers
from torch import Tensor

from micro_flux import make_transformer
from plafond.errors import CheckpointError
from plafond.families.flux import FAMILY
from plafond.model.lora import Targets, inject
from plafond.model.native import lora_to_native, to_diffusers


def to_native(model: FluxTransformer2DModel) -> dict[str, Tensor]:
    """A native checkpoint made from ours by the table, the other way round."""
    state = model.state_dict()
    native: dict[str, Tensor] = {}
    for entry in FAMILY.native_table(model):
        for suffix, native_suffix in entry.suffixes:
            parts = [state[part + suffix] for part in entry.diffusers if part + suffix in state]
            if parts:
                tensor = torch.cat(parts)
                native[entry.native + native_suffix] = (
                    torch.cat(tensor.chunk(2)[::-1]) if entry.swap_halves else tensor
                )
    return native


def test_native_checkpoint_round_trip() -> None:
    model = make_transformer()
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    back = to_diffusers(to_native(model), FAMILY.native_table(model), shapes, what="test")
    assert back.keys() == shapes.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in model.state_dict().items())


def test_native_names_are_those_that_diffusers_converts() -> None:
    # At FLUX.1's own width, the only one diffusers' converter knows; on meta, so it costs nothing.
    with torch.device("meta"):
        model = FluxTransformer2DModel(num_layers=2, num_single_layers=2, guidance_embeds=True)
    converted = convert_flux_transformer_checkpoint_to_diffusers(to_native(model))
    assert {name: tensor.shape for name, tensor in converted.items()} == {
        name: tensor.shape for name, tensor in model.state_dict().items()
    }


def test_an_incomplete_native_file_is_named() -> None:
    model = make_transformer()
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    native = to_native(model)
    del native["double_blocks.0.img_attn.qkv.weight"]
    with pytest.raises(CheckpointError) as error:
        to_diffusers(native, FAMILY.native_table(model), shapes, what="flux.safetensors")
    assert str(error.value) == (
        "flux.safetensors has no tensor named double_blocks.0.img_attn.qkv.weight; is it a complete transformer?"
    )


@pytest.mark.parametrize("only", [(), ("attn.to_q", "proj_mlp", "ff.net.2")])
def test_native_lora_is_what_diffusers_converts_back(only: tuple[str, ...]) -> None:
    # FLUX.1's width again; only the LoRA has memory.
    with torch.device("meta"):
        model = FluxTransformer2DModel(num_layers=1, num_single_layers=1)
    rank = 4
    network = inject(model, Targets(blocks=FAMILY.lora_blocks, only=only), rank=rank, alpha=float(rank))
    generator = torch.Generator().manual_seed(0)
    lora = {
        name: torch.randn(tensor.shape, generator=generator) for name, tensor in network.state_dict().items()
    }
    sizes = {
        name: module.out_features
        for name, module in model.named_modules()
        if hasattr(module, "out_features") and not name.endswith(".base")
    }
    native = lora_to_native(lora, FAMILY.native_table(model), sizes, alpha=float(rank), rank=rank)
    loaded = FluxPipeline.lora_state_dict(
        {f"diffusion_model.{name}": tensor for name, tensor in native.items()}
    )
    for layer in network.layers:
        a, b = (loaded[f"transformer.{layer}.lora_{matrix}.weight"] for matrix in "AB")
        expected = lora[f"{layer}.lora_B.weight"] @ lora[f"{layer}.lora_A.weight"]
        torch.testing.assert_close(b @ a, expected)
    for name, tensor in loaded.items():
        if name.removeprefix("transformer.") not in lora and name.endswith("lora_B.weight"):
            assert not tensor.any(), f"{name} has no LoRA and must not change the model"

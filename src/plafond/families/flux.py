"""FLUX.1: dev, schnell, Flex.1-alpha and checkpoints of the same shape.

The transformer sees 2×2-packed latents of an f8 autoencoder as a sequence of image tokens after the text tokens of
T5; CLIP's pooled vector, the timestep and (in dev and Flex) the guidance scale modulate every block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plafond.families._ai_toolkit import WHOLE, Residency
from plafond.families._contract import BaseModel, Family, Risk, TextEmbedding

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.job.model import ModelConfig
    from plafond.job.sample import SampleItem
    from plafond.job.train import TrainConfig
    from plafond.model.checkpoint import Source
    from plafond.model.native import Entry

MAX_TEXT_TOKENS = 512
TRAINING_GUIDANCE = 1.0
"""Guidance-distilled models are trained at guidance 1: the distilled model's plain conditional prediction."""


class Flux(Family):
    """See `plafond.families._contract.Family`."""

    name = "flux"
    archs: tuple[str, ...] = ("flux",)
    divisor = 32
    residency: Residency = WHOLE
    risks: tuple[Risk, ...] = (Risk(side=512, batch=4), Risk(side=1024, resolutions=2))
    text_parts: tuple[str, ...] = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
    lora_blocks: tuple[str, ...] = ("transformer_blocks",)
    depth: Mapping[str, str] = {
        "transformer_blocks": "num_layers",
        "single_transformer_blocks": "num_single_layers",
    }
    miniature: Mapping[str, Mapping[str, Any]] = {
        "transformer": {
            "num_layers": 5,
            "num_single_layers": 6,
            "num_attention_heads": 8,
            "attention_head_dim": 64,
            "axes_dims_rope": [16, 24, 24],
            "joint_attention_dim": 256,
            "pooled_projection_dim": 128,
        },
        "text_encoder": {
            "hidden_size": 128,
            "intermediate_size": 512,
            "projection_dim": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "vocab_size": 4000,
            "max_position_embeddings": 64,
        },
        "text_encoder_2": {
            "d_model": 256,
            "d_ff": 640,
            "d_kv": 32,
            "num_heads": 8,
            "num_layers": 4,
            "vocab_size": 4000,
        },
        "vae": {"block_out_channels": [32, 64, 128, 128]},
        "tokenizer": {"model_max_length": 64},
        "tokenizer_2": {"model_max_length": 64},
    }
    base_version = "flux.1"
    # ComfyUI and diffusers both read FLUX LoRAs under diffusers' names; diffusers reads fused native ones only at
    # FLUX.1's own width, and they are more than twice as large.
    lora_format = "diffusers"
    base_models: tuple[BaseModel, ...] = (
        BaseModel(
            title="FLUX.1-dev",
            repo="black-forest-labs/FLUX.1-dev",
            arch="flux",
            transformer_parameters=11_901_408_320,
            text_encoders="T5-XXL + CLIP-L",
            licence="FLUX.1-dev non-commercial",
            modelspec="flux-1-dev",
        ),
        BaseModel(
            title="FLUX.1-schnell",
            repo="black-forest-labs/FLUX.1-schnell",
            arch="flux",
            transformer_parameters=11_891_178_560,
            text_encoders="T5-XXL + CLIP-L",
            licence="Apache-2.0",
            modelspec="flux-1-schnell",
        ),
        BaseModel(
            title="Flex.1-alpha",
            repo="ostris/Flex.1-alpha",
            arch="flex1",
            transformer_parameters=8_163_264_064,
            text_encoders="T5-XXL + CLIP-L",
            licence="Apache-2.0",
            modelspec="flex-1-alpha",
        ),
    )

    def locate(self, model: ModelConfig) -> Source:
        """Folder, Hugging Face id, or a transformer file with encoders and VAE from FLUX.1-dev."""
        from plafond.model.checkpoint import locate

        return locate(model, companion="black-forest-labs/FLUX.1-dev")

    # ------------------------------------------------------------------------------------------------ text

    def load_text_encoders(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> Any:
        """CLIP-L and T5-XXL in a FLUX pipeline that has nothing else."""
        from diffusers import FluxPipeline
        from transformers import CLIPTextModel, T5EncoderModel

        from plafond.families._shared import load_part, load_tokenizer

        return FluxPipeline(
            scheduler=None,
            vae=None,
            transformer=None,
            text_encoder=load_part(source, "text_encoder", CLIPTextModel, device=device, dtype=dtype),
            text_encoder_2=load_part(source, "text_encoder_2", T5EncoderModel, device=device, dtype=dtype),
            tokenizer=load_tokenizer(source, "tokenizer"),
            tokenizer_2=load_tokenizer(source, "tokenizer_2"),
        )

    def text_modules(self, encoders: Any) -> list[nn.Module]:
        """CLIP and T5."""
        return [encoders.text_encoder, encoders.text_encoder_2]

    def build_text_encoders(self, source: Source) -> Any:
        """CLIP-L and T5-XXL by their configurations."""
        from diffusers import FluxPipeline
        from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

        from plafond.model.rehearsal import FullLengthTokenizer

        tokenizers = [
            FullLengthTokenizer(source.config(part, "tokenizer_config.json")["model_max_length"])
            for part in ("tokenizer", "tokenizer_2")
        ]
        return FluxPipeline(
            scheduler=None,
            vae=None,
            transformer=None,
            text_encoder=CLIPTextModel(CLIPTextConfig(**source.config("text_encoder"))).eval(),
            text_encoder_2=T5EncoderModel(T5Config(**source.config("text_encoder_2"))).eval(),
            tokenizer=tokenizers[0],
            tokenizer_2=tokenizers[1],
        )

    def encode_text(self, encoders: Any, prompts: Sequence[str]) -> list[TextEmbedding]:
        """T5's tokens ``prompt_embeds`` (tokens, features) and CLIP's ``pooled`` (features,) of each prompt."""
        import torch

        length = min(MAX_TEXT_TOKENS, encoders.tokenizer_2.model_max_length)
        with torch.no_grad():
            tokens, pooled, _ = encoders.encode_prompt(
                prompt=list(prompts), device=encoders.text_encoder.device, max_sequence_length=length
            )
        return [{"prompt_embeds": tokens[i], "pooled": pooled[i]} for i in range(len(prompts))]

    # ------------------------------------------------------------------------------------------------ transformer

    def load_transformer(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """`FluxTransformer2DModel` with frozen weights."""
        from diffusers import FluxTransformer2DModel

        from plafond.families._shared import load_denoiser

        return load_denoiser(source, FluxTransformer2DModel, self.native_table, device=device, dtype=dtype)

    def build_transformer(self, config: Mapping[str, Any]) -> nn.Module:
        """`FluxTransformer2DModel` by its configuration."""
        from diffusers import FluxTransformer2DModel

        from plafond.families._shared import from_config

        return from_config(FluxTransformer2DModel, config)

    def predict(
        self, transformer: nn.Module, noisy: Tensor, sigma: Tensor, text: TextEmbedding, settings: TrainConfig
    ) -> Tensor:
        """Velocity (B, 16, h, w)."""
        velocity = call(transformer, pack(noisy), places(noisy), sigma, text, settings)
        return unpack(velocity, *noisy.shape[-2:])

    def shift(self, latent_height: int, latent_width: int) -> float:
        """FLUX's line."""
        from plafond.families._shared import token_shift

        return token_shift(latent_height, latent_width)

    def preview(
        self, transformer: nn.Module, vae: nn.Module, source: Source, item: SampleItem, text: TextEmbedding
    ) -> Image:
        """One picture at the item's size, seed, steps and guidance."""
        from diffusers import FluxPipeline

        from plafond.families._shared import VAE_FACTOR, scheduler, whole

        pipeline = FluxPipeline(
            scheduler=scheduler(source), vae=vae, transformer=transformer, **dict.fromkeys(self.text_parts)
        )
        return draw(
            pipeline,
            item,
            text,
            width=whole(item.width, 2 * VAE_FACTOR),
            height=whole(item.height, 2 * VAE_FACTOR),
        )

    # ------------------------------------------------------------------------------------------------ names

    def native_table(self, transformer: nn.Module) -> list[Entry]:
        """Black Forest Labs' names: q, k and v fused; in single blocks also the MLP's first layer."""
        from plafond.model.native import Entry

        config: Any = transformer.config
        table = [Entry(native=native, diffusers=(ours,)) for ours, native in _OUTER.items()]
        table.append(
            Entry(native="final_layer.adaLN_modulation.1", diffusers=("norm_out.linear",), swap_halves=True)
        )
        for blocks, ours, native in (
            (config.num_layers, "transformer_blocks", "double_blocks"),
            (config.num_single_layers, "single_transformer_blocks", "single_blocks"),
        ):
            for index in range(blocks):
                for parts, name in _BLOCK[native]:
                    table.append(
                        Entry(
                            native=f"{native}.{index}.{name}",
                            diffusers=tuple(f"{ours}.{index}.{part}" for part in parts),
                            suffixes=((".weight", ".scale"),) if name.endswith("_norm") else Entry.suffixes,
                        )
                    )
        return table


def pack(latents: Tensor) -> Tensor:
    """(B, C, h, w) to tokens (B, h/2 · w/2, 4C)."""
    from diffusers import FluxPipeline

    return FluxPipeline._pack_latents(latents, *latents.shape)  # type: ignore[no-any-return]


def unpack(tokens: Tensor, height: int, width: int) -> Tensor:
    """Tokens to (B, C, h, w)."""
    from diffusers import FluxPipeline

    from plafond.families._shared import VAE_FACTOR

    height, width = height * VAE_FACTOR, width * VAE_FACTOR
    return FluxPipeline._unpack_latents(tokens, height, width, VAE_FACTOR)  # type: ignore[no-any-return]


def places(latents: Tensor) -> Tensor:
    """Where the tokens of latents (B, C, h, w) lie in their picture: (tokens, 3), the first column 0."""
    from diffusers import FluxPipeline

    batch, _, height, width = latents.shape
    return FluxPipeline._prepare_latent_image_ids(  # type: ignore[no-any-return]
        batch, height // 2, width // 2, latents.device, latents.dtype
    )


def call(
    transformer: nn.Module,
    tokens: Tensor,
    ids: Tensor,
    sigma: Tensor,
    text: TextEmbedding,
    settings: TrainConfig,
) -> Tensor:
    """The transformer's answer to image tokens; the noise level is passed in [0, 1], as the pipeline does."""
    import torch

    prompt = text["prompt_embeds"]
    guidance = None
    config: Any = transformer.config
    with bypass_guidance(transformer, settings.bypass_guidance_embedding):
        if config.guidance_embeds:
            guidance = torch.full(
                tokens.shape[:1], TRAINING_GUIDANCE, device=tokens.device, dtype=torch.float32
            )
        velocity: Tensor = transformer(
            hidden_states=tokens,
            timestep=sigma,
            guidance=guidance,
            pooled_projections=text["pooled"],
            encoder_hidden_states=prompt,
            txt_ids=torch.zeros(prompt.shape[1], 3, device=tokens.device, dtype=tokens.dtype),
            img_ids=ids,
            return_dict=False,
        )[0]
    return velocity


def draw(pipeline: Any, item: SampleItem, text: TextEmbedding, **options: Any) -> Image:
    """One picture with the item's seed, steps and guidance; `options` are the pipeline's own."""
    import torch

    pipeline.set_progress_bar_config(disable=True)
    return pipeline(  # type: ignore[no-any-return]
        prompt_embeds=text["prompt_embeds"][None],
        pooled_prompt_embeds=text["pooled"][None],
        num_inference_steps=item.sample_steps,
        guidance_scale=item.guidance_scale,
        generator=torch.Generator("cpu").manual_seed(item.seed),
        output_type="pil",
        **options,
    ).images[0]


@contextmanager
def bypass_guidance(transformer: nn.Module, active: bool) -> Iterator[None]:
    """Leave the guidance embedding out of the modulation while training.

    Flex.1-alpha was trained this way, and AI Toolkit's ``bypass_guidance_embedding`` asks for it; previews use the
    embedding as usual.
    """
    config: Any = transformer.config
    if not (active and config.guidance_embeds):
        yield
        return
    embed: Any = transformer.time_text_embed

    def without_guidance(timestep: Tensor, guidance: Tensor, pooled: Tensor) -> Tensor:
        time = embed.timestep_embedder(embed.time_proj(timestep).to(dtype=pooled.dtype))
        return time + embed.text_embedder(pooled)  # type: ignore[no-any-return]

    embed.forward = without_guidance
    try:
        yield
    finally:
        del embed.forward


_OUTER = {
    "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
    "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
    "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
    "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
    "context_embedder": "txt_in",
    "x_embedder": "img_in",
    "proj_out": "final_layer.linear",
}

_BLOCK: dict[str, tuple[tuple[tuple[str, ...], str], ...]] = {
    "double_blocks": (
        (("norm1.linear",), "img_mod.lin"),
        (("norm1_context.linear",), "txt_mod.lin"),
        (("attn.to_q", "attn.to_k", "attn.to_v"), "img_attn.qkv"),
        (("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"), "txt_attn.qkv"),
        (("attn.norm_q",), "img_attn.norm.query_norm"),
        (("attn.norm_k",), "img_attn.norm.key_norm"),
        (("attn.norm_added_q",), "txt_attn.norm.query_norm"),
        (("attn.norm_added_k",), "txt_attn.norm.key_norm"),
        (("attn.to_out.0",), "img_attn.proj"),
        (("attn.to_add_out",), "txt_attn.proj"),
        (("ff.net.0.proj",), "img_mlp.0"),
        (("ff.net.2",), "img_mlp.2"),
        (("ff_context.net.0.proj",), "txt_mlp.0"),
        (("ff_context.net.2",), "txt_mlp.2"),
    ),
    "single_blocks": (
        (("norm.linear",), "modulation.lin"),
        (("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"), "linear1"),
        (("attn.norm_q",), "norm.query_norm"),
        (("attn.norm_k",), "norm.key_norm"),
        (("proj_out",), "linear2"),
    ),
}

FAMILY = Flux()

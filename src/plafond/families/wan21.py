"""Wan 2.1, text to video: 1.3 B and 14 B.

The transformer sees a clip's latents as one sequence of 1×2×2 patches and attends to the prompt's tokens, from
UMT5-XXL's encoder, in every block. A picture is a clip of one frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plafond.families._ai_toolkit import WHOLE_THEN_PER_BLOCK, Residency
from plafond.families._contract import BaseModel, Family, TextEmbedding
from plafond.families._wan import TEXT_TOKENS, call

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.job.model import ModelConfig
    from plafond.job.sample import SampleItem
    from plafond.job.train import TrainConfig
    from plafond.model.checkpoint import Source
    from plafond.model.native import Entry

PARAMETERS = 14_288_491_584
TIMESTEPS = 1000
"""The model counts noise levels from 0 to 1,000."""
PROMPTS = ("prompt_embeds", "negative_prompt_embeds")


class Wan21(Family):
    """See `plafond.families._contract.Family`."""

    name = "wan21"
    archs: tuple[str, ...] = ("wan21",)
    residency: Residency = WHOLE_THEN_PER_BLOCK
    divisor = 16
    text_parts: tuple[str, ...] = ("text_encoder", "tokenizer")
    # condition_embedder and proj_out stand outside of them and get no LoRA
    lora_blocks: tuple[str, ...] = ("blocks",)
    depth: Mapping[str, str] = {"blocks": "num_layers"}
    miniature: Mapping[str, Mapping[str, Any]] = {
        "transformer": {
            "num_layers": 6,
            "num_attention_heads": 8,
            "attention_head_dim": 64,
            "ffn_dim": 1280,
            "text_dim": 256,
        },
        "text_encoder": {
            "d_model": 256,
            "d_ff": 640,
            "d_kv": 32,
            "num_heads": 8,
            "num_layers": 4,
            "vocab_size": 4000,
        },
        "vae": {"base_dim": 32},
    }
    usual_frames = 81
    base_version = "wan_2.1"
    # ComfyUI, AI Toolkit and diffusers all read the original release's names
    lora_format = "native"
    base_models: tuple[BaseModel, ...] = (
        BaseModel(
            title="Wan2.1-T2V-1.3B",
            repo="Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
            arch="wan21:1b",
            transformer_parameters=1_418_996_800,
            text_encoders="UMT5-XXL",
            licence="Apache-2.0",
            modelspec="wan2.1-t2v-1.3b",
        ),
        BaseModel(
            title="Wan2.1-T2V-14B",
            repo="Wan-AI/Wan2.1-T2V-14B-Diffusers",
            arch="wan21:14b",
            transformer_parameters=PARAMETERS,
            text_encoders="UMT5-XXL",
            licence="Apache-2.0",
            modelspec="wan2.1-t2v-14b",
        ),
    )

    def locate(self, model: ModelConfig) -> Source:
        """Folder, Hugging Face id, or a transformer with encoder and VAE from the family's first repository."""
        from plafond.model.checkpoint import locate

        return locate(model, companion=self.base_models[0].repo)

    # ------------------------------------------------------------------------------------------------ text

    def load_text_encoders(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> Any:
        """UMT5's encoder in a pipeline that has nothing else."""
        from transformers import UMT5EncoderModel

        from plafond.families._shared import load_part, load_tokenizer

        encoder = load_part(source, "text_encoder", UMT5EncoderModel, device=device, dtype=dtype)
        return self._encoders(encoder, load_tokenizer(source))

    def text_modules(self, encoders: Any) -> list[nn.Module]:
        """UMT5."""
        return [encoders.text_encoder]

    def build_text_encoders(self, source: Source) -> Any:
        """UMT5's encoder by its configuration."""
        from transformers import UMT5Config, UMT5EncoderModel

        from plafond.model.rehearsal import FullLengthTokenizer

        encoder = UMT5EncoderModel(UMT5Config(**source.config("text_encoder"))).eval()
        return self._encoders(encoder, FullLengthTokenizer(TEXT_TOKENS))

    def _encoders(self, encoder: nn.Module, tokenizer: Any) -> Any:
        from diffusers import WanPipeline

        return WanPipeline(
            scheduler=None, vae=None, transformer=None, text_encoder=encoder, tokenizer=tokenizer
        )

    def encode_text(self, encoders: Any, prompts: Sequence[str]) -> list[TextEmbedding]:
        """``prompt_embeds`` (512, features) of each prompt; zeros behind its end.

        The pipeline fills prompts up before UMT5 reads them, and hides the filling from it; here each is read alone
        and filled up afterwards.
        """
        import torch
        from diffusers.pipelines.wan.pipeline_wan import prompt_clean

        from plafond.memory.residence import host_memory, put

        encoder, tokenizer = encoders.text_encoder, encoders.tokenizer
        found = []
        for prompt in prompts:
            with host_memory():
                ids = tokenizer(
                    prompt_clean(prompt), max_length=TEXT_TOKENS, truncation=True, return_tensors="pt"
                ).input_ids
            with torch.no_grad():
                states = encoder(input_ids=put(ids, encoder.device)).last_hidden_state[0]
                filling = states.new_zeros(TEXT_TOKENS - states.shape[0], states.shape[1])
                found.append({"prompt_embeds": torch.cat([states, filling])})
        return found

    # ------------------------------------------------------------------------------------------------ images

    def load_vae(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """The 16-channel video autoencoder: 8×8 pixels and four frames to one, the first frame by itself."""
        from diffusers import AutoencoderKLWan

        from plafond.families._shared import load_part

        return load_part(source, "vae", AutoencoderKLWan, device=device, dtype=dtype)

    def build_vae(self, source: Source) -> nn.Module:
        """The autoencoder by its configuration."""
        from diffusers import AutoencoderKLWan

        from plafond.families._shared import from_config

        return from_config(AutoencoderKLWan, source.config("vae"))

    def frames(self, count: int) -> int:
        """4n + 1: the first frame has a latent of its own, each four after it share one."""
        return max(0, count - 1) // 4 * 4 + 1

    def encode_image(self, vae: nn.Module, pixels: Tensor) -> Tensor:
        """Normalised latents (B, C, frames, h, w)."""
        import torch

        from plafond.families._wan import spread

        clip = pixels if pixels.dim() == 5 else pixels.unsqueeze(2)
        with torch.no_grad():
            latents: Tensor = vae.encode(clip).latent_dist.mode()  # type: ignore[operator]
        mean, deviation = spread(latents, vae.config)
        return (latents - mean) / deviation

    # ------------------------------------------------------------------------------------------------ transformer

    def load_transformer(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """`WanTransformer3DModel` with frozen weights."""
        from diffusers import WanTransformer3DModel

        from plafond.families._shared import load_denoiser
        from plafond.families._wan import with_attention

        return with_attention(
            load_denoiser(source, WanTransformer3DModel, self.native_table, device=device, dtype=dtype)
        )

    def build_transformer(self, config: Mapping[str, Any]) -> nn.Module:
        """`WanTransformer3DModel` by its configuration."""
        from diffusers import WanTransformer3DModel

        from plafond.families._shared import from_config
        from plafond.families._wan import with_attention

        return with_attention(from_config(WanTransformer3DModel, config))

    def predict(
        self, transformer: nn.Module, noisy: Tensor, sigma: Tensor, text: TextEmbedding, settings: TrainConfig
    ) -> Tensor:
        """Velocity (B, C, frames, h, w)."""
        return call(transformer, noisy, sigma * TIMESTEPS, text)

    def shift(self, latent_height: int, latent_width: int) -> float:
        """FLUX's line."""
        from plafond.families._shared import token_shift

        return token_shift(latent_height, latent_width)

    def guided(self, item: SampleItem) -> bool:
        """With a guidance scale above 1."""
        return item.guidance_scale > 1

    def preview(
        self, transformer: nn.Module, vae: nn.Module, source: Source, item: SampleItem, text: TextEmbedding
    ) -> Image | list[Image]:
        """A picture or a clip at the item's size, seed, steps and guidance."""
        from diffusers import WanPipeline

        from plafond.families._shared import scheduler

        pipeline = WanPipeline(
            scheduler=scheduler(source),
            vae=vae,
            text_encoder=None,
            tokenizer=None,
            **self._drawn_by(transformer),
        )
        return self._draw(pipeline, item, text)

    def _draw(self, pipeline: Any, item: SampleItem, text: TextEmbedding, **more: Any) -> Image | list[Image]:
        """What a pipeline of diffusers draws of the prompts' embeddings.

        It decodes the latents here, and turns the frames into pictures one by one: the pipeline itself makes floats
        of the whole clip first, several times.
        """
        import torch

        from plafond.families._wan import pictures, unnormalised

        pipeline.set_progress_bar_config(disable=True)
        width, height = self._size(item)
        latents = pipeline(
            **{name: tensor[None] for name, tensor in text.items() if name in PROMPTS},
            **more,
            width=width,
            height=height,
            num_frames=self.frames(item.num_frames),
            num_inference_steps=item.sample_steps,
            guidance_scale=item.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(item.seed),
            output_type="latent",
        ).frames
        vae = pipeline.vae
        clip = vae.decode(unnormalised(latents.to(vae.dtype), vae.config), return_dict=False)[0]
        drawn = pictures(clip[0])
        return drawn if len(drawn) > 1 else drawn[0]

    def _size(self, item: SampleItem) -> tuple[int, int]:
        """Width and height of a preview, in pixels."""
        from plafond.families._shared import whole

        return whole(item.width, self.divisor), whole(item.height, self.divisor)

    def _drawn_by(self, transformer: nn.Module) -> dict[str, Any]:
        """The pipeline's own parts that denoise."""
        return {"transformer": transformer}

    # ------------------------------------------------------------------------------------------------ names

    def native_table(self, transformer: nn.Module) -> list[Entry]:
        """The original release's names."""
        from plafond.families._wan import native_table

        return native_table(transformer)


FAMILY = Wan21()

"""Qwen-Image and Qwen-Image-2512.

Two streams of tokens, the prompt's from Qwen2.5-VL-7B and the picture's 2×2-packed latents, meet in every block's
attention. The autoencoder is made for video; a picture is a clip of one frame. Prompts have their own lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plafond.families._contract import BaseModel, Family, Length, TextEmbedding

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.job.model import ModelConfig
    from plafond.job.sample import SampleItem
    from plafond.job.train import TrainConfig
    from plafond.model.checkpoint import Source
    from plafond.model.native import Entry

PARAMETERS = 20_430_401_088
MAX_TEXT_TOKENS = 512
"""The pipeline cuts prompts there; plans count with as many where the captions are not at hand."""
ENDING = 5
"""Tokens of the template behind a prompt."""
NO_MASK = {"full_attention": None, "sliding_attention": None}
"""A prompt that is encoded alone has no filling to hide."""


class QwenImage(Family):
    """See `plafond.families._contract.Family`."""

    name = "qwen_image"
    archs: tuple[str, ...] = ("qwen_image",)
    either_way = False  # its tables of angles have as many rows as the picture
    divisor = 32
    text_parts: tuple[str, ...] = ("text_encoder", "tokenizer")
    lora_blocks: tuple[str, ...] = ("transformer_blocks",)
    depth: Mapping[str, str] = {"transformer_blocks": "num_layers"}
    miniature: Mapping[str, Mapping[str, Any]] = {
        "transformer": {
            "num_layers": 6,
            "num_attention_heads": 8,
            "attention_head_dim": 64,
            "axes_dims_rope": [16, 24, 24],
            "joint_attention_dim": 256,
        },
        "text_encoder": {
            "text_config": {
                "hidden_size": 256,
                "intermediate_size": 640,
                "num_hidden_layers": 4,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "vocab_size": 4000,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1000000.0,
                    "mrope_section": [4, 6, 6],
                },
            },
            "vision_config": {
                "depth": 4,
                "hidden_size": 128,
                "intermediate_size": 256,
                "num_heads": 4,
                "out_hidden_size": 256,
                "fullatt_block_indexes": [1, 3],
            },
        },
        "vae": {"base_dim": 32},
        "tokenizer": {"model_max_length": 98},
    }
    base_version = "qwen_image"
    # ComfyUI, diffusers and the original release agree on these names
    lora_format = "diffusers"
    base_models: tuple[BaseModel, ...] = (
        BaseModel(
            title="Qwen-Image",
            repo="Qwen/Qwen-Image",
            arch="qwen_image",
            transformer_parameters=PARAMETERS,
            text_encoders="Qwen2.5-VL-7B",
            licence="Apache-2.0",
            modelspec="qwen-image",
        ),
        BaseModel(
            title="Qwen-Image-2512",
            repo="Qwen/Qwen-Image-2512",
            arch="qwen_image:2512",
            transformer_parameters=PARAMETERS,
            text_encoders="Qwen2.5-VL-7B",
            licence="Apache-2.0",
            modelspec="qwen-image-2512",
        ),
    )

    def locate(self, model: ModelConfig) -> Source:
        """Folder, Hugging Face id, or a transformer with encoder and VAE from Qwen-Image."""
        from plafond.model.checkpoint import locate

        return locate(model, companion=self.base_models[0].repo)

    # ------------------------------------------------------------------------------------------------ text

    def load_text_encoders(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> Any:
        """Qwen2.5-VL's language model in a pipeline that has nothing else."""
        import torch
        from diffusers import QwenImagePipeline
        from transformers import Qwen2_5_VLForConditionalGeneration

        from plafond.families._shared import load_part, load_tokenizer

        # no picture is looked at and no text is written: the vision tower and the head stay behind
        whole = load_part(
            source,
            "text_encoder",
            Qwen2_5_VLForConditionalGeneration,
            device=torch.device("cpu"),
            dtype=dtype,
        )
        return QwenImagePipeline(
            scheduler=None,
            vae=None,
            transformer=None,
            text_encoder=whole.model.language_model.to(device),  # type: ignore[union-attr]
            tokenizer=load_tokenizer(source),
        )

    def text_modules(self, encoders: Any) -> list[nn.Module]:
        """Qwen2.5-VL."""
        return [encoders.text_encoder]

    def build_text_encoders(self, source: Source) -> Any:
        """The language model by its configuration."""
        from diffusers import QwenImagePipeline
        from transformers import Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel

        from plafond.model.rehearsal import FullLengthTokenizer

        config = source.config("text_encoder")
        length = source.config("tokenizer", "tokenizer_config.json")["model_max_length"]
        return QwenImagePipeline(
            scheduler=None,
            vae=None,
            transformer=None,
            # older files have the language model's numbers beside those of the vision tower
            text_encoder=Qwen2_5_VLTextModel(
                Qwen2_5_VLTextConfig(**config.get("text_config", config))
            ).eval(),
            tokenizer=FullLengthTokenizer(length),
        )

    def encode_text(self, encoders: Any, prompts: Sequence[str]) -> list[TextEmbedding]:
        """``prompt_embeds`` (tokens, features) of each prompt, and a ``prompt_embeds_mask`` of ones."""
        import torch

        from plafond.memory.residence import host_memory, put

        encoder, skipped = encoders.text_encoder, encoders.prompt_template_encode_start_idx
        found = []
        for prompt in prompts:
            with host_memory():
                ids = _tokens(encoders, encoders.tokenizer, prompt)
            with torch.no_grad():
                states = encoder(
                    input_ids=put(ids, encoder.device), attention_mask=NO_MASK, use_cache=False
                ).last_hidden_state
            found.append(with_mask(states[0, skipped:]))
        return found

    def prompt_length(self, source: Source, prompts: Sequence[str], controls: int) -> Length | None:
        """With the template around it."""
        from diffusers import QwenImagePipeline

        from plafond.families._shared import longest

        bare = QwenImagePipeline(
            **dict.fromkeys(("scheduler", "vae", "text_encoder", "tokenizer", "transformer"))
        )
        skipped = bare.prompt_template_encode_start_idx
        return longest(
            source,
            prompts,
            lambda tokenizer, prompt: int(_tokens(bare, tokenizer, prompt).shape[1]),
            around=skipped + ENDING,
            most=MAX_TEXT_TOKENS + skipped,
        )

    # ------------------------------------------------------------------------------------------------ images

    def load_vae(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """The 16-channel f8 video autoencoder."""
        from diffusers import AutoencoderKLQwenImage

        from plafond.families._shared import load_part

        return load_part(source, "vae", AutoencoderKLQwenImage, device=device, dtype=dtype)

    def build_vae(self, source: Source) -> nn.Module:
        """The autoencoder by its configuration."""
        from diffusers import AutoencoderKLQwenImage

        from plafond.families._shared import from_config

        return from_config(AutoencoderKLQwenImage, source.config("vae"))

    def encode_image(self, vae: nn.Module, pixels: Tensor) -> Tensor:
        """Normalised latents (B, 16, H/8, W/8)."""
        import torch

        config: Any = vae.config
        with torch.no_grad():
            latents = vae.encode(pixels.unsqueeze(2)).latent_dist.mode()[:, :, 0]  # type: ignore[operator]
        mean, deviation = (
            torch.tensor(values, device=latents.device, dtype=latents.dtype).view(1, -1, 1, 1)
            for values in (config.latents_mean, config.latents_std)
        )
        return (latents - mean) / deviation  # type: ignore[no-any-return]

    # ------------------------------------------------------------------------------------------------ transformer

    def load_transformer(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """`QwenImageTransformer2DModel` with frozen weights."""
        from diffusers import QwenImageTransformer2DModel

        from plafond.families._shared import load_denoiser

        return without_memory(
            load_denoiser(source, QwenImageTransformer2DModel, self.native_table, device=device, dtype=dtype)
        )

    def build_transformer(self, config: Mapping[str, Any]) -> nn.Module:
        """`QwenImageTransformer2DModel` by its configuration."""
        from diffusers import QwenImageTransformer2DModel

        from plafond.families._shared import from_config

        return without_memory(from_config(QwenImageTransformer2DModel, config))

    def predict(
        self, transformer: nn.Module, noisy: Tensor, sigma: Tensor, text: TextEmbedding, settings: TrainConfig
    ) -> Tensor:
        """Velocity (B, 16, h, w)."""
        height, width = noisy.shape[-2:]
        velocity = call(transformer, pack(noisy), sigma, text, [(1, height // 2, width // 2)])
        return unpack(velocity, height, width)

    def shift(self, latent_height: int, latent_width: int) -> float:
        """mu = 0.5 at 256 image tokens (256²) and 0.9 at 8,192."""
        tokens = latent_height * latent_width / 4
        return 0.5 + (tokens - 256) * (0.9 - 0.5) / (8192 - 256)

    def guided(self, item: SampleItem) -> bool:
        """With a guidance scale above 1."""
        return item.guidance_scale > 1

    def preview(
        self, transformer: nn.Module, vae: nn.Module, source: Source, item: SampleItem, text: TextEmbedding
    ) -> Image:
        """One picture at the item's size, seed, steps and guidance."""
        import torch
        from diffusers import QwenImagePipeline

        from plafond.families._shared import VAE_FACTOR, scheduler, whole

        pipeline = QwenImagePipeline(
            scheduler=scheduler(source), vae=vae, transformer=transformer, text_encoder=None, tokenizer=None
        )
        pipeline.set_progress_bar_config(disable=True)
        return pipeline(  # type: ignore[no-any-return]
            **{name: tensor[None] for name, tensor in text.items()},
            width=whole(item.width, 2 * VAE_FACTOR),
            height=whole(item.height, 2 * VAE_FACTOR),
            num_inference_steps=item.sample_steps,
            true_cfg_scale=item.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(item.seed),
            output_type="pil",
        ).images[0]

    # ------------------------------------------------------------------------------------------------ names

    def native_table(self, transformer: nn.Module) -> list[Entry]:
        """The original release has diffusers' names."""
        from plafond.model.native import Entry

        config: Any = transformer.config
        names = list(_OUTER)
        for index in range(config.num_layers):
            names += [f"transformer_blocks.{index}.{name}" for name in _BLOCK]
        return [Entry(native=name, diffusers=(name,)) for name in names]


def with_mask(states: Tensor) -> TextEmbedding:
    """One prompt's embedding with the mask that says where it ends."""
    import torch

    from plafond.memory.residence import host_memory

    with host_memory():
        mask = torch.ones(states.shape[0], dtype=torch.int64)
    return {"prompt_embeds": states, "prompt_embeds_mask": mask}


def _tokens(pipeline: Any, tokenizer: Any, prompt: str) -> Tensor:
    """Ids (1, tokens) of a prompt in the pipeline's template, in main memory."""
    length = min(MAX_TEXT_TOKENS + pipeline.prompt_template_encode_start_idx, tokenizer.model_max_length)
    text = pipeline.prompt_template_encode.format(prompt)
    ids: Tensor = tokenizer(text, max_length=length, truncation=True, return_tensors="pt").input_ids
    return ids


def pack(latents: Tensor) -> Tensor:
    """(B, C, h, w) to tokens (B, h/2 · w/2, 4C)."""
    from diffusers import QwenImagePipeline

    return QwenImagePipeline._pack_latents(latents, *latents.shape)  # type: ignore[no-any-return]


def unpack(tokens: Tensor, height: int, width: int) -> Tensor:
    """Tokens to (B, C, h, w)."""
    from diffusers import QwenImagePipeline

    from plafond.families._shared import VAE_FACTOR

    height, width = height * VAE_FACTOR, width * VAE_FACTOR
    return QwenImagePipeline._unpack_latents(tokens, height, width, VAE_FACTOR)[:, :, 0]  # type: ignore[no-any-return]


def call(
    transformer: nn.Module,
    tokens: Tensor,
    sigma: Tensor,
    text: TextEmbedding,
    shapes: Sequence[tuple[int, int, int]],
) -> Tensor:
    """The transformer's answer to image tokens; `shapes` are the frames, rows and columns of their pictures."""
    from plafond.memory.residence import put

    mask = text["prompt_embeds_mask"]
    velocity: Tensor = transformer(
        hidden_states=tokens,
        timestep=sigma,
        encoder_hidden_states=text["prompt_embeds"],
        # without a mask attention has faster kernels; batches of one never need it
        encoder_hidden_states_mask=None if bool(mask.all()) else put(mask, tokens.device),
        img_shapes=[list(shapes)] * tokens.shape[0],
        return_dict=False,
    )[0]
    return velocity


def without_memory(transformer: nn.Module) -> nn.Module:
    """Let the rotary embedding forget each picture size after use.

    It would keep what it computes for every size, on the device and for the whole process; computing it anew takes
    less than a thousandth of a step.
    """
    rope: Any = transformer.pos_embed
    remembered = type(rope)._compute_video_freqs
    rope._compute_video_freqs = remembered.__wrapped__.__get__(rope)
    return transformer


_OUTER = (
    *("time_text_embed.timestep_embedder.linear_1", "time_text_embed.timestep_embedder.linear_2"),
    *("txt_norm", "txt_in", "img_in", "norm_out.linear", "proj_out"),
)

_BLOCK = (
    *("img_mod.1", "txt_mod.1"),
    *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
    *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
    *("attn.norm_q", "attn.norm_k", "attn.norm_added_q", "attn.norm_added_k"),
    *("img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2"),
)

FAMILY = QwenImage()

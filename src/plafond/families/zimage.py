"""Z-Image: the base model, Turbo (trained with its adapter) and De-Turbo.

One stream of tokens: the caption's, from the last layer but one of Qwen3-4B, behind the picture's 2×2 patches. Both
pass two refiner blocks of their own before they meet, and both are filled up to multiples of 32 tokens. The model
counts time from noise to picture, so it is given one minus the noise level, and its output is the velocity's negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from plafond.families._contract import BaseModel, Family, Length, Risk, TextEmbedding

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.job.model import ModelConfig
    from plafond.job.sample import SampleItem
    from plafond.job.train import TrainConfig
    from plafond.model.checkpoint import Source
    from plafond.model.native import Entry

COMPANION = "Tongyi-MAI/Z-Image-Turbo"
MAX_TEXT_TOKENS = 512
"""The pipeline cuts prompts there; plans count with as many where the captions are not at hand."""
CHAT_TOKENS = 8
"""What the chat puts around a prompt."""
TEXT_LAYER = -2


class ZImage(Family):
    """See `plafond.families._contract.Family`."""

    name = "zimage"
    archs: tuple[str, ...] = ("zimage",)
    divisor = 16
    risks: tuple[Risk, ...] = (Risk(side=1024, batch=2),)
    text_parts: tuple[str, ...] = ("text_encoder", "tokenizer")
    # the refiners' names hold "_refiner": they get no LoRA
    lora_blocks: tuple[str, ...] = ("layers",)
    packed_blocks: tuple[str, ...] = ("noise_refiner", "context_refiner")
    depth: Mapping[str, str] = {"layers": "n_layers"}
    miniature: Mapping[str, Mapping[str, Any]] = {
        "transformer": {
            "dim": 512,
            "n_layers": 6,
            "n_heads": 8,
            "n_kv_heads": 8,
            "axes_dims": [16, 24, 24],
            "cap_feat_dim": 256,
        },
        "text_encoder": {
            "hidden_size": 256,
            "intermediate_size": 640,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "vocab_size": 4000,
        },
        "vae": {"block_out_channels": [32, 64, 128, 128]},
        "tokenizer": {"model_max_length": 64},
    }
    base_version = "zimage"
    # ComfyUI and diffusers both read these names; native ones fuse q, k and v
    lora_format = "diffusers"
    base_models: tuple[BaseModel, ...] = (
        BaseModel(
            title="Z-Image-Turbo",
            repo="Tongyi-MAI/Z-Image-Turbo",
            arch="zimage:turbo",
            transformer_parameters=6_154_908_736,
            text_encoders="Qwen3-4B",
            licence="Apache-2.0",
            modelspec="z-image-turbo",
        ),
        BaseModel(
            title="Z-Image",
            repo="Tongyi-MAI/Z-Image",
            arch="zimage",
            transformer_parameters=6_154_908_736,
            text_encoders="Qwen3-4B",
            licence="Apache-2.0",
            modelspec="z-image",
        ),
        BaseModel(
            title="Z-Image-De-Turbo",
            repo="ostris/Z-Image-De-Turbo",
            arch="zimage:deturbo",
            transformer_parameters=6_154_908_736,
            text_encoders="Qwen3-4B",
            licence="Apache-2.0",
            modelspec="z-image-de-turbo",
        ),
    )

    def block_counts(self, config: Mapping[str, Any]) -> dict[str, int]:
        """The refiners, too, which train where all weights do."""
        refiners = int(config["n_refiner_layers"])
        return {**super().block_counts(config), "noise_refiner": refiners, "context_refiner": refiners}

    def locate(self, model: ModelConfig) -> Source:
        """Folder, Hugging Face id, or a transformer with encoder and VAE from Z-Image-Turbo."""
        from plafond.model.checkpoint import locate

        return locate(model, companion=COMPANION)

    # ------------------------------------------------------------------------------------------------ text

    def load_text_encoders(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> Any:
        """Qwen3 without its language head, and its tokenizer."""
        from transformers import Qwen3Model

        from plafond.families._shared import load_part, load_tokenizer

        encoder = load_part(source, "text_encoder", Qwen3Model, device=device, dtype=dtype)
        return SimpleNamespace(text_encoder=encoder, tokenizer=load_tokenizer(source))

    def text_modules(self, encoders: Any) -> list[nn.Module]:
        """Qwen3."""
        return [encoders.text_encoder]

    def build_text_encoders(self, source: Source) -> Any:
        """Qwen3 by its configuration."""
        from transformers import Qwen3Config, Qwen3Model

        from plafond.model.rehearsal import FullLengthTokenizer

        length = source.config("tokenizer", "tokenizer_config.json")["model_max_length"]
        return SimpleNamespace(
            text_encoder=Qwen3Model(Qwen3Config(**source.config("text_encoder"))).eval(),
            tokenizer=FullLengthTokenizer(length),
        )

    def encode_text(self, encoders: Any, prompts: Sequence[str]) -> list[TextEmbedding]:
        """``prompt_embeds`` (tokens, features) of each prompt, and a ``prompt_embeds_mask`` of ones.

        Qwen3 reads from left to right, so what the pipeline's filling behind a prompt is makes no difference to it;
        each prompt is encoded alone, without any.
        """
        import torch

        from plafond.memory.residence import host_memory, put

        encoder, tokenizer = encoders.text_encoder, encoders.tokenizer
        found = []
        for prompt in prompts:
            with host_memory():
                ids = _tokens(tokenizer, prompt)
            with torch.no_grad():
                states = encoder(
                    input_ids=put(ids, encoder.device),
                    attention_mask={"full_attention": None},
                    output_hidden_states=True,
                    use_cache=False,
                ).hidden_states
            with host_memory():
                mask = torch.ones(ids.shape[1], dtype=torch.int64)
            found.append({"prompt_embeds": states[TEXT_LAYER][0], "prompt_embeds_mask": mask})
        return found

    def prompt_length(self, source: Source, prompts: Sequence[str], controls: int) -> Length | None:
        """With the chat around it."""
        from plafond.families._shared import longest

        return longest(
            source,
            prompts,
            lambda tokenizer, prompt: int(_tokens(tokenizer, prompt).shape[1]),
            around=CHAT_TOKENS,
            most=MAX_TEXT_TOKENS,
        )

    # ------------------------------------------------------------------------------------------------ transformer

    def load_transformer(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """`ZImageTransformer2DModel` with frozen weights."""
        from diffusers import ZImageTransformer2DModel

        from plafond.families._shared import load_denoiser

        return load_denoiser(source, ZImageTransformer2DModel, self.native_table, device=device, dtype=dtype)

    def build_transformer(self, config: Mapping[str, Any]) -> nn.Module:
        """`ZImageTransformer2DModel` by its configuration."""
        from diffusers import ZImageTransformer2DModel

        from plafond.families._shared import from_config

        return from_config(ZImageTransformer2DModel, config)

    def predict(
        self, transformer: nn.Module, noisy: Tensor, sigma: Tensor, text: TextEmbedding, settings: TrainConfig
    ) -> Tensor:
        """Velocity (B, 16, h, w)."""
        import torch

        lengths = text["prompt_embeds_mask"].sum(dim=1).tolist()
        captions = [tokens[:length] for tokens, length in zip(text["prompt_embeds"], lengths, strict=True)]
        pictures = list(noisy.unsqueeze(2).unbind(0))
        found = transformer(pictures, 1 - sigma, captions, return_dict=False)[0]
        return -torch.stack(found).squeeze(2)

    def shift(self, latent_height: int, latent_width: int) -> float:
        """FLUX's line."""
        from plafond.families._shared import token_shift

        return token_shift(latent_height, latent_width)

    def guided(self, item: SampleItem) -> bool:
        """With a guidance scale above 1; Turbo's previews have 1."""
        return item.guidance_scale > 1

    def preview(
        self, transformer: nn.Module, vae: nn.Module, source: Source, item: SampleItem, text: TextEmbedding
    ) -> Image:
        """One picture at the item's size, seed, steps and guidance."""
        import torch
        from diffusers import ZImagePipeline

        from plafond.families._shared import VAE_FACTOR, scheduler, whole

        pipeline = ZImagePipeline(
            scheduler=scheduler(source), vae=vae, transformer=transformer, text_encoder=None, tokenizer=None
        )
        pipeline.set_progress_bar_config(disable=True)
        negative = text.get("negative_prompt_embeds")
        return pipeline(  # type: ignore[no-any-return]
            prompt_embeds=[text["prompt_embeds"]],
            negative_prompt_embeds=[] if negative is None else [negative],
            width=whole(item.width, 2 * VAE_FACTOR),
            height=whole(item.height, 2 * VAE_FACTOR),
            num_inference_steps=item.sample_steps,
            # the pipeline's scale of nothing is 0, that of job files is 1; above it both mean the same
            guidance_scale=item.guidance_scale if negative is not None else 0.0,
            cfg_truncation=None,
            generator=torch.Generator("cpu").manual_seed(item.seed),
            output_type="pil",
        ).images[0]

    # ------------------------------------------------------------------------------------------------ names

    def native_table(self, transformer: nn.Module) -> list[Entry]:
        """Tongyi's names: q, k and v fused."""
        from plafond.model.native import Entry

        config: Any = transformer.config
        table = [Entry(native=native, diffusers=(ours,)) for native, ours in _OUTER.items()]
        table += [
            Entry(native=name, diffusers=(name,), suffixes=(("", ""),))
            for name in ("x_pad_token", "cap_pad_token")
        ]
        for group, blocks in (
            ("noise_refiner", config.n_refiner_layers),
            ("context_refiner", config.n_refiner_layers),
            ("layers", config.n_layers),
        ):
            for index in range(blocks):
                for native, parts in _BLOCK.items():
                    if native == "adaLN_modulation.0" and group == "context_refiner":
                        continue
                    table.append(
                        Entry(
                            native=f"{group}.{index}.{native}",
                            diffusers=tuple(f"{group}.{index}.{part}" for part in parts),
                        )
                    )
        return table


def _tokens(tokenizer: Any, prompt: str) -> Tensor:
    """Ids (1, tokens) of a prompt in a chat, in main memory."""
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=True,
    )
    length = min(MAX_TEXT_TOKENS, tokenizer.model_max_length)
    ids: Tensor = tokenizer(chat, max_length=length, truncation=True, return_tensors="pt").input_ids
    return ids


_OUTER = {
    "x_embedder": "all_x_embedder.2-1",
    "t_embedder.mlp.0": "t_embedder.mlp.0",
    "t_embedder.mlp.2": "t_embedder.mlp.2",
    "cap_embedder.0": "cap_embedder.0",
    "cap_embedder.1": "cap_embedder.1",
    "final_layer.linear": "all_final_layer.2-1.linear",
    "final_layer.adaLN_modulation.1": "all_final_layer.2-1.adaLN_modulation.1",
}

_BLOCK: dict[str, tuple[str, ...]] = {
    "attention.qkv": ("attention.to_q", "attention.to_k", "attention.to_v"),
    "attention.out": ("attention.to_out.0",),
    "attention.q_norm": ("attention.norm_q",),
    "attention.k_norm": ("attention.norm_k",),
    **{
        name: (name,)
        for name in (
            *("feed_forward.w1", "feed_forward.w2", "feed_forward.w3", "adaLN_modulation.0"),
            *("attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"),
        )
    },
}

FAMILY = ZImage()

"""A model family that nobody has published, as somebody would add one: this file and no other.

Its denoiser sees 2×2-packed latents beside the prompt's letters; a prompt's embedding is a row for each of its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from plafond.families._contract import BaseModel, Family, TextEmbedding

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.job.model import ModelConfig
    from plafond.job.sample import SampleItem
    from plafond.job.train import TrainConfig
    from plafond.model.checkpoint import Source
    from plafond.model.native import Entry

WIDTH, LETTERS = 32, 24


@cache
def denoiser() -> Any:
    """The class of the denoising model."""
    import torch
    from diffusers import ConfigMixin, ModelMixin
    from diffusers.configuration_utils import register_to_config
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.to_qkv = nn.Linear(width, 3 * width)
            self.to_out = nn.Linear(width, width)

        def forward(self, tokens: Tensor, level: Tensor) -> Tensor:
            q, k, v = self.to_qkv(self.norm(tokens) + level).chunk(3, dim=-1)
            seen = functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
            return tokens + self.to_out(functional.gelu(seen))

    class MosaicTransformer(ModelMixin, ConfigMixin):  # type: ignore[misc]
        @register_to_config
        def __init__(self, channels: int = 16, width: int = WIDTH, num_pieces: int = 3):
            super().__init__()
            self.enter = nn.Linear(channels * 4, width)
            self.level = nn.Linear(1, width)
            self.pieces = nn.ModuleList(Block(width) for _ in range(num_pieces))
            self.leave = nn.Linear(width, channels * 4)

        def forward(self, latents: Tensor, sigma: Tensor, letters: Tensor) -> Tensor:
            height, width = latents.shape[-2:]
            image = functional.pixel_unshuffle(latents, 2).flatten(2).transpose(1, 2)
            tokens = torch.cat([letters, self.enter(image)], dim=1)
            level = self.level(sigma[:, None].to(tokens.dtype))[:, None]
            for piece in self.pieces:
                tokens = piece(tokens, level)
            made = self.leave(tokens[:, letters.shape[1] :]).transpose(1, 2)
            return functional.pixel_shuffle(made.unflatten(2, (height // 2, width // 2)), 2)

    return MosaicTransformer


class Mosaic(Family):
    """See `plafond.families._contract.Family`."""

    name = "mosaic"
    archs = ("mosaic",)
    divisor = 16
    text_parts = ("text_encoder",)
    lora_blocks = ("pieces",)
    depth: Mapping[str, str] = {"pieces": "num_pieces"}
    miniature: Mapping[str, Mapping[str, Any]] = {"transformer": {"num_pieces": 2}}
    base_version = "mosaic"
    lora_format = "diffusers"
    base_models = (
        BaseModel(
            title="Mosaic",
            repo="nobody/Mosaic",
            arch="mosaic",
            transformer_parameters=17_152,
            text_encoders="letters",
            licence="none",
            modelspec="mosaic",
        ),
    )

    def locate(self, model: ModelConfig) -> Source:
        """A diffusers folder."""
        from plafond.model.checkpoint import locate

        return locate(model, companion="nobody/Mosaic")

    def load_text_encoders(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> Any:
        """A table of letters."""
        from pathlib import Path

        from plafond.model.checkpoint import read_tensors

        table = self.build_text_encoders(source)
        table.load_state_dict(read_tensors(Path(source.repo) / "text_encoder" / "model.safetensors"))
        return table.requires_grad_(False).to(device, dtype)

    def build_text_encoders(self, source: Source) -> Any:
        """The table without its numbers."""
        from torch import nn

        return nn.Embedding(256, source.config("transformer")["width"])

    def text_modules(self, encoders: Any) -> list[nn.Module]:
        """The table."""
        return [encoders]

    def encode_text(self, encoders: Any, prompts: Sequence[str]) -> list[TextEmbedding]:
        """``letters`` (LETTERS, WIDTH) of each prompt."""
        import torch

        rows = [list(prompt.encode()[:LETTERS].ljust(LETTERS)) for prompt in prompts]
        with torch.no_grad():
            letters = encoders(torch.tensor(rows, device=encoders.weight.device))
        return [{"letters": one} for one in letters]

    def load_transformer(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """`MosaicTransformer` with frozen weights."""
        from plafond.families._shared import load_denoiser

        return load_denoiser(source, denoiser(), self.native_table, device=device, dtype=dtype)

    def build_transformer(self, config: Mapping[str, Any]) -> nn.Module:
        """`MosaicTransformer` by its configuration."""
        from plafond.families._shared import from_config

        return from_config(denoiser(), config)

    def predict(
        self, transformer: nn.Module, noisy: Tensor, sigma: Tensor, text: TextEmbedding, settings: TrainConfig
    ) -> Tensor:
        """Velocity (B, 16, h, w)."""
        velocity: Tensor = transformer(noisy, sigma, text["letters"])
        return velocity

    def shift(self, latent_height: int, latent_width: int) -> float:
        """None."""
        return 0.0

    def preview(
        self, transformer: nn.Module, vae: nn.Module, source: Source, item: SampleItem, text: TextEmbedding
    ) -> Image:
        """One picture by Euler's steps."""
        import torch
        from diffusers.image_processor import VaeImageProcessor

        letters = text["letters"][None]
        dice = torch.Generator().manual_seed(item.seed)
        shape = (1, 16, item.height // 8, item.width // 8)
        latents = torch.randn(shape, generator=dice).to(letters)
        coder: Any = vae
        with torch.no_grad():
            for step in range(item.sample_steps):
                sigma = torch.full((1,), 1 - step / item.sample_steps, device=letters.device)
                latents = latents - transformer(latents, sigma, letters) / item.sample_steps
            pixels = coder.decode(latents / coder.config.scaling_factor + coder.config.shift_factor).sample
        picture: Image = VaeImageProcessor().postprocess(pixels, output_type="pil")[0]
        return picture

    def native_table(self, transformer: nn.Module) -> list[Entry]:
        """The names are the model's own."""
        from plafond.model.native import Entry

        return [
            Entry(native=name, diffusers=(name,))
            for name, layer in transformer.named_modules()
            if hasattr(layer, "weight")
        ]


FAMILY = Mosaic()

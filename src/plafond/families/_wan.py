"""What the Wan families share: the names of the original release, and attention that blocks can be planned with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.families._contract import TextEmbedding
    from plafond.model.native import Entry

TEXT_TOKENS = 512
"""Every prompt is cut or filled up to as many; the filling is zeros and is attended to, as in training of the base."""


IMAGE = "image_embeds"
"""The name of what an image encoder says about the first frame, among an embedding's tensors."""


def call(transformer: nn.Module, latents: Tensor, timestep: Tensor, text: TextEmbedding) -> Tensor:
    """Ask a `WanTransformer3DModel` for the velocity (B, C, frames, h, w).

    Args:
        transformer: the model.
        latents: all that it sees of the clip, (B, channels, frames, h, w).
        timestep: noise levels from 0 to 1,000, of clips (B,) or of their tokens (B, tokens).
        text: a batch of embeddings.
    """
    image = {"encoder_hidden_states_image": text[IMAGE]} if IMAGE in text else {}
    velocity: Tensor = transformer(
        hidden_states=latents,
        timestep=timestep,
        encoder_hidden_states=text["prompt_embeds"],
        return_dict=False,
        **image,
    )[0]
    return velocity


def native_table(transformer: nn.Module) -> list[Entry]:
    """The original release's names of a `WanTransformer3DModel`'s layers; none is fused."""
    from plafond.model.native import Entry

    config: Any = transformer.config
    table = [Entry(native=native, diffusers=(ours,)) for native, ours in _OUTER.items()]
    table.append(Entry(native="head.modulation", diffusers=("scale_shift_table",), suffixes=_BARE))
    if config.image_dim is not None:
        table += [Entry(native=native, diffusers=(ours,)) for native, ours in _IMAGE.items()]
        if config.pos_embed_seq_len is not None:
            place = "condition_embedder.image_embedder.pos_embed"
            table.append(Entry(native="img_emb.emb_pos", diffusers=(place,), suffixes=_BARE))
    for index in range(config.num_layers):
        block = f"blocks.{index}"
        table.append(
            Entry(native=f"{block}.modulation", diffusers=(f"{block}.scale_shift_table",), suffixes=_BARE)
        )
        table += [
            Entry(native=f"{block}.{native}", diffusers=(f"{block}.{ours}",))
            for native, ours in _BLOCK.items()
        ]
    return table


def spread(latents: Tensor, config: Any) -> tuple[Tensor, Tensor]:
    """Mean and deviation of a VAE's channels, as (1, C, 1, 1, 1)."""
    import torch

    mean, deviation = (
        torch.tensor(values, device=latents.device, dtype=latents.dtype).view(1, -1, 1, 1, 1)
        for values in (config.latents_mean, config.latents_std)
    )
    return mean, deviation


def unnormalised(latents: Tensor, config: Any) -> Tensor:
    """Latents (B, C, frames, h, w) as the VAE decodes them."""
    mean, deviation = spread(latents, config)
    return latents * deviation + mean


def pictures(clip: Tensor) -> list[Image]:
    """The frames of a clip (3, frames, H, W) in [-1, 1]."""
    import torch
    from PIL import Image as Pillow

    return [
        Pillow.fromarray(
            ((frame.float() / 2 + 0.5).clamp(0, 1) * 255)
            .round()
            .to(torch.uint8)
            .permute(1, 2, 0)
            .cpu()
            .numpy()
        )
        for frame in clip.unbind(1)
    ]


class Attention:
    """diffusers' attention of Wan's blocks, with a rotation that writes into nothing.

    Theirs fills the two halves of a new tensor in place, which no list of operations can say, so that a block could
    only be kept or recomputed as a whole. The numbers are the same to the last bit.
    """

    _attention_backend = None
    _parallel_config = None

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Self-attention (B, tokens, width), or attention to the prompt's tokens and a picture's before them."""
        image = None
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        if attn.add_k_proj is not None:
            image, source = source[:, :-TEXT_TOKENS], source[:, -TEXT_TOKENS:]
        query, key, value = attn.norm_q(attn.to_q(hidden_states)), attn.to_k(source), attn.to_v(source)
        query, key, value = (part.unflatten(2, (attn.heads, -1)) for part in (query, attn.norm_k(key), value))
        if rotary_emb is not None:
            query, key = rotated(query, *rotary_emb), rotated(key, *rotary_emb)
        found = self._attend(query, key, value, attention_mask)
        if image is not None:
            key, value = attn.norm_added_k(attn.add_k_proj(image)), attn.add_v_proj(image)
            key, value = key.unflatten(2, (attn.heads, -1)), value.unflatten(2, (attn.heads, -1))
            found = found + self._attend(query, key, value, None)
        projected: Tensor = attn.to_out[0](found)
        return projected

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        from diffusers.models.attention_dispatch import dispatch_attention_fn

        found: Tensor = dispatch_attention_fn(
            query, key, value, attn_mask=mask, backend=self._attention_backend
        )
        return found.flatten(2, 3).type_as(query)


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Heads (B, tokens, heads, width) turned by their tokens' angles (1, tokens, 1, width)."""
    import torch

    one, two = x.view(*x.shape[:-1], -1, 2).unbind(-1)
    cosine, sine = cosines[..., 0::2], sines[..., 1::2]
    halves = (one * cosine - two * sine).to(x.dtype), (one * sine + two * cosine).to(x.dtype)
    return torch.stack(halves, dim=-1).flatten(-2)


def with_attention(transformer: nn.Module) -> nn.Module:
    """Let all blocks attend by `Attention`."""
    blocks: Any = transformer.blocks
    for block in blocks:
        for attention in (block.attn1, block.attn2):
            attention.set_processor(Attention())
    return transformer


_BARE = (("", ""),)
"""Parameters that belong to no layer."""

_OUTER = {
    "patch_embedding": "patch_embedding",
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "head.head": "proj_out",
}

_IMAGE = {
    "img_emb.proj.0": "condition_embedder.image_embedder.norm1",
    "img_emb.proj.1": "condition_embedder.image_embedder.ff.net.0.proj",
    "img_emb.proj.3": "condition_embedder.image_embedder.ff.net.2",
    "img_emb.proj.4": "condition_embedder.image_embedder.norm2",
}

_BLOCK = {
    **{
        f"{theirs}.{native}": f"{ours}.{name}"
        for theirs, ours in (("self_attn", "attn1"), ("cross_attn", "attn2"))
        for native, name in (
            *(("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("o", "to_out.0")),
            *(("norm_q", "norm_q"), ("norm_k", "norm_k")),
        )
    },
    "cross_attn.k_img": "attn2.add_k_proj",
    "cross_attn.v_img": "attn2.add_v_proj",
    "cross_attn.norm_k_img": "attn2.norm_added_k",
    "norm3": "norm2",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
}

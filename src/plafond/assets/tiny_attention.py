"""Flux attention written for training on a CPU in bfloat16: the same function, three times faster.

Profiling the stock processor on one core showed most of the time in the backward passes of the fused
attention kernel, of RMSNorm and of the rotary embedding, none of which is optimised for bfloat16 there.
Batched matrix products are, so attention and rotation are spelt as such.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from torch import Tensor, nn


class _UnitRMS(torch.autograd.Function):
    """Divide by the root mean square over the last dimension."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return x / rms(x), same shape."""
        inverse = x.shape[-1] ** 0.5 / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-6)
        unit: Tensor = x * inverse
        ctx.save_for_backward(unit, inverse)
        return unit

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Gradient with respect to x."""
        unit, inverse = ctx.saved_tensors
        along = (grads[0] * unit).sum(-1, keepdim=True) / unit.shape[-1]
        return torch.addcmul(grads[0], unit, along, value=-1).mul_(inverse)


def _unit_rms(x: Tensor) -> Tensor:
    unit: Tensor = _UnitRMS.apply(x)  # type: ignore[no-untyped-call]
    return unit


def rotation_matrices(cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of each position as a matrix (L, D, D), to be applied to row vectors.

    ``cosine`` and ``sine`` (L, D) hold one value per channel, equal in each pair of channels.
    """
    width = cosine.shape[1]
    matrices = torch.diag_embed(cosine)
    even = torch.arange(0, width, 2)
    matrices[:, even + 1, even] = -sine[:, even]
    matrices[:, even, even + 1] = sine[:, even]
    return matrices


class FastFluxAttention:
    """Drop-in for diffusers' FluxAttnProcessor, without masks; one instance per model copy."""

    def __init__(self) -> None:
        self.rotations: Tensor | None = None

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend over text and image tokens, as the stock processor does."""
        heads = (attn.heads, attn.head_dim)
        parts = [(attn.to_q, attn.to_k, attn.to_v, attn.norm_q, attn.norm_k, hidden_states)]
        if encoder_hidden_states is not None:
            parts.insert(
                0,
                (
                    attn.add_q_proj,
                    attn.add_k_proj,
                    attn.add_v_proj,
                    attn.norm_added_q,
                    attn.norm_added_k,
                    encoder_hidden_states,
                ),
            )
        rows: list[list[Tensor]] = [[], [], []]
        for to_q, to_k, to_v, norm_q, norm_k, states in parts:
            for row, project, norm in zip(rows, (to_q, to_k, to_v), (norm_q, norm_k, None), strict=True):
                value = project(states).unflatten(-1, heads)
                row.append(value if norm is None else _unit_rms(value) * norm.weight)
        query, key, value = (row[0] if len(row) == 1 else torch.cat(row, dim=1) for row in rows)
        count, length, _, width = query.shape
        if self.rotations is None or self.rotations.dtype != query.dtype:
            assert image_rotary_emb is not None
            self.rotations = rotation_matrices(*image_rotary_emb).to(query.dtype)
        # Both in (L, N * heads, D): one matrix product per position rotates all of them.
        query, key = (
            torch.bmm(x.transpose(0, 1).reshape(length, -1, width), self.rotations)
            .view(length, count * attn.heads, width)
            .transpose(0, 1)
            for x in (query, key)
        )
        value = value.transpose(1, 2).reshape(count * attn.heads, length, width)
        weights = torch.softmax(torch.bmm(query, key.transpose(1, 2)) * width**-0.5, dim=-1)
        mixed = torch.bmm(weights, value).view(count, attn.heads, length, width).transpose(1, 2).flatten(2)
        if encoder_hidden_states is None:
            return mixed
        words = encoder_hidden_states.shape[1]
        return attn.to_out[0](mixed[:, words:]), attn.to_add_out(mixed[:, :words])


def speed_up(transformer: FluxTransformer2DModel) -> None:
    """Prepare a training copy: fast attention, and exact GELU, which is faster and within 5e-4 of tanh's."""
    processor = FastFluxAttention()
    for module in transformer.modules():
        if hasattr(module, "set_processor"):
            module.set_processor(processor)
        if isinstance(module, nn.GELU) or type(module).__name__ == "GELU":
            module.approximate = "none"

"""Which kernels the predicted device runs, and what they take beyond their outputs.

On ``meta``, attention falls apart into matrix products with a tokens × tokens matrix of scores, and RMSNorm into its
arithmetic; a GPU has one kernel for each. Inside `chosen_kernels` both go through the operation that the target would
run, so that a dry run sees its outputs, its saved tensors and its backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plafond.model.norm import FusedRmsNorm

aten = torch.ops.aten
MIB = 1024**2

FLASH_HEAD = 256
"""Widest attention head that flash attention takes (``sdp_utils.cpp``)."""


MASK_ALIGNMENT = 16
"""Rows of an additive mask begin at multiples of this many elements in the memory-efficient kernel."""


@dataclass(frozen=True)
class Target:
    """The device that a dry run predicts.

    Args:
        kind: ``cuda`` or ``cpu``.
        capability: CUDA compute capability.
    """

    kind: str = "cuda"
    capability: tuple[int, int] = (8, 9)

    @classmethod
    def of(cls, device: torch.device) -> Target:
        """The device itself."""
        if device.type == "cuda":
            return cls("cuda", torch.cuda.get_device_capability(device))
        return cls("cpu")

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.kind == "cuda"

    @property
    def cublas_workspace(self) -> int:
        """What cuBLAS takes per thread and never gives back: ``getChosenWorkspaceSize`` in CublasHandlePool.cpp."""
        return 32 * MIB if self.capability[0] in (9, 10, 12) else 8 * MIB + MIB // 8


@contextmanager
def chosen_kernels(target: Target) -> Iterator[None]:
    """Let attention and RMSNorm on ``meta`` run as `target` would run them."""
    attention, norm = F.scaled_dot_product_attention, F.rms_norm

    def attend(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not query.is_meta:
            return attention(query, *args, **kwargs)
        return _attention(target, query, *args, **kwargs)

    def normalise(
        x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        fused = target.is_cuda and len(normalized_shape) == 1 and (weight is None or weight.dtype == x.dtype)
        if not (x.is_meta and fused):
            return norm(x, list(normalized_shape), weight, eps)
        return FusedRmsNorm.apply(x, weight, eps)  # type: ignore[no-any-return,no-untyped-call]

    F.scaled_dot_product_attention = attend
    F.rms_norm = normalise  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention, F.rms_norm = attention, norm


def _attention(
    target: Target,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Shapes: (B, heads, tokens, head) as of `torch.nn.functional.scaled_dot_product_attention`.

    The choice follows ``sdp_utils.cpp``: flash for half types without a mask and heads up to 256 wide, otherwise the
    memory-efficient kernel; cuDNN's, which newer GPUs prefer, has the outputs of flash.
    """
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = attn_mask.logical_not()
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(hidden, -torch.inf)
    if not target.is_cuda:
        out: Tensor = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )[0]
        return out
    width = query.shape[-1]
    half = query.dtype in (torch.bfloat16, torch.float16)
    if attn_mask is None and half and width <= FLASH_HEAD and target.capability >= (8, 0):
        if missing := -width % 8:
            query, key, value = (F.pad(tensor, (0, missing)) for tensor in (query, key, value))
            scale = scale or width**-0.5
        out = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
        return out[..., :width] if missing else out
    if attn_mask is not None:
        tokens = attn_mask.shape[-1]
        if missing := -tokens % MASK_ALIGNMENT:
            attn_mask = F.pad(attn_mask, (0, missing))[..., :tokens]
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    training = torch.is_grad_enabled() and query.requires_grad
    out = aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, training, dropout_p, is_causal, scale=scale
    )[0]
    return out


def _flash_backward(args: tuple[Any, ...], out: Any) -> Iterable[int]:
    # flash-attention 2's `dq_accum` (B, tokens up to 128s, heads, head up to 32s) and `softmax_d`, both float32
    query: Tensor = args[1]
    batch, heads, tokens, width = query.shape
    tokens = -(-tokens // 128) * 128
    return (4 * batch * heads * tokens * (-(-width // 32) * 32) + 4 * batch * heads * tokens,)


def _convolution(args: tuple[Any, ...], out: Any) -> Iterable[int]:
    # cuDNN's half-precision kernels, of pictures and of clips, want the channels last and keep a copy of both sides in
    # their workspace. An estimate: the true size depends on the algorithm that cuDNN's heuristic picks.
    x: Tensor = args[0]
    if x.dtype == torch.float32 or x.dim() not in (4, 5):
        return ()
    return (x.numel() * x.element_size() + out.numel() * out.element_size(),)


SCRATCH: Mapping[Any, Callable[[tuple[Any, ...], Any], Iterable[int]]] = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten.convolution.default: _convolution,
}
"""What CUDA kernels allocate and free inside one operation, by operation; cuBLAS's lasting workspace is
`Target.cublas_workspace`."""


def scratch(func: Any, args: tuple[Any, ...], out: Any) -> Iterable[int]:
    """Bytes inside one operation; see `SCRATCH`."""
    rule = SCRATCH.get(func)
    return () if rule is None else rule(args, out)

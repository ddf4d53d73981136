"""Translate between diffusers' names of a model's layers and the names of its original ("native") release.

Native models often fuse layers that diffusers keeps apart: FLUX's ``img_attn.qkv`` is ``to_q``, ``to_k`` and
``to_v`` stacked along the output features. A table of `Entry` rows says how the two sides correspond, and serves
both whole checkpoints (`to_diffusers`) and LoRA files (`lora_to_native`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from plafond.errors import CheckpointError, JobError
from plafond.language.said import N_

KRONECKER = ("lokr_w1", "lokr_w2", "lokr_w2_a", "lokr_w2_b")
LENGTHS = "lora_magnitude_vector.weight"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One native layer and the diffusers layers it holds, in stacking order.

    `swap_halves` marks a layer whose two output halves are exchanged (shift and scale of FLUX's last modulation).
    `suffixes` maps the parameter's name in diffusers to its name in the native file.
    """

    native: str
    diffusers: tuple[str, ...]
    swap_halves: bool = False
    suffixes: tuple[tuple[str, str], ...] = ((".weight", ".weight"), (".bias", ".bias"))

    @property
    def fused(self) -> bool:
        """Whether the native layer is more than another name of one layer."""
        return len(self.diffusers) > 1 or self.swap_halves


def to_diffusers(
    native: Mapping[str, Tensor], table: Iterable[Entry], shapes: Mapping[str, torch.Size], *, what: str
) -> dict[str, Tensor]:
    """Rename and split a native checkpoint.

    Args:
        native: tensors under native names.
        table: the correspondence.
        shapes: shape of each parameter of the diffusers model; gives the sizes of fused parts.
        what: the file, for error messages.

    Raises:
        CheckpointError: a tensor is missing or has the wrong shape.
    """
    state: dict[str, Tensor] = {}
    for entry in table:
        for suffix, native_suffix in entry.suffixes:
            names = [part + suffix for part in entry.diffusers if part + suffix in shapes]
            if not names:
                continue
            source = entry.native + native_suffix
            if source not in native:
                raise CheckpointError(
                    N_("{path} has no tensor named {name}; is it a complete transformer?"),
                    path=what,
                    name=source,
                )
            tensor = native[source]
            if entry.swap_halves:
                tensor = torch.cat(tensor.chunk(2)[::-1])
            rows = [shapes[name][0] for name in names]
            if tensor.shape[0] != sum(rows):
                raise CheckpointError(
                    N_("{path}: {name} has {found} rows, the model has {expected}"),
                    path=what,
                    name=source,
                    found=tensor.shape[0],
                    expected=sum(rows),
                )
            state.update(zip(names, torch.split(tensor, rows), strict=True))
    return state


def lora_from_native(native: Mapping[str, Tensor], table: Iterable[Entry]) -> dict[str, Tensor]:
    """An adapter of layers that are not fused, under PEFT's names; an alpha that is not the rank goes into ``B``.

    Args:
        native: as `lora_to_native` or `to_native_names` gives it.
        table: the correspondence.
    """
    state: dict[str, Tensor] = {}
    for entry in table:
        if entry.fused:
            continue
        for down, up in (("lora_A", "lora_B"), ("lora_down", "lora_up")):
            names = f"{entry.native}.{down}.weight", f"{entry.native}.{up}.weight"
            if not all(name in native for name in names):
                continue
            first, second = (native[name] for name in names)
            rank = first.shape[0]
            alpha = native.get(f"{entry.native}.alpha")
            state[f"{entry.diffusers[0]}.lora_A.weight"] = first
            state[f"{entry.diffusers[0]}.lora_B.weight"] = (
                second if alpha is None else second * (alpha / rank)
            )
        for suffix in (*KRONECKER, LENGTHS):
            if f"{entry.native}.{suffix}" in native:
                state[f"{entry.diffusers[0]}.{suffix}"] = native[f"{entry.native}.{suffix}"]
    return state


def to_native_names(state: Mapping[str, Tensor], table: Iterable[Entry]) -> dict[str, Tensor]:
    """An adapter whose tensors cannot be stacked, under native names.

    Args:
        state: names as `LoraNetwork.file_tensors` gives them.
        table: the correspondence.

    Raises:
        JobError: one of its layers is a part of a native one.
    """
    names = {part: entry for entry in table for part in entry.diffusers}
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        layer = next(part for part in names if name.startswith(f"{part}."))
        if names[layer].fused:
            raise JobError(
                N_(
                    "native names join {layer} with other layers, which only a plain lora can be; expected diffusers"
                ),
                layer=layer,
                key="save.lora_format",
            )
        found[names[layer].native + name.removeprefix(layer)] = tensor
    return found


def lora_to_native(
    lora: Mapping[str, Tensor],
    table: Iterable[Entry],
    out_features: Mapping[str, int],
    *,
    alpha: float,
    rank: int,
) -> dict[str, Tensor]:
    """Rewrite a LoRA under native names, exactly.

    Layers that are fused natively become one LoRA of rank ``parts × rank``: the ``A`` matrices are stacked and the
    ``B`` matrices stand on a block diagonal, so the product is the same; parts without a LoRA are zero. Loaders
    recognise the block diagonal and split it again without loss.

    Args:
        lora: PEFT names without prefix, as `LoraNetwork.state_dict` gives them.
        table: the correspondence.
        out_features: output features of each diffusers layer (also of those without a LoRA).
        alpha: alpha of the LoRA; the fused alpha grows with the fused rank, so that the scale stays.
        rank: rank of the LoRA.

    Returns:
        ``<native>.lora_down.weight``, ``<native>.lora_up.weight`` and ``<native>.alpha`` tensors; where no layer is
        fused and the scale is 1, PEFT's ``<native>.lora_A.weight`` and ``<native>.lora_B.weight``.
    """
    table = list(table)
    if alpha == rank and not any(entry.fused for entry in table):
        return {
            f"{entry.native}.{matrix}.weight": lora[f"{entry.diffusers[0]}.{matrix}.weight"]
            for entry in table
            if f"{entry.diffusers[0]}.lora_A.weight" in lora
            for matrix in ("lora_A", "lora_B")
        }
    state: dict[str, Tensor] = {}
    for entry in table:
        present = [part for part in entry.diffusers if f"{part}.lora_A.weight" in lora]
        if not present:
            continue
        like = lora[f"{present[0]}.lora_A.weight"]
        downs: list[Tensor] = []
        ups: list[Tensor] = []
        for part in entry.diffusers:
            down = lora.get(f"{part}.lora_A.weight")
            up = lora.get(f"{part}.lora_B.weight")
            downs.append(like.new_zeros(like.shape) if down is None else down)
            ups.append(like.new_zeros(out_features[part], rank) if up is None else up)
        stacked: Tensor = torch.block_diag(*ups)  # type: ignore[no-untyped-call]
        if entry.swap_halves:
            stacked = torch.cat(stacked.chunk(2)[::-1])
        state[f"{entry.native}.lora_down.weight"] = torch.cat(downs)
        state[f"{entry.native}.lora_up.weight"] = stacked.contiguous()
        state[f"{entry.native}.alpha"] = torch.tensor(float(alpha) * len(ups))
    return state

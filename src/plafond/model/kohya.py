"""LoRA files as kohya's trainer writes them for Stable Diffusion: dots in names become underscores, alpha is kept."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from plafond.model.lora import LoraNetwork
from plafond.model.native import KRONECKER, LENGTHS

PREFIX = "lora_unet_"
PARTS = {"lora_A.weight": "lora_down.weight", "lora_B.weight": "lora_up.weight"}


def to_kohya(
    state: Mapping[str, Tensor], network: LoraNetwork, names: Mapping[str, str]
) -> dict[str, Tensor]:
    """Rename an adapter.

    Args:
        state: names as `LoraNetwork.file_tensors` gives them.
        network: whose tensors they are.
        names: kohya's of each layer, with dots, by our own.
    """
    found: dict[str, Tensor] = {}
    for path, layer in network.layers.items():
        flat = PREFIX + names[path].replace(".", "_")
        for name in (*layer.tensors(), *layer.derived_names):
            if name != LENGTHS:  # dora_scale says the same
                found[f"{flat}.{PARTS.get(name, name)}"] = state[f"{path}.{name}"]
        found[f"{flat}.alpha"] = torch.tensor(float(layer.alpha))
    return found


def from_kohya(saved: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """An adapter under PEFT's names; an alpha that is not the rank goes into ``B``.

    Args:
        saved: a file's tensors.
        names: kohya's of each layer, with dots, by our own.
    """
    found: dict[str, Tensor] = {}
    for path, theirs in names.items():
        flat = PREFIX + theirs.replace(".", "_")
        alpha = saved.get(f"{flat}.alpha")
        for ours, other in PARTS.items():
            tensor = saved.get(f"{flat}.{other}")
            if tensor is None:
                continue
            if other == "lora_up.weight" and alpha is not None:
                tensor = tensor * (float(alpha) / tensor.shape[1])
            found[f"{path}.{ours}"] = tensor
        for name in KRONECKER:
            if f"{flat}.{name}" in saved:
                found[f"{path}.{name}"] = saved[f"{flat}.{name}"]
    return found

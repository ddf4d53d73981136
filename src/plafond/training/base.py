"""The frozen base model in the number format that the job asks for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from plafond.families._contract import Family
from plafond.job.model import ModelConfig
from plafond.model.quantized import in_layers, quantize
from plafond.model.visits import move_in_part


def quantize_transformer(
    transformer: nn.Module, family: Family, model: ModelConfig, device: torch.device
) -> None:
    """Pack the linear layers of the transformer's blocks; embedders, norms and the output stay as they are.

    Args:
        transformer: in main memory, without an adapter yet.
        family: its family.
        model: the job's model section.
        device: where the packed weights go.
    """
    if model.weight_format is None:
        return
    blocks = (*family.lora_blocks, *family.packed_blocks)
    quantize(
        transformer,
        model.weight_format,
        device,
        exclude=model.unquantized,
        only=lambda path: any(block in path for block in blocks),
        home=model.layer_offloading or bool(family.experts),
    )


def bring_encoders(modules: Sequence[nn.Module], model: ModelConfig, device: torch.device) -> None:
    """Put text encoders on the device, as the job asks: packed, or with layers that only visit.

    Linear layers are packed; embeddings, norms and what stands outside the layers stay as they are.

    Args:
        modules: in main memory.
        model: the job's model section.
        device: where they compute.
    """
    share = model.layer_offloading_text_encoder_percent if model.layer_offloading else 0.0
    for module in modules:
        if model.text_format is not None:
            quantize(module, model.text_format, device, only=in_layers(module), home=share > 0)
        move_in_part(module, device, share)

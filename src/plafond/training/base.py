"""The frozen base model in the number format that the job asks for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from plafond.families._contract import Family
from plafond.job.model import ModelConfig
from plafond.model.quantized import in_layers, quantize


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
    blocks = family.lora_blocks
    quantize(
        transformer,
        model.weight_format,
        device,
        exclude=model.unquantized,
        only=lambda path: any(block in path for block in blocks),
        home=model.layer_offloading or bool(family.experts),
    )


def quantize_encoders(modules: Sequence[nn.Module], model: ModelConfig, device: torch.device) -> None:
    """Pack the linear layers of text encoders; embeddings, norms and what stands outside the layers stay."""
    if model.text_format is None:
        return
    for module in modules:
        quantize(module, model.text_format, device, only=in_layers(module))

"""Wan 2.2, text to video: two experts of 14 B, one for high and one for low noise levels.

Each is a Wan 2.1 of its own. They take turns in training, each for ``train.switch_boundary_every`` steps, and in
previews, and get an adapter and a file each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from plafond.families._ai_toolkit import TWO_EXPERTS, Residency
from plafond.families._contract import BaseModel, Expert
from plafond.families.wan21 import PARAMETERS, Wan21
from plafond.language.said import N_

if TYPE_CHECKING:
    import torch
    from torch import nn

    from plafond.job.model import ModelConfig
    from plafond.model.checkpoint import Source
    from plafond.model.experts import Experts

PARTS = {"high_noise": "transformer", "low_noise": "transformer_2"}
"""Folders of the checkpoint by expert."""
SWITCHES = {"high_noise": "train_high_noise", "low_noise": "train_low_noise"}
"""Keys of ``model_kwargs`` by expert."""
WITHOUT_THE_REST = "ai-toolkit/"
"""Repositories of this owner hold the experts; encoder and VAE come from the model's own."""


class Wan22(Wan21):
    """See `plafond.families._contract.Family`."""

    name = "wan22_14b"
    archs: tuple[str, ...] = ("wan22_14b",)
    residency: Residency = TWO_EXPERTS
    boundary = 0.875
    """Noise level that divides the experts."""
    lora_blocks: tuple[str, ...] = tuple(f"{name}." for name in PARTS)
    depth: Mapping[str, str] = dict.fromkeys(PARTS, "num_layers")
    model_options: tuple[str, ...] = tuple(SWITCHES.values())
    base_version = "wan_2.2_14b"
    base_models: tuple[BaseModel, ...] = (
        BaseModel(
            title="Wan2.2-T2V-A14B",
            repo="Wan-AI/Wan2.2-T2V-A14B-Diffusers",
            arch="wan22_14b:t2v",
            transformer_parameters=2 * PARAMETERS,
            text_encoders="UMT5-XXL",
            licence="Apache-2.0",
            modelspec="wan2.2-t2v-a14b",
        ),
    )

    @property
    def experts(self) -> tuple[Expert, ...]:  # type: ignore[override]
        """The one that begins with noise comes first."""
        return (
            Expert(name="high_noise", sigmas=(self.boundary, 1.0)),
            Expert(name="low_noise", sigmas=(0.0, self.boundary)),
        )

    def trained_experts(self, model: ModelConfig) -> tuple[Expert, ...]:
        """Both, unless ``train_high_noise`` or ``train_low_noise`` is off."""
        from plafond.errors import JobError

        found = tuple(
            expert for expert in self.experts if model.model_kwargs.get(SWITCHES[expert.name], True)
        )
        if not found:
            raise JobError(
                N_("expected train_high_noise or train_low_noise to be true, found both false"),
                key="model.model_kwargs",
            )
        return found

    def locate(self, model: ModelConfig) -> Source:
        """Folder or Hugging Face id."""
        from plafond.errors import JobError
        from plafond.model.checkpoint import locate

        name, companion = model.name_or_path, self.base_models[0].repo
        if name.endswith((".safetensors", ".sft")):
            raise JobError(
                N_("expected a folder or a Hugging Face id with both experts, found the file {name}"),
                name=name,
                key="model.name_or_path",
            )
        if name.startswith(WITHOUT_THE_REST) and not model.extras_name_or_path:
            model = model.model_copy(update={"extras_name_or_path": companion})
        return locate(model, companion=companion)

    # ------------------------------------------------------------------------------------------------ transformer

    def load_transformer(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """Two `WanTransformer3DModel` with frozen weights."""
        from diffusers import WanTransformer3DModel

        from plafond.families._shared import load_part
        from plafond.families._wan import with_attention
        from plafond.model.experts import Experts

        return Experts(
            {
                name: with_attention(
                    load_part(source, part, WanTransformer3DModel, device=device, dtype=dtype)
                )
                for name, part in PARTS.items()
            }
        )

    def build_transformer(self, config: Mapping[str, Any]) -> nn.Module:
        """Two `WanTransformer3DModel` by their configuration."""
        from plafond.model.experts import Experts

        return Experts({name: super(Wan22, self).build_transformer(config) for name in PARTS})

    def _drawn_by(self, transformer: nn.Module) -> dict[str, Any]:
        experts = cast("Experts", transformer)
        views = {part: experts.view(name) for name, part in PARTS.items()}
        return {**views, "boundary_ratio": self.boundary}


FAMILY = Wan22()

"""`save` and `logging`: what is written while training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from plafond.job.section import Dtype, Flag, Section, one_name
from plafond.language.said import N_


class SaveConfig(Section):
    """When and how the trained weights are written."""

    save_every: int = Field(1000, ge=1, description="Save after every this many steps.")
    dtype: Dtype = Field("float16", description="Number format of the saved weights.")
    max_step_saves_to_keep: int = Field(
        5, ge=1, description="How many intermediate saves are kept; older ones are deleted."
    )
    save_format: Annotated[str, one_name(N_("a save format"), "safetensors", "diffusers")] = Field(
        "safetensors", description="Format of full fine-tunes; a LoRA is always a safetensors file."
    )
    lora_format: Annotated[str, one_name(N_("a LoRA format"), "auto", "native", "diffusers", "both")] = Field(
        "auto",
        description="Layer names in the saved LoRA: the one file that ComfyUI and diffusers both load "
        "(auto), the original release's names, diffusers' names, or a file of each. Only plafond has "
        "this key.",
    )
    metadata_captions: Flag = Field(
        False,
        description="Also write captions and folder names into the metadata. Only plafond has this key.",
    )


class LoggingConfig(Section):
    """How often the loss is reported."""

    log_every: int = Field(
        100, ge=1, description="Report after every this many steps; null reports every step."
    )

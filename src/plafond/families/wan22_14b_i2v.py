"""Wan 2.2, image to video: the two experts of 14 B, with a clip's first frame given."""

from __future__ import annotations

from dataclasses import replace

from plafond.families._ai_toolkit import TRANSFORMER, TWO_EXPERTS, VAE, Residency
from plafond.families._contract import BaseModel
from plafond.families.wan21 import PARAMETERS
from plafond.families.wan21_i2v import WITH_FRAME, FromFirstFrame
from plafond.families.wan22_14b import Wan22


class Wan22I2V(FromFirstFrame, Wan22):
    """See `plafond.families._contract.Family`."""

    name = "wan22_14b_i2v"
    archs: tuple[str, ...] = ("wan22_14b_i2v",)
    residency: Residency = replace(TWO_EXPERTS, stay=(TRANSFORMER, VAE), stay_low_vram=(VAE,))
    boundary = 0.9
    base_models: tuple[BaseModel, ...] = (
        BaseModel(
            title="Wan2.2-I2V-A14B",
            repo="Wan-AI/Wan2.2-I2V-A14B-Diffusers",
            arch="wan22_14b_i2v",
            transformer_parameters=2 * (PARAMETERS + WITH_FRAME),
            text_encoders="UMT5-XXL",
            licence="Apache-2.0",
            modelspec="wan2.2-i2v-a14b",
        ),
    )


FAMILY = Wan22I2V()

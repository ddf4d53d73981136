"""`sample`: the preview pictures made while training."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field
from pydantic.json_schema import WithJsonSchema

from plafond.job.section import Expected, Flag, Input, Names, Section
from plafond.language.said import N_


def _negative(value: object) -> object:
    return "" if value is False else value


def _strength(value: object) -> object:
    # The one number that AI Toolkit also reads from a text.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


Negative = Annotated[
    str,
    BeforeValidator(_negative),
    Expected(N_("a text or false")),
    WithJsonSchema({"type": ["string", "boolean"]}),
]
Strength = Annotated[
    float,
    BeforeValidator(_strength),
    Expected(N_("a number")),
    WithJsonSchema({"type": ["number", "string"]}),
]
Seed = Annotated[int, Field(ge=-1, le=2**63 - 1)]


PICTURE_FORMAT = Names(
    noun=N_("a picture format"), accepted={"jpg": "jpg", "png": "png", "webp": "webp", "jpeg": "jpg"}
)


class SampleItem(Section):
    """One preview with everything it needs: values inherited, prompt flags read, placeholders replaced."""

    prompt: str = Field("", description="What to paint; flags such as --w 512 at its end set the other keys.")
    neg: Negative = Field("", description="Negative prompt.")
    width: int = Field(512, ge=64, description="Width in pixels.")
    height: int = Field(512, ge=64, description="Height in pixels.")
    seed: Seed = Field(0, description="Random seed; -1 draws a new one each time.")
    guidance_scale: float = Field(
        7.0, ge=0, description="Strength of classifier-free (or embedded) guidance."
    )
    sample_steps: int = Field(20, ge=1, description="Number of denoising steps.")
    network_multiplier: Strength = Field(1.0, description="Strength of the trained adapter.")
    num_frames: int = Field(1, ge=1, description="Number of frames; more than 1 makes a video.")
    fps: int = Field(16, ge=1, description="Frames per second of a video.")
    ctrl_img: str | None = Field(None, description="Control image.")
    ctrl_img_1: str | None = Field(None, description="First control image; ctrl_img when not given.")
    ctrl_img_2: str | None = Field(None, description="Second control image.")
    ctrl_img_3: str | None = Field(None, description="Third control image.")
    ctrl_idx: int = Field(0, ge=0, description="Which control the control image is for.")

    @property
    def control_images(self) -> tuple[str, ...]:
        """The control images that are given, in order."""
        images = (self.ctrl_img_1 or self.ctrl_img, self.ctrl_img_2, self.ctrl_img_3)
        return tuple(image for image in images if image)


class SampleConfig(Section):
    """When previews are made, and the values that single previews inherit."""

    inputs: ClassVar = {
        "prompts": Input(
            schema={"type": "array", "items": {"type": "string"}},
            description="A list of prompts, the older way to write samples; ignored when samples is given.",
            into="samples",
        )
    }

    sampler: str = Field("ddpm", description="Sampler of previews; most models bring their own.")
    sample_every: int = Field(100, ge=1, description="Make previews after every this many steps.")
    sample_start_step: int = Field(0, ge=0, description="No previews before this step.")
    width: int = Field(512, ge=64, description="Width in pixels.")
    height: int = Field(512, ge=64, description="Height in pixels.")
    neg: Negative = Field("", description="Negative prompt.")
    seed: Seed = Field(0, description="Random seed; -1 draws a new one each time.")
    walk_seed: Flag = Field(False, description="Add the preview's index to the seed.")
    guidance_scale: float = Field(
        7.0, ge=0, description="Strength of classifier-free (or embedded) guidance."
    )
    sample_steps: int = Field(20, ge=1, description="Number of denoising steps.")
    network_multiplier: Strength = Field(1.0, description="Strength of the trained adapter.")
    format: Annotated[str, PICTURE_FORMAT] = Field("jpg", description="Picture format of previews.")
    num_frames: int = Field(1, ge=1, description="Number of frames; more than 1 makes a video.")
    fps: int = Field(16, ge=1, description="Frames per second of a video.")
    samples: tuple[SampleItem, ...] = Field((), description="The previews, one mapping each.")

"""`train`: the optimisation."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic.json_schema import WithJsonSchema

from plafond.job.section import Dtype, Expected, Flag, Input, Names, Section, Settings, one_name
from plafond.language.said import N_

OPTIMIZER = Names(
    noun=N_("an optimizer"),
    accepted={
        "adamw8bit": "adamw8bit",
        "adamw": "adamw",
        "adam8bit": "adam8bit",
        "adam": "adam",
        "adafactor": "adafactor",
        "lion8bit": "lion8bit",
        "lion": "lion",
        "prodigy": "prodigy",
        "prodigyopt": "prodigy",
    },
    known={
        "adam8": "adam8bit",
        "adamw8": "adamw8bit",
        "ademamix8bit": "adamw8bit",
        "adagrad": "adafactor",
        "automagic": "adafactor",
        "automagic2": "adafactor",
        "automagic3": "adafactor",
        "automagicexperiment": "adafactor",
        "dadaptation": "prodigy",
        "dadaptationadam": "prodigy",
        "dadaptationlion": "prodigy",
        "prodigy8bit": "prodigy",
    },
)
LR_SCHEDULER = one_name(
    N_("a learning-rate schedule"),
    "constant",
    "constant_with_warmup",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "step",
    known={"polynomial": "linear", "piecewise_constant": "step"},
)
TIMESTEP_TYPE = Names(
    noun=N_("a timestep type"),
    accepted={
        "sigmoid": "sigmoid",
        "linear": "linear",
        "weighted": "weighted",
        "shift": "shift",
        "flux_shift": "shift",
        "lumina2_shift": "shift",
        "lognorm_blend": "lognorm_blend",
    },
    known={
        "next_sample": "linear",
        "one_step": "linear",
        "two_step": "linear",
        "four_step": "linear",
        "eight_step": "linear",
    },
)
LOSS_TYPE = one_name(
    N_("a loss"),
    "mse",
    "mae",
    known=dict.fromkeys(("wavelet", "pseudo_huber", "stepped", "mean_flow", "pixelspace")),
)


def _checkpointing(value: object) -> object:
    return bool(value) if isinstance(value, int) and value in (0, 1) else value


Checkpointing = Annotated[
    bool | Literal["auto"],
    BeforeValidator(_checkpointing),
    Expected(N_("true, false or auto")),
    WithJsonSchema({"enum": [True, False, "auto"]}),
]


class EmaConfig(Section):
    """A running average of the weights, saved instead of them."""

    use_ema: Flag = Field(False, description="Keep a running average of the trained weights and save that.")
    ema_decay: float = Field(0.999, ge=0, le=1, description="Weight of the past in the running average.")


class TrainConfig(Section):
    """How long, how fast and on what the adapter is trained."""

    inputs: ClassVar = {
        "gradient_accumulation_steps": Input(
            schema={"type": "integer", "minimum": 1},
            description="The older name of gradient_accumulation.",
            into="gradient_accumulation",
        ),
        "unet_lr": Input(
            schema={"type": "number", "exclusiveMinimum": 0},
            description="Used as lr when lr is not given.",
            into="lr",
        ),
    }

    steps: int = Field(1000, ge=1, description="Number of steps in total.")
    batch_size: int = Field(1, ge=1, description="Pictures per batch.")
    gradient_accumulation: int = Field(1, ge=1, description="Batches whose gradients make one step.")
    lr: float = Field(1e-6, gt=0, description="Learning rate.")
    optimizer: Annotated[str, OPTIMIZER] = Field("adamw", description="Optimizer.")
    optimizer_params: Settings = Field(
        {}, description="More settings of the optimizer, such as weight_decay."
    )
    lr_scheduler: Annotated[str, LR_SCHEDULER] = Field("constant", description="Learning-rate schedule.")
    lr_scheduler_params: Settings = Field(
        {}, description="More settings of the schedule, such as num_warmup_steps."
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients longer than this are shortened to it.")
    dtype: Dtype = Field("float32", description="Number format of the computation.")
    train_unet: Flag = Field(True, description="Train the denoising model.")
    train_text_encoder: Flag = Field(False, description="Train the text encoder too.")
    gradient_checkpointing: Checkpointing = Field(
        True,
        description="Recompute blocks in the backward pass instead of keeping them: true for all, false "
        "for none, auto for as many as the memory needs.",
    )
    noise_scheduler: str = Field("ddpm", description="Noise schedule; most models bring their own.")
    timestep_type: Annotated[str, TIMESTEP_TYPE] = Field(
        "sigmoid", description="How noise levels are drawn, and weighted in the loss."
    )
    content_or_style: Annotated[str, one_name(N_("a timestep bias"), "balanced", "content", "style")] = Field(
        "balanced", description="Draw more high noise levels (content), more low ones (style), or neither."
    )
    min_denoising_steps: int = Field(0, ge=0, le=1000, description="Lowest noise level, of 1000.")
    max_denoising_steps: int = Field(999, ge=0, le=1000, description="Highest noise level, of 1000.")
    loss_type: Annotated[str, LOSS_TYPE] = Field("mse", description="Distance between prediction and target.")
    ema_config: EmaConfig = Field(EmaConfig(), description="Running average of the weights.")
    skip_first_sample: Flag = Field(False, description="Make no preview before the first step.")
    force_first_sample: Flag = Field(False, description="Make a preview when a run is continued, too.")
    disable_sampling: Flag = Field(False, description="Make no previews.")
    start_step: int | None = Field(None, ge=0, description="Continue counting from this step.")
    cache_text_embeddings: Flag = Field(
        False, description="Encode all captions once, then drop the text encoder."
    )
    unload_text_encoder: Flag = Field(
        False,
        description="Encode only the empty caption or the trigger word once, then drop the text encoder.",
    )
    bypass_guidance_embedding: Flag = Field(
        False, description="Train guidance-distilled models without guidance."
    )
    attention_backend: str = Field("native", description="Attention kernel, by its diffusers name.")
    switch_boundary_every: int = Field(
        1, ge=1, description="Steps before a model of two experts changes the expert."
    )
    min_snr_gamma: float | None = Field(
        None,
        gt=0,
        description="Stable Diffusion: steps whose signal is above this many times the noise count less.",
    )
    diff_output_preservation: Flag = Field(
        False,
        description="Also train each picture's caption, with the class in the trigger's place, to stay as it is.",
    )
    diff_output_preservation_multiplier: float = Field(1.0, ge=0, description="Weight of that in the loss.")
    diff_output_preservation_class: str = Field(
        "", description="The class of what the trigger word stands for."
    )
    blank_prompt_preservation: Flag = Field(
        False, description="Also train the empty caption to stay as it is."
    )
    blank_prompt_preservation_multiplier: float = Field(1.0, ge=0, description="Weight of that in the loss.")
    inverted_mask_prior: Flag = Field(
        False, description="Where there are masks, train what they leave out to stay as it is."
    )
    inverted_mask_prior_multiplier: float = Field(0.5, ge=0, description="Weight of that in the loss.")
    reg_weight: float = Field(1.0, ge=0, description="Factor on the loss of regularisation data.")
    max_loss: float | None = Field(None, gt=0, description="Losses above this are cut to it.")

    @property
    def preserves(self) -> float | None:
        """Weight in the loss of what another caption than the picture's gives; None when nothing is preserved."""
        if self.diff_output_preservation:
            return self.diff_output_preservation_multiplier
        return self.blank_prompt_preservation_multiplier if self.blank_prompt_preservation else None

"""The fields of the job form, panel by panel, under the labels that AI Toolkit's users know."""

from __future__ import annotations

from plafond.job.save import SaveConfig
from plafond.job.train import LR_SCHEDULER
from plafond.web.kinds import (
    FORMATS,
    Control,
    Field,
    Panel,
    Quantised,
    anywhere,
    both,
    has,
    has_controls,
    has_convolutions,
    has_experts,
    has_frames,
    has_holes,
    has_schedule,
    here,
    sees_control,
    sees_one,
    when,
)
from plafond.web.words import N_

MASKS = ("mask_path", "alpha_mask")
"""Settings of a data set that give it masks."""

MODEL = Panel(
    title=N_("Model"),
    fields=(
        Field(key="model.name_or_path", label=N_("Name or Path")),
        Field(key="model.assistant_lora_path", label=N_("Training Adapter Path")),
        Field(key="model.low_vram", label=N_("Low VRAM"), kind="flag"),
        Field(key="model.layer_offloading", label=N_("Layer Offloading"), kind="flag"),
        Field(
            key="model.layer_offloading_transformer_percent",
            label=N_("Transformer Offload (0 to 1)"),
            kind="number",
            shown=when("model.layer_offloading"),
        ),
        Field(
            key="model.layer_offloading_text_encoder_percent",
            label=N_("Text Encoder Offload (0 to 1)"),
            kind="number",
            shown=when("model.layer_offloading"),
        ),
    ),
)
QUANTIZATION = Panel(
    title=N_("Quantization"),
    fields=(
        Quantised(
            key="model.qtype",
            switch="model.quantize",
            label=N_("Transformer"),
            kind="choice",
            options=FORMATS,
        ),
        Quantised(
            key="model.qtype_te",
            switch="model.quantize_te",
            label=N_("Text Encoder"),
            kind="choice",
            options=FORMATS,
        ),
    ),
)
MULTISTAGE = Panel(
    title=N_("Multistage"),
    shown=has_experts,
    fields=(
        Field(key="model.model_kwargs.train_high_noise", label=N_("High Noise"), kind="flag"),
        Field(key="model.model_kwargs.train_low_noise", label=N_("Low Noise"), kind="flag"),
        Field(key="train.switch_boundary_every", label=N_("Switch Every"), kind="whole"),
    ),
)
TARGET = Panel(
    title=N_("Target"),
    fields=(
        Field(
            key="network.type",
            label=N_("Target Type"),
            kind="choice",
            options={"lora": "LoRA", "lokr": "LoKr", "dora": "DoRA"},
        ),
        Field(key="network.linear", label=N_("Linear Rank"), kind="whole", also=("network.linear_alpha",)),
        Field(
            key="network.conv",
            label=N_("Conv Rank"),
            kind="whole",
            also=("network.conv_alpha",),
            shown=has_convolutions,
        ),
        Field(
            key="network.lokr_factor",
            label=N_("LoKr Factor"),
            kind="choice",
            options={-1: N_("Auto"), 4: "4", 8: "8", 16: "16", 32: "32"},
            shown=has("network.type", "lokr"),
        ),
        Field(key="network.dropout", label=N_("Dropout"), kind="number"),
    ),
)
SAVE = Panel(
    title=N_("Save"),
    fields=(
        Field(
            key="save.dtype",
            label=N_("Data Type"),
            kind="choice",
            options={"bfloat16": "BF16", "float16": "FP16", "float32": "FP32"},
        ),
        Field(key="save.save_every", label=N_("Save Every"), kind="whole"),
        Field(key="save.max_step_saves_to_keep", label=N_("Max Step Saves to Keep"), kind="whole"),
        Field(
            key="save.lora_format",
            label=N_("Layer names"),
            kind="choice",
            options={
                name: name for name in SaveConfig.model_json_schema()["properties"]["lora_format"]["enum"]
            },
        ),
    ),
)
TRAINING = Panel(
    title=N_("Training"),
    fields=(
        Field(key="train.batch_size", label=N_("Batch Size"), kind="whole"),
        Field(key="train.gradient_accumulation", label=N_("Gradient Accumulation"), kind="whole"),
        Field(key="train.steps", label=N_("Steps"), kind="whole"),
        Field(
            key="train.gradient_checkpointing",
            label=N_("Gradient Checkpointing"),
            kind="choice",
            options={True: N_("On"), "auto": N_("Auto: fastest that fits"), False: N_("Off")},
        ),
        Field(
            key="train.optimizer",
            label=N_("Optimizer"),
            kind="choice",
            options={
                "adamw8bit": "AdamW8Bit",
                "adamw": "AdamW",
                "adam8bit": "Adam8Bit",
                "adam": "Adam",
                "adafactor": "Adafactor",
                "lion8bit": "Lion8Bit",
                "lion": "Lion",
                "prodigy": "Prodigy",
            },
        ),
        Field(key="train.lr", label=N_("Learning Rate"), kind="number"),
        Field(key="train.optimizer_params.weight_decay", label=N_("Weight Decay"), kind="number"),
        Field(
            key="train.lr_scheduler",
            label=N_("LR Scheduler"),
            kind="choice",
            options={name: name for name in LR_SCHEDULER.choices()},
        ),
        Field(
            key="train.timestep_type",
            label=N_("Timestep Type"),
            kind="choice",
            options={
                "sigmoid": N_("Sigmoid"),
                "linear": N_("Linear"),
                "shift": N_("Shift"),
                "weighted": N_("Weighted"),
                "lognorm_blend": N_("Log-normal blend"),
            },
        ),
        Field(
            key="train.content_or_style",
            label=N_("Timestep Bias"),
            kind="choice",
            options={"balanced": N_("Balanced"), "content": N_("High Noise"), "style": N_("Low Noise")},
        ),
        Field(
            key="train.loss_type",
            label=N_("Loss Type"),
            kind="choice",
            options={"mse": N_("Mean Squared Error"), "mae": N_("Mean Absolute Error")},
        ),
        Field(key="train.min_snr_gamma", label=N_("Min SNR Gamma"), kind="number", shown=has_schedule),
        Field(
            key="train.dtype",
            label=N_("Compute Data Type"),
            kind="choice",
            options={"bfloat16": "BF16", "float16": "FP16", "float32": "FP32"},
        ),
        Field(key="train.ema_config.use_ema", label=N_("Use EMA"), kind="flag"),
        Field(
            key="train.ema_config.ema_decay",
            label=N_("EMA Decay"),
            kind="number",
            shown=when("train.ema_config.use_ema"),
        ),
        Field(
            key="train.unload_text_encoder",
            label=N_("Unload TE"),
            kind="flag",
            clears=("train.cache_text_embeddings",),
        ),
        Field(
            key="train.cache_text_embeddings",
            label=N_("Cache Text Embeddings"),
            kind="flag",
            clears=("train.unload_text_encoder",),
        ),
        Field(key="train.bypass_guidance_embedding", label=N_("Bypass Guidance Embedding"), kind="flag"),
    ),
)
REGULARIZATION = Panel(
    title=N_("Regularization"),
    fields=(
        Field(
            key="train.diff_output_preservation",
            label=N_("Diff Output Preservation"),
            kind="flag",
            clears=("train.blank_prompt_preservation",),
        ),
        Field(
            key="train.diff_output_preservation_multiplier",
            label=N_("DOP Loss Multiplier"),
            kind="number",
            shown=when("train.diff_output_preservation"),
        ),
        Field(
            key="train.diff_output_preservation_class",
            label=N_("DOP Preservation Class"),
            shown=when("train.diff_output_preservation"),
        ),
        Field(
            key="train.blank_prompt_preservation",
            label=N_("Blank Prompt Preservation"),
            kind="flag",
            clears=("train.diff_output_preservation",),
        ),
        Field(
            key="train.blank_prompt_preservation_multiplier",
            label=N_("BPP Loss Multiplier"),
            kind="number",
            shown=when("train.blank_prompt_preservation"),
        ),
        Field(
            key="train.inverted_mask_prior",
            label=N_("Inverted Mask Prior"),
            kind="flag",
            shown=anywhere(*MASKS),
        ),
        Field(
            key="train.inverted_mask_prior_multiplier",
            label=N_("Inverted Mask Prior Multiplier"),
            kind="number",
            shown=both(anywhere(*MASKS), when("train.inverted_mask_prior")),
        ),
        Field(
            key="train.reg_weight",
            label=N_("Regularization Weight"),
            kind="number",
            shown=anywhere("is_reg"),
        ),
    ),
)
DATASET = Panel(
    title=N_("Dataset {number}"),
    fields=(
        Field(key="folder_path", label=N_("Target Dataset"), kind="folder"),
        Control(
            key="control_path", label=N_("Control Dataset 1"), kind="folder", place=0, shown=has_controls(1)
        ),
        Control(
            key="control_path", label=N_("Control Dataset 2"), kind="folder", place=1, shown=has_controls(2)
        ),
        Control(
            key="control_path", label=N_("Control Dataset 3"), kind="folder", place=2, shown=has_controls(3)
        ),
        Field(key="mask_path", label=N_("Mask Dataset"), kind="folder"),
        Field(key="inpaint_path", label=N_("Inpaint Dataset"), kind="folder", shown=has_holes),
        Field(
            key="mask_min_value",
            label=N_("Mask Min Value"),
            kind="number",
            shown=here(*MASKS),
        ),
        Field(key="network_weight", label=N_("LoRA Weight"), kind="number"),
        Field(key="num_repeats", label=N_("Num Repeats"), kind="whole"),
        Field(key="default_caption", label=N_("Default Caption")),
        Field(key="caption_dropout_rate", label=N_("Caption Dropout Rate"), kind="number"),
        Field(key="caption_ext", label=N_("Caption Extension")),
        Field(key="num_frames", label=N_("Num Frames"), kind="whole", shown=has_frames),
        Field(key="fps", label=N_("FPS"), kind="whole", shown=has_frames),
        Field(key="auto_frame_count", label=N_("Auto Frame Count"), kind="flag", shown=has_frames),
        Field(
            key="trim_auto_frame_count_tail",
            label=N_("Trim Tail"),
            kind="flag",
            shown=both(has_frames, here("auto_frame_count")),
        ),
        Field(
            key="shrink_video_to_frames", label=N_("Shrink Video to Frames"), kind="flag", shown=has_frames
        ),
        Field(key="do_i2v", label=N_("Do I2V"), kind="flag", shown=has_frames),
        Field(key="cache_latents_to_disk", label=N_("Cache Latents"), kind="flag"),
        Field(key="alpha_mask", label=N_("Alpha Mask"), kind="flag"),
        Field(key="invert_mask", label=N_("Invert Mask"), kind="flag", shown=here(*MASKS)),
        Field(key="is_reg", label=N_("Is Regularization"), kind="flag"),
        Field(
            key="prior_reg", label=N_("Prior Regularization"), kind="flag", shown=here("is_reg", "prior_reg")
        ),
        Field(key="flip_x", label=N_("Flip X"), kind="flag"),
        Field(key="flip_y", label=N_("Flip Y"), kind="flag"),
        Field(key="resolution", label=N_("Resolutions"), kind="resolutions"),
    ),
)
SAMPLE = Panel(
    title=N_("Sample"),
    fields=(
        Field(key="sample.sample_every", label=N_("Sample Every"), kind="whole"),
        Field(
            key="sample.sampler",
            label=N_("Sampler"),
            kind="choice",
            options={"flowmatch": "FlowMatch", "ddpm": "DDPM"},
        ),
        Field(key="sample.guidance_scale", label=N_("Guidance Scale"), kind="number"),
        Field(key="sample.sample_steps", label=N_("Sample Steps"), kind="whole"),
        Field(key="sample.width", label=N_("Width"), kind="whole"),
        Field(key="sample.height", label=N_("Height"), kind="whole"),
        Field(key="sample.num_frames", label=N_("Num Frames"), kind="whole", shown=has_frames),
        Field(key="sample.fps", label=N_("FPS"), kind="whole", shown=has_frames),
        Field(key="sample.seed", label=N_("Seed"), kind="whole"),
        Field(key="sample.walk_seed", label=N_("Walk Seed"), kind="flag"),
        Field(
            key="train.skip_first_sample",
            label=N_("Skip First Sample"),
            kind="flag",
            clears=("train.force_first_sample",),
        ),
        Field(
            key="train.force_first_sample",
            label=N_("Force First Sample"),
            kind="flag",
            clears=("train.skip_first_sample", "train.disable_sampling"),
        ),
        Field(
            key="train.disable_sampling",
            label=N_("Disable Sampling"),
            kind="flag",
            clears=("train.force_first_sample",),
        ),
        Field(key="plafond.tiled_previews", label=N_("Tiled Previews"), kind="flag"),
    ),
)
TRIGGER = Field(key="trigger_word", label=N_("Trigger Word"))
PROMPT_FIELDS = (
    Field(key="width", label=N_("Width"), kind="whole"),
    Field(key="height", label=N_("Height"), kind="whole"),
    Field(key="seed", label=N_("Seed"), kind="whole"),
    Field(key="network_multiplier", label=N_("LoRA Scale"), kind="number"),
)
"""What single previews may have otherwise than the others."""

PICTURES = (
    Field(key="ctrl_img", label=N_("Control Image"), kind="picture", shown=sees_one),
    *(
        Field(key=f"ctrl_img_{place}", label=label, kind="picture", shown=sees_control(place))
        for place, label in enumerate(
            (N_("Control Image 1"), N_("Control Image 2"), N_("Control Image 3")), 1
        )
    ),
)
"""What single previews are made from."""

PANELS = (MODEL, QUANTIZATION, MULTISTAGE, TARGET, SAVE, TRAINING, REGULARIZATION)
"""Those without lists, in their order, after the first, `Job`."""


def every_field() -> list[Field]:
    """All fields of the form."""
    panels = (*PANELS, DATASET, SAMPLE)
    return [TRIGGER, *(one for panel in panels for one in panel.fields), *PROMPT_FIELDS, *PICTURES]

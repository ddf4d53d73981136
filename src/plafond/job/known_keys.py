"""Keys that AI Toolkit acts on and plafond does not.

A job that sets one is accepted with a warning, unless the value is AI Toolkit's own default, which asks for
nothing (its page writes many of those). Where it helps, a reason or what to use instead is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plafond.language.said import N_


@dataclass(frozen=True)
class Known:
    """A key without effect here.

    Args:
        default: AI Toolkit's default, which asks for nothing.
        why: why it is not used, or what to use instead; marked for translation.
        switch: the key of the same section that turns this one on in AI Toolkit.
    """

    default: Any = None
    why: str = ""
    switch: str | None = None


def _off(*names: str) -> dict[str, Known]:
    return {name: Known(False) for name in names}


def _none(*names: str) -> dict[str, Known]:
    return {name: Known(None) for name in names}


PROCESS: Mapping[str, Known] = {
    "sqlite_db_path": Known("./aitk_db.db", N_("runs are recorded in their own folder")),
    "performance_log_every": Known(0, N_("every step's time is in metrics.jsonl")),
    "log_dir": Known(None, N_("the loss of every step is in metrics.jsonl")),
    "do_lorm": Known(False),
    "lorm_extract_mode": Known("ratio", switch="do_lorm"),
    "lorm_extract_mode_param": Known(0.25, switch="do_lorm"),
    "torch_profiler": Known(False),
    **_none("first_sample", "guidance", "slider", "embedding", "adapter", "decorator", "caption"),
}

NETWORK: Mapping[str, Known] = {
    "old_lokr_format": Known(False),
    "split_multistage_loras": Known(True),
    "all_layers": Known(False),
    "layer_offloading": Known(False, N_("use model.layer_offloading")),
    "lorm": Known(None),
}

NETWORK_KWARGS: Mapping[str, Known] = {
    "full_if_contains": Known([]),
    "parameter_threshold": Known(0),
    "rank_dropout": Known(None),
    "module_dropout": Known(None),
    **_off("attn_only", "full_train_in_out"),
    **_none("target_lin_modules", "target_conv_modules"),
}

SAVE: Mapping[str, Known] = {
    "push_to_hub": Known(False, N_("upload the saved file yourself")),
    "hf_repo_id": Known(None, switch="push_to_hub"),
    "hf_private": Known(False, switch="push_to_hub"),
}

LOGGING: Mapping[str, Known] = {
    "verbose": Known(False),
    "use_wandb": Known(False, N_("the loss of every step is in metrics.jsonl")),
    "project_name": Known("ai-toolkit", switch="use_wandb"),
    "run_name": Known(None, switch="use_wandb"),
    "use_ui_logger": Known(False, N_("the loss of every step is in metrics.jsonl")),
}

SAMPLE: Mapping[str, Known] = {
    "guidance_rescale": Known(0),
    "adapter_conditioning_scale": Known(1),
    "refiner_start_at": Known(0.5),
    "extra_values": Known([]),
    "do_cfg_norm": Known(False),
}

SAMPLE_ITEM: Mapping[str, Known] = {"do_cfg_norm": Known(False)}

DATASET: Mapping[str, Known] = {
    "bucket_tolerance": Known(64, N_("the model's own grid is used, as AI Toolkit does")),
    "augments": Known([]),
    "augmentations": Known(None),
    "replay_transforms": Known(True),
    "cache_latents_num_workers": Known(None),
    "num_controls_from_same_folder": Known(1),
    "controls": Known([], N_("make the control images first and give their folder as control_path")),
    "guidance_type": Known("targeted"),
    "extra_values": Known([]),
    "diff_output_preservation_class": Known("", switch="diff_output_preservation"),
    "poi": Known(None),
    **_off(
        *("random_scale", "shuffle_augmentations", "standardize_images", "debug"),
        *("cache_tensors_to_disk", "cache_clip_vision_to_disk", "load_image_when_caching_latents"),
        *("fast_image_size", "control_from_same_folder", "clip_image_from_same_folder"),
        *("diff_output_preservation", "do_audio", "audio_normalize", "audio_preserve_pitch"),
    ),
    **_none("unconditional_path", "clip_image_path", "clip_image_augmentations"),
}

EMA: Mapping[str, Known] = {"use_feedback": Known(False), "param_multiplier": Known(1)}

TRAIN: Mapping[str, Known] = {
    "text_encoder_lr": Known(None, N_("lr is used for everything that is trained")),
    "refiner_lr": Known(None, N_("lr is used for everything that is trained")),
    "embedding_lr": Known(None, N_("lr is used for everything that is trained")),
    "adapter_lr": Known(None, N_("lr is used for everything that is trained")),
    "train_refiner": Known(True),
    "next_sample_timesteps": Known(8),
    "content_or_style_reg": Known("balanced"),
    "num_train_timesteps": Known(1000),
    "loss_target": Known("noise"),
    "xformers": Known(False, N_("use attention_backend")),
    "sdp": Known(False, N_("use attention_backend")),
    "audio_loss_multiplier": Known(1),
    "validation_config": Known(None),
    "guidance_loss_target": Known(3.0, switch="do_guidance_loss"),
    "guidance_loss_schedule": Known("constant", switch="do_guidance_loss"),
    "unconditional_prompt": Known(""),
    "differential_guidance_scale": Known(3, switch="do_differential_guidance"),
    "cfg_scale": Known(1),
    "max_cfg_scale": Known(None),
    "cfg_rescale": Known(None),
    "noise_offset": Known(0),
    "noise_multiplier": Known(1),
    "target_noise_multiplier": Known(1),
    "random_noise_multiplier": Known(0),
    "random_noise_shift": Known(0),
    "img_multiplier": Known(1),
    "noisy_latent_multiplier": Known(1),
    "latent_multiplier": Known(1),
    "optimal_noise_pairing_samples": Known(1),
    "signal_correction_noise_scale": Known(1, switch="do_signal_correction_noise"),
    "batch_noise_correction_scale": Known(0.1, switch="do_batch_noise_correction"),
    "signal_amplification_strength": Known(0.5, switch="do_signal_amplification"),
    "correct_pred_norm_multiplier": Known(1, switch="correct_pred_norm"),
    "pred_scaler": Known(1),
    "target_norm_std_value": Known(1, switch="target_norm_std"),
    "latent_feature_loss_weight": Known(1),
    "diffusion_feature_extractor_weight": Known(1),
    "weight_jitter": Known(0),
    "prompt_dropout_prob": Known(0),
    "prompt_saturation_chance": Known(0),
    "max_negative_prompts": Known(1),
    "match_adapter_chance": Known(0, switch="match_adapter_assist"),
    "paramiter_swapping_factor": Known(0.1, switch="do_paramiter_swapping"),
    "merge_network_on_save_strength": Known(1, switch="merge_network_on_save"),
    **_off(
        *("linear_timesteps", "linear_timesteps2", "max_loss_debug"),
        *("do_prior_divergence", "do_guidance_loss"),
        *("do_guidance_loss_cfg_zero", "do_differential_guidance", "do_cfg", "do_random_cfg"),
        *("do_blank_stabilization", "dynamic_noise_offset", "force_consistent_noise", "blended_blur_noise"),
        *("do_signal_correction_noise", "do_batch_noise_correction", "do_signal_amplification"),
        *("adaptive_scaling_factor", "match_noise_norm", "standardize_images", "standardize_latents"),
        *("learnable_snr_gos", "correct_pred_norm", "target_norm_std", "do_fft_loss", "t0_loss_target"),
        *("free_u", "train_turbo", "show_turbo_outputs", "short_and_long_captions"),
        *("short_and_long_captions_encoder_split", "single_item_batching", "match_adapter_assist"),
        *("do_paramiter_swapping", "merge_network_on_save"),
    ),
    **_none(
        *("snr_gamma", "latent_feature_extractor_path", "diffusion_feature_extractor_path"),
        *("negative_prompt", "adapter_assist_name_or_path", "adapter_assist_type"),
    ),
}

MODEL: Mapping[str, Known] = {
    "dtype": Known(None, N_("train.dtype is used")),
    "model_paths": Known({}),
    "text_encoder_bits": Known(16, N_("use quantize_te and qtype_te")),
    "use_text_encoder_1": Known(True),
    "use_text_encoder_2": Known(True),
    "vae_device": Known(None, N_("plafond places the parts itself")),
    "vae_dtype": Known(None),
    "te_device": Known(None, N_("plafond places the parts itself")),
    "te_dtype": Known(None),
    "split_model_other_module_param_count_scale": Known(0.3),
    "compile_mode": Known("default"),
    "compile_dynamic": Known(True),
    "refiner_start_at": Known(0.5),
    **_off(
        *("attn_masking", "use_flux_cfg", "split_model_over_gpus", "compile", "block_compile"),
        *("compile_fullgraph", "in_context", "experimental_xl"),
    ),
    **_none(
        *("inference_lora_path", "unconditional_lora_path", "lora_path", "accuracy_recovery_adapter"),
        *("unet_path", "refiner_name_or_path", "cache_size_limit", "latent_space_version"),
        "unet_sample_size",
    ),
}

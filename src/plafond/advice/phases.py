"""Which phase a run was in at a place of its log: by the functions in a traceback, else by what was announced last."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from plafond.advice.log import Line, Log
from plafond.advice.traces import HEAD, frames_before, tag_of, traceback, tracebacks
from plafond.language.speech import catalogue, languages
from plafond.training.places import BY_PHASE

PHASES = ("load", "quantize", "encode_text", "cache_latents", "train", "preview", "save")

BEFORE = 100_000
"""Bytes before a message in which its traceback begins."""

AFTER_ERROR = 500
"""Bytes after an exception's name in which its message still goes on."""

NEAREST = 6
"""Tracebacks before a message that may be its own: several processes print at once."""

ANNOUNCED = {
    "load": (
        "running  1 process",
        "loading transformer",
        "loading checkpoint shards",
        "loading pipeline components",
        "loading weights",
        "loading model",
        "loading the model",
        "loading the transformer",
        "loading unet",
        "loading dit",
        "loading vae",
        "loading t5",
        "loading clip",
        "loading text encoder",
        "loading state dict",
        "load diffusers pretrained models",
        "building model",
        "building flux",
        "building u-net",
        "building t5",
        "building autoencoder",
        "load flux",
        "load vae",
        "files:   0%|",
        "prepare optimizer, data loader",
        "moving transformer to",
        "moving the transformer to",
        "prepare model",
    ),
    "quantize": ("quantizing", "quantising", "fp8 optimiz", "converting weights to fp8", "quantize_via"),
    "encode_text": (
        "caching text",
        "cache text encoder",
        "caching caption",
        "encoding captions",
        "encoding prompts",
        "encoding with t",
        "encoding with clip",
        "encoding with llm",
        "encoding with vlm",
        "encoding with qwen",
        "move text encoders to gpu",
        "computing null embed",
        "computing text embed",
        "embedding prompt",
        "text encoder output",
        "captions: 0/",
        "preview prompts: 0/",
        "cache_text_encoder_outputs.py",
    ),
    "cache_latents": (
        "caching latent",
        "cache latents",
        "cache_latents.py",
        "encoding latents",
        "encoding dataset [",
        "computing vae latents",
        "(vaecache)",
        "vae cache",
        "caching: ",
        "bucket caching",
        "caching results",
        "latents: 0/",
    ),
    "train": (
        "running training",
        "start training",
        "starting training",
        "training started",
        "begin training",
        "running training loop",
        "oom during training step",
        "the warm-up",
        "warming up on",
        "epoch 1/",
        "started new epoch",
    ),
    "preview": (
        "generating baseline sample",
        "generating sample",
        "generating image",
        "generating preview",
        "sampling prompts",
        "sampling:   0%|",
        "running validation",
        "validation prompt",
        "error during sampling",
        "decoding video",
        "previews: 0/",
    ),
    "save": (
        "saving at step",
        "creating backup",
        "saving checkpoint",
        "saving model",
        "saving state",
        "saving lora",
        "saving to ",
    ),
}
"""Lower-case beginnings of announcements in the logs of the trainers that are read."""

FRAMES = (
    (
        "preview",
        r"in (?:generate_images|generate_single_image|sample_images\w*|do_inference|run_validations?|"
        r"_?sample_loop|sample_image_inference|log_validation|__sample_during_training|decode_latents|sample)\b"
        r"|\bvalidation\.py|vae\.decode\(|modules/modelSampler|\\modelSampler",
    ),
    (
        "save",
        r"in (?:save_model|save_checkpoint|save_state|save_weights|save_lora|save_pretrained|save_file|"
        r"post_save_hook|save|_save_checkpoint|_consolidated_\w+|__save\w*)\b|modelSaver|serialize_file",
    ),
    (
        "train",
        r"in (?:hook_train_loop|train_single_accumulation|calculate_loss|predict_noise|train_batch|training_step|"
        r"process_batch|get_noise_pred_and_target|call_dit|model_predict|backward|_engine_run_backward|"
        r"_exec_forward_pass|_exec_backward_pass|step|train_step|micro_step|__train_step)\b"
        r"|accelerator\.backward|loss\.backward|optimizer\.step",
    ),
    (
        "quantize",
        r"in (?:quantize\w*|_quantize\w*|freeze|quanto_\w+|optimize_state_dict_with_fp8)\b|quantize_model\(",
    ),
    (
        "cache_latents",
        r"in (?:cache_latents\w*|cache_batch_latents\w*|encode_images\w*|_encode_images_in_batch|encode_datasets|"
        r"vae_encode|encode_by_vae|process_buckets|_cache_latents)\b|caching[\\/]vae|cache_latents\.py|vae\.encode\(|"
        r"EncodeVAE",
    ),
    (
        "encode_text",
        r"in (?:cache_text\w*|encode_prompts?|encode_text\w*|_encode_prompt\w*|get_text_embeds?|"
        r"compute_embeddings\w*|cache_caption\w*|_get_t5_prompt_embeds)\b|caching[\\/]text_embeds|"
        r"cache_text_encoder_outputs|Encode\w+Text\.py|modeling_\w+\.py\", line \d+, in forward",
    ),
    (
        "load",
        r"in (?:load_model|load_\w*model|from_pretrained|load_state_dict\w*|load_checkpoint\w*|load_file|"
        r"load_target_model|transformer_to|setup_train_device|prepare|prepare_model|prepare_unet\w*|init_\w*models?|"
        r"move_models|_load_(?!dll)\w+)\b|modelLoader|_ddp_init_helper|init_prepare_models",
    ),
)
"""Functions by phase, phases that call others first: a preview encodes text, a training step may encode pictures."""

_FRAME_SIGNS = tuple((phase, re.compile(pattern)) for phase, pattern in FRAMES)
_VALUE = re.compile(r"\\\{\w+\\\}")


@cache
def _places() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """How plafond's own messages name a place, in each language."""
    return tuple(
        (phase, re.compile(_VALUE.sub(r"\\S+", re.escape(catalogue(language).get(text, text)))))
        for phase, texts in BY_PHASE.items()
        for language in languages()
        for text in texts
    )


_OWN = re.compile(r"^plafond: |^\d{4}-\d\d-\d\d [\d:]{8} OutOfMemoryError: ")


@dataclass(frozen=True, slots=True)
class Where:
    """The phase at a place of a log.

    Args:
        phase: one of `PHASES`.
        line: what it rests on.
        by_frame: a function in a traceback said so.
    """

    phase: str
    line: Line
    by_frame: bool


def where(log: Log, offset: int, trained: int | None) -> Where | None:
    """The phase at a byte of the log.

    Args:
        log: the log.
        offset: where the failure stands.
        trained: where the newest state of the training bar before it stands.
    """
    own = log.line(offset)
    if _OWN.match(own.text):
        for phase, pattern in _places():
            if pattern.search(own.text):
                return Where(phase, own, True)
    return _by_frame(log, offset) or _announced(log, offset, trained)


def _by_frame(log: Log, offset: int) -> Where | None:
    frames = _trace(log, log.line(offset))
    for phase, pattern in _FRAME_SIGNS:
        for start, text in reversed(frames):
            if pattern.search(text):
                return Where(phase, log.line(start), True)
    return None


def _trace(log: Log, line: Line) -> tuple[tuple[int, str], ...]:
    """The frames of the traceback that ends in a message, or that follows it at once."""
    tag = tag_of(line.text)
    for trace in tracebacks(log, line.start, NEAREST):
        if trace.tag != tag or line.start - trace.start > BEFORE:
            continue
        if trace.error is None or line.start <= trace.error.start + AFTER_ERROR:
            return tuple(frame for frame in trace.lines if frame[0] < line.start)
        break
    cut = frames_before(log, line)
    if cut:
        return cut
    after = log.part(line.start, line.start + 3000).find(HEAD)
    return () if after < 0 else traceback(log, line.start + after).lines


def _announced(log: Log, offset: int, trained: int | None) -> Where | None:
    best, phase = -1, None
    for name, sentences in ANNOUNCED.items():
        for sentence in sentences:
            place = log.last(sentence.encode(), offset)
            if place > best:
                best, phase = place, name
    if trained is not None and trained > best:
        return Where("train", log.line(trained), False)
    if phase is None:
        return None
    return Where(phase, log.line(best), False)

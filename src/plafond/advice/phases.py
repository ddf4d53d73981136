"""Which phase a run was in at a place of its log: by the functions in a traceback, else by what was announced last."""

from __future__ import annotations

import re
from dataclasses import dataclass

from plafond.advice.log import Line, Log

PHASES = ("load", "quantize", "encode_text", "cache_latents", "train", "preview", "save")

BEFORE = 30_000
AFTER = 30_000
"""Bytes around a message in which its traceback stands: some trainers print the message first."""

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
        "moving transformer to",
        "prepare model",
    ),
    "quantize": ("quantizing", "quantising", "fp8 optimiz", "converting weights to fp8", "quantize_via"),
    "encode_text": (
        "caching text",
        "cache text encoder",
        "caching caption",
        "encoding captions",
        "encoding prompts",
        "computing text embed",
        "embedding prompt",
        "text encoder output",
        "captions 0/",
        "cache_text_encoder_outputs.py",
    ),
    "cache_latents": (
        "caching latent",
        "cache latents",
        "cache_latents.py",
        "encoding latents",
        "(vaecache)",
        "vae cache",
        "caching: ",
        "bucket caching",
        "caching results",
        "latents 0/",
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
        "epoch 1/",
        "started new epoch",
    ),
    "preview": (
        "generating baseline sample",
        "generating sample",
        "generating image",
        "generating preview",
        "sampling prompts",
        "running validation",
        "validation prompt",
        "error during sampling",
        "decoding video",
        "previews 0/",
    ),
    "save": (
        "saving at step",
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
        r"vae_encode|process_buckets|_cache_latents)\b|caching/vae|cache_latents\.py|vae\.encode\(",
    ),
    (
        "encode_text",
        r"in (?:cache_text\w*|encode_prompts?|encode_text\w*|_encode_prompt\w*|get_text_embeds?|"
        r"compute_embeddings\w*|cache_caption\w*|_get_t5_prompt_embeds)\b|caching/text_embeds|"
        r"cache_text_encoder_outputs",
    ),
    (
        "load",
        r"in (?:load_model|load_\w*model|from_pretrained|load_state_dict\w*|load_checkpoint\w*|load_file|"
        r"load_target_model|transformer_to|setup_train_device|prepare|prepare_model|_load_\w+)\b|modelLoader",
    ),
)
"""Functions by phase, phases that call others first: a preview encodes text, a training step may encode pictures."""

_FRAME_SIGNS = tuple((phase, re.compile(pattern)) for phase, pattern in FRAMES)
_TRACE_LINE = re.compile(r"File \"|❱|│|in <module>|^\s+\w|^\s*\[?rank\d")

PLACES = {
    "train": r"in (?:train|the warm-up)\b|training a batch|on a batch of \d|sur un lot de \d",
    "preview": r"preview",
    "save": r"in save\b",
    "encode_text": r"caption|encode text|in encode_text\b",
    "cache_latents": r"latents",
    "load": r"in load\b|the model is loaded",
}
"""How plafond's own messages name a place."""


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
    if own.text.startswith("plafond: "):
        for phase, pattern in PLACES.items():
            if re.search(pattern, own.text):
                return Where(phase, own, True)
    return _by_frame(log, offset) or _announced(log, offset, trained)


def _by_frame(log: Log, offset: int) -> Where | None:
    start, end = _trace(log, offset)
    if start < 0:
        return None
    text = log.around(start, 0, end - start)
    for phase, pattern in _FRAME_SIGNS:
        found = list(pattern.finditer(text))
        if found:
            place = max(0, log.part(start, end).find(found[-1][0].lower().encode()))
            return Where(phase, log.line(start + place), True)
    return None


def _trace(log: Log, offset: int) -> tuple[int, int]:
    """The traceback that ends in the message, or that follows it at once."""
    head = b"traceback (most recent call last)"
    line = log.line(offset)
    begin = max(0, offset - BEFORE)
    before = log.part(begin, offset).rfind(head)
    if before >= 0 and _unbroken(log, begin + before, line.start):
        return begin + before, offset
    after = log.part(offset, offset + 3000).find(head)
    if after < 0:
        return -1, -1
    rest = log.part(offset + after, offset + after + AFTER)
    again = rest.find(line.text.strip().lower().encode()[-60:])
    return offset + after, offset + after + (again if again >= 0 else len(rest))


def _unbroken(log: Log, start: int, end: int) -> bool:
    """Whether everything from a traceback's head to its message belongs to it: frames are indented or framed."""
    for raw in log.part(start, end).split(b"\n")[1:-1]:
        text = raw.lstrip(b"\x1b[0123456789;m")
        if (
            text
            and not text.startswith(
                (b" ", b"\t", b"file ", "│".encode(), "╭".encode(), "❱".encode(), b"rank", b"traceback")
            )
            and not re.match(rb"\[?rank\d|\d{4}-\d\d|\S*:\s+(?:file|traceback|\s)", text)
        ):
            return False
    return True


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

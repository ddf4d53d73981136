"""Settings that contradict each other."""

from __future__ import annotations

from plafond.job.archs import TEXT_ENCODER_SEES_IMAGES
from plafond.job.document import KeyPath
from plafond.job.schema import ProcessConfig
from plafond.job.section import EXPECTED
from plafond.job.source import Source
from plafond.job.wording import shown
from plafond.language.said import N_, Said

PRIOR = ("diff_output_preservation", "blank_prompt_preservation", "inverted_mask_prior")
"""Keys of ``train`` that ask the model without its adapter."""


def contradictions(process: ProcessConfig, path: KeyPath, source: Source) -> None:
    """Note settings that AI Toolkit refuses to combine, among those that plafond has."""
    train, model = process.train, process.model
    if train.train_text_encoder:
        for key in ("cache_text_embeddings", "unload_text_encoder"):
            if getattr(train, key):
                source.problem(
                    (*path, "train", "train_text_encoder"),
                    N_("the text encoder cannot be trained with {key}: true, which removes it"),
                    key=key,
                )
    cached = [dataset.cache_text_embeddings for dataset in process.datasets]
    if any(cached) and not all(cached):
        source.problem(
            (*path, "datasets", cached.index(True), "cache_text_embeddings"),
            N_(
                "expected all datasets or none to cache text embeddings; set train.cache_text_embeddings instead"
            ),
        )
    if (
        train.unload_text_encoder
        and not train.cache_text_embeddings
        and model.arch in TEXT_ENCODER_SEES_IMAGES
    ):
        source.problem(
            (*path, "train", "unload_text_encoder"),
            N_("the text encoder of {arch} reads the control images; use cache_text_embeddings instead"),
            arch=model.arch,
        )
    if "|" in model.qtype and model.assistant_lora_path is not None:
        source.problem(
            (*path, "model", "assistant_lora_path"),
            N_("an assistant LoRA cannot be combined with the accuracy recovery adapter in qtype"),
        )
    if train.diff_output_preservation and train.blank_prompt_preservation:
        source.problem(
            (*path, "train", "blank_prompt_preservation"),
            N_("cannot be combined with diff_output_preservation: expected one of the two"),
        )
    triggers = (process.trigger_word, *(dataset.trigger_word for dataset in process.datasets))
    if train.diff_output_preservation and not any(triggers):
        source.problem(
            (*path, "train", "diff_output_preservation"),
            N_("expected a trigger_word, in whose place diff_output_preservation_class is put"),
        )
    if process.network is None:
        asked = [key for key in PRIOR if getattr(train, key)]
        places: list[KeyPath] = [(*path, "train", key) for key in asked]
        places += [
            (*path, "datasets", index, "prior_reg")
            for index, dataset in enumerate(process.datasets)
            if dataset.prior_reg
        ]
        for place in places:
            source.problem(
                place,
                N_(
                    "compares with the model without its adapter, and a job without a network trains the model itself"
                ),
            )
    exclude = model.quantize_kwargs.get("exclude", [])
    if not (isinstance(exclude, list) and all(isinstance(pattern, str) for pattern in exclude)):
        source.problem(
            (*path, "model", "quantize_kwargs", "exclude"),
            EXPECTED,
            expected=Said(N_("a list of texts")),
            found=shown(exclude),
        )
    if model.weight_format and process.network is None:
        source.problem(
            (*path, "model", "quantize"),
            N_(
                "quantised weights are frozen, and a job without a network trains all of them;"
                " set quantize: false, or add a network section"
            ),
        )
    if train.min_denoising_steps > train.max_denoising_steps:
        source.problem(
            (*path, "train", "min_denoising_steps"),
            N_("expected at most max_denoising_steps ({most}), found {found}"),
            most=train.max_denoising_steps,
            found=train.min_denoising_steps,
        )

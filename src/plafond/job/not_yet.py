"""Settings that plafond reads and checks but does not act on yet; each one that a job uses gives a warning.

A line goes when the trainer learns what it says.
"""

from __future__ import annotations

from collections.abc import Iterator

from plafond.families import families
from plafond.job.document import KeyPath
from plafond.job.model import ModelConfig
from plafond.job.qtypes import NEAREST, format_of
from plafond.job.schema import ProcessConfig
from plafond.job.section import Section
from plafond.job.source import Source
from plafond.job.wording import hinted, nearest
from plafond.language.said import N_, Said

NOT_YET = N_("known to AI Toolkit, not used by plafond yet")

CONSEQUENCES: dict[str, dict[str, str]] = {
    "model": {
        "te_name_or_path": N_("the text encoder comes from the model"),
        "vae_path": N_("the VAE comes from the model"),
    },
    "train": {
        "train_text_encoder": N_("only the denoising model is trained"),
        "attention_backend": N_("torch chooses the attention kernel"),
        "start_step": N_("the step is counted from the saved state"),
    },
}


def not_yet(process: ProcessConfig, path: KeyPath, source: Source) -> None:
    """Warn of every such setting that stands in the file with another value than its default."""
    for name, section, place in _sections(process, path):
        for key, consequence in CONSEQUENCES[name].items():
            stands = (*place, key) in source.lines or (*place, key) in source.overrides
            if stands and getattr(section, key) != type(section).model_fields[key].get_default():
                unused = N_("known to AI Toolkit, not used by plafond yet; {why}")
                source.warn((*place, key), unused, why=Said(consequence))
    _elsewhere(process, path, source)
    _formats(process.model, (*path, "model"), source)
    _options(process.model, (*path, "model", "model_kwargs"), source)


def _elsewhere(process: ProcessConfig, path: KeyPath, source: Source) -> None:
    """Warn of settings that mean something for other architectures only."""
    family = next((each for each in families() if process.model.arch in each.archs), None)
    if family is None:
        return
    arch = process.model.arch
    if process.network and process.network.conv and not family.conv_blocks:
        no_convolutions = N_("not used by plafond for {arch}, whose blocks have no convolutions")
        source.warn((*path, "network", "conv"), no_convolutions, arch=arch)
    if process.train.min_snr_gamma and family.flow:
        no_schedule = N_("not used by plafond for {arch}, which has no noise schedule")
        source.warn((*path, "train", "min_snr_gamma"), no_schedule, arch=arch)


def _options(model: ModelConfig, path: KeyPath, source: Source) -> None:
    """Warn of options of the architecture that its family does not act on."""
    family = next((each for each in families() if model.arch in each.archs), None)
    if family is None:
        if model.model_kwargs:
            source.warn(path, NOT_YET)
        return
    known = family.model_options
    for key in model.model_kwargs:
        if key in known:
            continue
        unused = Said(N_("not used by plafond for the architecture {arch}"), {"arch": model.arch})
        source.warn((*path, key), hinted(unused, nearest(str(key), known)))


def _formats(model: ModelConfig, path: KeyPath, source: Source) -> None:
    """Warn of number formats that another one takes the place of, and of adapters that recover accuracy."""
    for flag, key in (("quantize", "qtype"), ("quantize_te", "qtype_te")):
        name, _, adapter = (part.strip() for part in getattr(model, key).partition("|"))
        if not getattr(model, flag):
            continue
        if name in NEAREST:
            source.warn(
                (*path, key),
                N_(
                    "{name} is a number format of AI Toolkit that plafond does not have; the weights are stored as"
                    " {here}, which has the same width"
                ),
                name=name,
                here=NEAREST[name],
            )
        if adapter:
            source.warn(
                (*path, key),
                N_(
                    "the accuracy recovery adapter is known to AI Toolkit, not used by plafond yet; the weights are"
                    " stored as {format} without it"
                ),
                format=str(format_of(name)),
            )
    for key in model.quantize_kwargs.keys() - {"exclude"}:
        source.warn((*path, "quantize_kwargs", key), N_("plafond reads only exclude here"))


def _sections(process: ProcessConfig, path: KeyPath) -> Iterator[tuple[str, Section, KeyPath]]:
    yield "model", process.model, (*path, "model")
    yield "train", process.train, (*path, "train")

"""Settings that plafond reads and checks but does not act on yet; each one that a job uses gives a warning.

A line goes when the trainer learns what it says.
"""

from __future__ import annotations

from collections.abc import Iterator

from plafond.job.document import KeyPath
from plafond.job.schema import ProcessConfig
from plafond.job.section import Section
from plafond.job.source import Source

NOT_YET = "known to AI Toolkit, not used by plafond yet"

CONSEQUENCES: dict[str, dict[str, str]] = {
    "model": {
        "quantize": "the weights stay in train.dtype",
        "qtype": "the weights stay in train.dtype",
        "quantize_te": "the text encoder stays in train.dtype",
        "qtype_te": "the text encoder stays in train.dtype",
        "quantize_kwargs": "nothing is quantised",
        "low_vram": "one part is on the device at a time in any case",
        "layer_offloading": "all layers stay on the device",
        "assistant_lora_path": "training runs without the assistant",
        "te_name_or_path": "the text encoder comes from the model",
        "vae_path": "the VAE comes from the model",
        "model_kwargs": "",
    },
    "train": {
        "train_text_encoder": "only the denoising model is trained",
        "attention_backend": "torch chooses the attention kernel",
        "start_step": "the step is counted from the saved state",
        "switch_boundary_every": "",
    },
    "datasets": {
        "control_path": "training runs without control images",
        "mask_path": "the whole picture counts",
        "alpha_mask": "the whole picture counts",
        "invert_mask": "the whole picture counts",
        "num_frames": "pictures only",
        "auto_frame_count": "pictures only",
        "do_i2v": "pictures only",
    },
    "sample": {"num_frames": "previews are pictures"},
    "samples": {
        "ctrl_img": "previews are made without control images",
        "ctrl_img_1": "previews are made without control images",
        "ctrl_img_2": "previews are made without control images",
        "ctrl_img_3": "previews are made without control images",
    },
}


def not_yet(process: ProcessConfig, path: KeyPath, source: Source) -> None:
    """Warn of every such setting that stands in the file with another value than its default."""
    for name, section, place in _sections(process, path):
        for key, consequence in CONSEQUENCES[name].items():
            stands = (*place, key) in source.lines or (*place, key) in source.overrides
            if stands and getattr(section, key) != type(section).model_fields[key].get_default():
                source.warn((*place, key), f"{NOT_YET}; {consequence}" if consequence else NOT_YET)


def _sections(process: ProcessConfig, path: KeyPath) -> Iterator[tuple[str, Section, KeyPath]]:
    yield "model", process.model, (*path, "model")
    yield "train", process.train, (*path, "train")
    for index, dataset in enumerate(process.datasets):
        yield "datasets", dataset, (*path, "datasets", index)
    yield "sample", process.sample, (*path, "sample")
    # all previews of a job use the same keys: one warning is enough
    for index, item in enumerate(process.sample.samples[:1]):
        yield "samples", item, (*path, "sample", "samples", index)

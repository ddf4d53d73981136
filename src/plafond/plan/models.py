"""What each published model takes: its weights by number format, and the smallest card that trains a LoRA on it.

The LoRA has rank 16 on all layers that AI Toolkit gives one, batches of one, every block recomputed, text embeddings
made before training and an 8-bit optimizer; one preview of the trained size is drawn. Models of clips are trained at
480p on 41 frames, models with control images with one of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

from plafond.data.buckets import Bucket
from plafond.families import families
from plafond.families._contract import BaseModel, Family
from plafond.job.archs import ALIASES
from plafond.job.dataset import DatasetConfig
from plafond.job.model import ModelConfig
from plafond.job.network import NetworkConfig
from plafond.job.sample import SampleConfig, SampleItem
from plafond.job.schema import ProcessConfig
from plafond.job.train import TrainConfig
from plafond.memory.gpus import Ceiling, Gpu, context_overhead, display_reserve, gpus
from plafond.plan.forecast import Forecaster, margin
from plafond.plan.shapes import Shapes
from plafond.plan.summaries import kept_json
from plafond.plan.terminal import no_ceiling

TABLE = "models.json"

RANK = 16
SIDES = (512, 768, 1024)
CLIP = Bucket(832, 480, 41)
FORMATS = {"bf16": None, "float8": "float8", "uint4": "uint4"}
"""Names of number formats by how a job says them."""
CARDS = ("bf16", "uint4")
"""The formats for which cards are looked for."""
CAPABILITY = (8, 0)
"""The first generation of cards that computes in bfloat16."""
PHASES = ("cache_latents", "encode_text", "load", "train", "preview")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A LoRA on one size: the most that it takes, in which phase."""

    weights: str
    bucket: Bucket
    peak_bytes: int
    phase: str

    @property
    def card(self) -> Gpu | None:
        """The smallest card that has it; None for none."""
        return smallest_card(self.peak_bytes)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A published model."""

    family: Family
    base: BaseModel
    vae: str
    weights_bytes: dict[str, int]
    fits: tuple[Fit, ...]


def published() -> list[tuple[Family, BaseModel]]:
    """Every model that is known, by family."""
    return [(family, base) for family in families() for base in family.base_models]


def entries(
    wanted: list[tuple[Family, BaseModel]], step: Callable[[str, int, int], None] | None = None
) -> Iterator[Entry]:
    """Each of the models with what it takes, from the table that comes with plafond, or planned where it has no row.

    Args:
        wanted: some of `published`.
        step: told what is looked at, and how far it is.
    """
    rows = table()
    for place, (family, base) in enumerate(wanted):
        if step:
            step(base.title, place, len(wanted))
        name = identity(family, base)
        row = rows.get(name) or kept_json({"model": name}, partial(planned, family, base), dict)
        yield Entry(
            family=family,
            base=base,
            vae=_vae(family, base),
            weights_bytes=row["weights_bytes"],
            fits=tuple(_read(fit) for fit in row["lora"]),
        )


def as_json(entry: Entry) -> dict[str, Any]:
    """A model as ``--json`` and the REST API give it."""
    base = entry.base
    return {
        "family": entry.family.name,
        "arch": base.arch,
        "title": base.title,
        "repo": base.repo,
        "transformer_parameters": base.transformer_parameters,
        "text_encoders": base.text_encoders,
        "vae": entry.vae,
        "licence": base.licence,
        "weights_bytes": entry.weights_bytes,
        "lora": [
            {
                "weights": fit.weights,
                "width": fit.bucket.width,
                "height": fit.bucket.height,
                "frames": fit.bucket.frames,
                "peak_bytes": fit.peak_bytes,
                "peak_phase": fit.phase,
                "card": None if fit.card is None else fit.card.name,
                "card_gb": None if fit.card is None else fit.card.marketed_gb,
            }
            for fit in entry.fits
        ],
    }


def table() -> dict[str, dict[str, Any]]:
    """The rows that come with plafond, by `identity`; `bench/models.py` makes them."""
    rows: dict[str, dict[str, Any]] = json.loads(
        (files("plafond.assets") / TABLE).read_text(encoding="utf-8")
    )
    return rows


def identity(family: Family, base: BaseModel) -> str:
    """What a row depends on beside plafond's source; models of one configuration share it."""
    source = family.locate(ModelConfig(name_or_path=base.repo, arch=base.arch))
    parts = [family.denoiser, "vae", *(part for part in family.text_parts if part.startswith("text"))]
    sizes = [str(bucket) for bucket in _sizes(family)]
    told = [[source.config(part) for part in parts], sizes, RANK, FORMATS, CARDS]
    return f"{family.name} {hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]}"


def planned(family: Family, base: BaseModel) -> dict[str, Any]:
    """A row of the table, by dry runs; half a minute and more."""
    return {"weights_bytes": _weights(family, base), "lora": list(_fits(family, base))}


def _read(fit: dict[str, Any]) -> Fit:
    bucket = Bucket(fit["width"], fit["height"], fit["frames"])
    return Fit(weights=fit["weights"], bucket=bucket, peak_bytes=fit["peak_bytes"], phase=fit["peak_phase"])


def _vae(family: Family, base: BaseModel) -> str:
    """The autoencoder's class and how many channels its latents have."""
    config = family.locate(ModelConfig(name_or_path=base.repo, arch=base.arch)).config("vae")
    channels = config.get("latent_channels", config.get("z_dim"))
    return f"{config['_class_name']}, {channels} channels"


def sizes_of(entry: Entry) -> list[list[Fit]]:
    """The fits of a model by size, each with one for every format of `CARDS`."""
    known = {(fit.weights, fit.bucket): fit for fit in entry.fits}
    return [
        [known[form, bucket] for form in CARDS] for bucket in dict.fromkeys(fit.bucket for fit in entry.fits)
    ]


def _process(family: Family, base: BaseModel, weights: str, bucket: Bucket) -> ProcessConfig:
    form = FORMATS[weights]
    quantised: dict[str, Any] = {"quantize": form is not None, "quantize_te": form is not None}
    if form is not None:
        quantised["qtype"] = form
    seen = family.controls > 0
    data = DatasetConfig(
        folder_path=".",
        resolution=(bucket.width,),
        num_frames=bucket.frames,
        control_path=(".",) if seen else (),
        do_i2v=bucket.frames > 1,
    )
    item = SampleItem(
        width=bucket.width,
        height=bucket.height,
        num_frames=bucket.frames,
        guidance_scale=4.0,
        ctrl_img="control.png" if seen or family.opens else None,
    )
    return ProcessConfig(
        type="sd_trainer",
        model=ModelConfig(name_or_path=base.repo, arch=base.arch.partition(":")[0], **quantised),
        network=NetworkConfig(linear=RANK, linear_alpha=RANK),
        datasets=(data,),
        train=TrainConfig(dtype="bfloat16", optimizer="adamw8bit", cache_text_embeddings=True),
        sample=SampleConfig(samples=(item,)),
    )


def _sizes(family: Family) -> list[Bucket]:
    frames = family.frames(CLIP.frames)
    return [CLIP] if frames > 1 else [Bucket(side, side) for side in SIDES]


def _fits(family: Family, base: BaseModel) -> Iterator[dict[str, Any]]:
    for weights in CARDS:
        for bucket in _sizes(family):
            process = _resolved(_process(family, base, weights, bucket))
            forecaster = Forecaster(process, no_ceiling(virtual=False))
            peak = forecaster.plan(Shapes(batches={bucket: 1}, mixed=False), only=PHASES).peak
            yield {
                "weights": weights,
                "width": bucket.width,
                "height": bucket.height,
                "frames": bucket.frames,
                "peak_bytes": peak.device_bytes,
                "peak_phase": peak.phase,
            }


def _resolved(process: ProcessConfig) -> ProcessConfig:
    """With an architecture as a job that is read has it."""
    arch = ALIASES.get(process.model.arch, process.model.arch)
    return process.model_copy(update={"model": process.model.model_copy(update={"arch": arch})})


def smallest_card(peak_bytes: int) -> Gpu | None:
    """The card of the catalogue with the least memory that has so many bytes to spare, beside its desktop's."""
    cards = [gpu for gpu in gpus() if gpu.compute_capability and gpu.compute_capability >= CAPABILITY]
    for gpu in sorted(cards, key=lambda gpu: (gpu.marketed_gb, gpu.usable_bytes)):
        room = gpu.usable_bytes - display_reserve(gpu)
        ceiling = Ceiling(room, context_overhead(), no_ceiling(virtual=False).description, gpu)
        if peak_bytes + margin(ceiling, virtual=False) <= room:
            return gpu
    return None


def _weights(family: Family, base: BaseModel) -> dict[str, int]:
    """Bytes of the denoising model's weights in each format."""
    from plafond.memory.dryrun import META, Rehearsal
    from plafond.memory.kernels import Target
    from plafond.training.base import quantize_transformer

    found = {}
    for weights in FORMATS:
        process = _resolved(_process(family, base, weights, _sizes(family)[0]))
        source = family.locate(process.model)
        rehearsal = Rehearsal(process, family, source, Target("cuda", CAPABILITY))
        model = rehearsal.build(partial(family.build_transformer, rehearsal.config))
        quantize_transformer(model, family, process.model, META)
        held = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        found[weights] = sum(tensor.numel() * tensor.element_size() for tensor in held.values())
    return found

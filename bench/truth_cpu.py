"""Predicted memory against torch's profiler of the CPU allocator, which shares no code with the ledger.

Each configuration is run twice: as a dry run on ``meta``, and for real on the CPU inside ``torch.profiler``
(`plafond.memory.profiled`). What a kernel of the CPU takes inside itself is left out of the comparison and shown in a
column of its own.

    python bench/truth_cpu.py [--markdown table.md] [--only TEXT]

The error is given on the total and on the activations: what is there beyond weights, LoRA, gradients and optimizer.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from plafond.data.buckets import Bucket
from plafond.families import family_for
from plafond.job.dataset import DatasetConfig
from plafond.job.model import ModelConfig
from plafond.job.network import NetworkConfig
from plafond.job.sample import SampleItem
from plafond.job.schema import PlafondConfig, ProcessConfig
from plafond.job.train import EmaConfig, TrainConfig
from plafond.memory.dryrun import Rehearsal
from plafond.memory.kernels import Target
from plafond.memory.profiled import Measured, mark, measure
from plafond.memory.real import Real, Silent
from plafond.memory.trace import Peak
from plafond.model.checkpoint import Altered, Source

MIB = 1024**2
CPU = torch.device("cpu")

FLUX = family_for("flux")
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "num_layers": 2,
        "num_single_layers": 4,
        "num_attention_heads": 4,
        "attention_head_dim": 32,
        "axes_dims_rope": [8, 12, 12],
    },
    "middle": {},
}
"""What a transformer has beyond the family's miniature."""


@dataclass(frozen=True)
class Case:
    """One configuration and one phase of it."""

    model: str = "tiny"
    phase: str = "train"
    checkpointing: bool = True
    dtype: str = "float32"
    batch: int = 1
    side: tuple[int, int] = (256, 256)
    accumulation: int = 1
    optimizer: str = "adamw"
    ema: bool = False
    live: bool = False
    rank: int = 8
    qtype: str = ""
    levels: str = ""
    streamed: float = 0
    tiled: bool = False
    plain: bool = False

    def __str__(self) -> str:
        parts = [self.model, self.phase, f"{self.side[0]}x{self.side[1]}"]
        if self.phase == "train":
            kept = "checkpointing" if self.checkpointing else "no checkpointing"
            parts += [f"batch {self.batch}", f"blocks keep: {self.levels}" if self.levels else kept]
            parts += [f"accumulation {self.accumulation}"] if self.accumulation > 1 else []
            parts += [self.optimizer]
        parts += ["average"] if self.ema else []
        parts += ["live text"] if self.live else []
        parts += [self.qtype] if self.qtype else []
        parts += [f"{self.streamed:.0%} streamed"] if self.streamed else []
        parts += ["tiled"] if self.tiled else []
        parts += ["as AI Toolkit"] if self.plain else []
        return ", ".join([*parts, self.dtype])

    @property
    def process(self) -> ProcessConfig:
        """The job."""
        return ProcessConfig(
            type="sd_trainer",
            model=ModelConfig(
                name_or_path="x",
                arch="flux",
                quantize=bool(self.qtype),
                qtype=self.qtype or "qfloat8",
                layer_offloading=self.streamed > 0,
                layer_offloading_transformer_percent=self.streamed or 1.0,
            ),
            plafond=PlafondConfig(activation_plan=self.levels or None, tiled_previews=self.tiled),
            network=NetworkConfig(type="lora", linear=self.rank, linear_alpha=self.rank),
            datasets=(DatasetConfig(folder_path="."),),
            train=TrainConfig(
                batch_size=self.batch,
                gradient_accumulation=self.accumulation,
                gradient_checkpointing=self.checkpointing,
                optimizer=self.optimizer,
                dtype=self.dtype,
                cache_text_embeddings=not self.live,
                ema_config=EmaConfig(use_ema=self.ema),
                lr=1e-4,
            ),
        )

    @property
    def source(self) -> Source:
        """Where its configurations are."""
        transformer = {**FLUX.miniature["transformer"], **SIZES[self.model]}
        return Altered(repo=FLUX.base_models[0].repo, changes={**FLUX.miniature, "transformer": transformer})


def cases() -> Iterator[Case]:
    """At least 40 configurations."""
    for model, side in (
        ("tiny", (256, 256)),
        ("tiny", (512, 384)),
        ("middle", (256, 256)),
        ("middle", (384, 320)),
    ):
        for checkpointing, dtype, batch in itertools.product(
            (True, False), ("float32", "bfloat16"), (1, 2, 4)
        ):
            yield Case(model=model, side=side, checkpointing=checkpointing, dtype=dtype, batch=batch)
    for optimizer in ("adam", "adamw8bit", "lion", "adafactor", "prodigy"):
        yield Case(model="middle", optimizer=optimizer, rank=16)
    for checkpointing in (True, False):
        yield Case(model="tiny", accumulation=3, checkpointing=checkpointing)
        yield Case(model="middle", ema=True, checkpointing=checkpointing, live=True)
    for qtype, checkpointing in itertools.product(("float8", "int8", "nf4", "uint4"), (True, False)):
        yield Case(model="middle", checkpointing=checkpointing, qtype=qtype, dtype="bfloat16")
        yield Case(model="tiny", checkpointing=checkpointing, qtype=qtype, batch=2)
    yield Case(model="middle", phase="preview", qtype="uint3", dtype="bfloat16")
    for levels, dtype in itertools.product(
        ("attention", "selective 500", "selective 5000", "offload"), ("float32", "bfloat16")
    ):
        yield Case(model="middle", levels=levels, dtype=dtype, batch=2)
    for streamed, dtype in itertools.product((1.0, 0.5), ("float32", "bfloat16")):
        yield Case(model="middle", streamed=streamed, dtype=dtype)
        yield Case(model="middle", streamed=streamed, dtype=dtype, levels="offload", qtype="int8")
        yield Case(model="middle", phase="preview", streamed=streamed, dtype=dtype)
    yield Case(model="tiny", phase="preview", tiled=True, side=(1024, 768))
    for checkpointing, dtype in itertools.product((True, False), ("float32", "bfloat16")):
        yield Case(model="middle", checkpointing=checkpointing, dtype=dtype, plain=True)
    for dtype in ("float32", "bfloat16"):
        yield Case(phase="encode_text", dtype=dtype)
        yield Case(phase="cache_latents", dtype=dtype, side=(512, 512))
        yield Case(phase="cache_latents", dtype=dtype, side=(384, 640))
        yield Case(model="middle", phase="preview", dtype=dtype, side=(256, 256))


def compare(case: Case) -> Row:
    """Predict a case and run it."""
    bucket = Bucket(*case.side)
    item = SampleItem(prompt="a photo", width=case.side[0], height=case.side[1], sample_steps=2)
    dry = Rehearsal(case.process, FLUX, case.source, Target("cpu"), granule=1, plain=case.plain)
    peak = dry.phase(case.phase, bucket, case.batch, item).peak()
    return Row(
        case, peak, measure(lambda: Real(dry, CPU, Silent(mark)).phase(case.phase, bucket, case.batch, item))
    )


@dataclass(frozen=True)
class Row:
    """One line of the table; all sizes in bytes."""

    case: Case
    peak: Peak
    truth: Measured

    @property
    def error(self) -> float:
        """Of the total, positive when the prediction says too much."""
        return self.peak.bytes / self.truth.tensors - 1

    @property
    def activations(self) -> int:
        """Measured bytes beyond what stays from step to step."""
        return self.truth.tensors - (self.peak.bytes - self.peak.activations)

    @property
    def activations_error(self) -> float:
        """Of the activations alone."""
        return self.peak.activations / self.activations - 1


def worst(rows: Sequence[Row]) -> str:
    """The largest errors of each number format in one sentence."""
    parts = []
    for dtype in ("float32", "bfloat16"):
        chosen = [row for row in rows if row.case.dtype == dtype]
        if chosen:
            total = max(abs(row.error) for row in chosen)
            part = max(abs(row.activations_error) for row in chosen)
            parts.append(
                f"{dtype}: {len(chosen)} configurations, worst {total:.3%} of the total,"
                f" {part:.3%} of the activations"
            )
    return "\n".join(parts)


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown, MiB."""
    lines = [
        "| configuration | profiler, MiB | predicted, MiB | error | activations, MiB | error | inside kernels, MiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {row.case} | {row.truth.tensors / MIB:.3f} | {row.peak.bytes / MIB:.3f} | {row.error:+.3%}"
        f" | {row.activations / MIB:.3f} | {row.activations_error:+.3%}"
        f" | {(row.truth.everything - row.truth.tensors) / MIB:.3f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, help="write the table into this file")
    parser.add_argument("--only", default="", help="cases whose description has this text")
    options = parser.parse_args()
    rows = []
    for case in cases():
        if options.only not in str(case):
            continue
        row = compare(case)
        rows.append(row)
        print(
            f"{case!s:84} {row.truth.tensors / MIB:9.3f} {row.peak.bytes / MIB:9.3f} MiB {row.error:+8.3%}"
            f" {row.activations_error:+8.3%}  {row.peak.moment}",
            flush=True,
        )
    print(worst(rows))
    if options.markdown:
        options.markdown.write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main()

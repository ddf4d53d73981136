"""Predicted memory against torch's profiler of the CPU allocator, which shares no code with the ledger.

Each configuration is run twice: as a dry run on ``meta``, and for real on the CPU inside ``torch.profiler``. The
profiler reports every allocation and free of the CPU allocator; their running sum, from an empty start, is the truth.

    python bench/truth_cpu.py [--markdown docs/accuracy.md] [--only TEXT]

The error is given on the total and on the activations: what is there beyond weights, LoRA, gradients and optimizer.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from plafond.data.buckets import Bucket
from plafond.families import family_for
from plafond.job.dataset import DatasetConfig
from plafond.job.model import ModelConfig
from plafond.job.network import NetworkConfig
from plafond.job.sample import SampleItem
from plafond.job.schema import ProcessConfig
from plafond.job.train import EmaConfig, TrainConfig
from plafond.memory import residence
from plafond.memory.dryrun import Rehearsal
from plafond.memory.kernels import Target
from plafond.memory.trace import Trace
from plafond.model.checkpoint import Source

MIB = 1024**2
CPU = torch.device("cpu")

TINY = {"num_layers": 2, "num_single_layers": 4, "num_attention_heads": 4, "attention_head_dim": 32}
MIDDLE = {"num_layers": 5, "num_single_layers": 6, "num_attention_heads": 8, "attention_head_dim": 64}


@dataclass(frozen=True)
class Shipped(Source):
    """A FLUX of any size, described by its configurations."""

    transformer: tuple[tuple[str, Any], ...] = ()
    text: int = 64

    def config(self, part: str, name: str = "config.json") -> dict[str, Any]:
        """The published configuration, scaled down."""
        config = Source(repo="black-forest-labs/FLUX.1-dev").config(part, name)
        if part == "transformer":
            changes = dict(self.transformer)
            rope = {32: [8, 12, 12], 64: [16, 24, 24]}[changes["attention_head_dim"]]
            return {
                **config,
                **changes,
                "axes_dims_rope": rope,
                "joint_attention_dim": 256,
                "pooled_projection_dim": 128,
            }
        changes = {
            "text_encoder": {
                "hidden_size": 128,
                "intermediate_size": 512,
                "projection_dim": 128,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "vocab_size": 4000,
                "max_position_embeddings": self.text,
            },
            "text_encoder_2": {
                "d_model": 256,
                "d_ff": 640,
                "d_kv": 32,
                "num_heads": 8,
                "num_layers": 4,
                "vocab_size": 4000,
            },
            "vae": {"block_out_channels": [32, 64, 128, 128]},
            "tokenizer": {"model_max_length": self.text},
            "tokenizer_2": {"model_max_length": self.text},
        }.get(part, {})
        return {**config, **changes}


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

    def __str__(self) -> str:
        parts = [self.model, self.phase, f"{self.side[0]}x{self.side[1]}"]
        if self.phase == "train":
            parts += [f"batch {self.batch}", "checkpointing" if self.checkpointing else "no checkpointing"]
            parts += [f"accumulation {self.accumulation}"] if self.accumulation > 1 else []
            parts += [self.optimizer]
        parts += ["average"] if self.ema else []
        parts += ["live text"] if self.live else []
        return ", ".join([*parts, self.dtype])

    @property
    def process(self) -> ProcessConfig:
        """The job."""
        return ProcessConfig(
            type="sd_trainer",
            model=ModelConfig(name_or_path="x", arch="flux"),
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
        sizes = {"tiny": TINY, "middle": MIDDLE}[self.model]
        return Shipped(repo="black-forest-labs/FLUX.1-dev", transformer=tuple(sizes.items()))


class Silent:
    """Takes the ledger's place where the profiler counts."""

    def __init__(self) -> None:
        self.stage, self.trace = "", Trace()

    def mark(self) -> None:
        """The peak is sought from here on."""
        with record_function(START):
            pass

    def watch(self, model: torch.nn.Module) -> list[Callable[[], None]]:
        """Nothing to watch."""
        return []

    def watch_gradients(self, parameters: object) -> None:
        """Nothing to watch."""


START = "measured from here"


class Real(Rehearsal):
    """The same phases on the CPU, with real tensors and no ledger."""

    @contextmanager
    def _ledger(self) -> Iterator[Any]:
        yield Silent()


def cases() -> Iterator[Case]:
    """At least 40 configurations."""
    for model, side in (("tiny", (256, 256)), ("tiny", (512, 384)), ("middle", (256, 256))):
        for checkpointing, dtype, batch in itertools.product(
            (True, False), ("float32", "bfloat16"), (1, 2, 4)
        ):
            yield Case(model=model, side=side, checkpointing=checkpointing, dtype=dtype, batch=batch)
    for optimizer in ("adam", "adamw8bit", "lion", "adafactor", "prodigy"):
        yield Case(model="middle", optimizer=optimizer, rank=16)
    for checkpointing in (True, False):
        yield Case(model="tiny", accumulation=3, checkpointing=checkpointing)
        yield Case(model="middle", ema=True, checkpointing=checkpointing, live=True)
    for dtype in ("float32", "bfloat16"):
        yield Case(phase="encode_text", dtype=dtype)
        yield Case(phase="cache_latents", dtype=dtype, side=(512, 512))
        yield Case(phase="cache_latents", dtype=dtype, side=(384, 640))
        yield Case(model="middle", phase="preview", dtype=dtype, side=(256, 256))


def predicted(case: Case) -> Trace:
    """The dry run of a case."""
    target = Target("cpu", scratch=True)
    return _phase(Rehearsal(case.process, family_for("flux"), case.source, target, granule=1), case)


def _phase(rehearsal: Rehearsal, case: Case) -> Trace:
    bucket = Bucket(*case.side)
    item = SampleItem(prompt="a photo", width=case.side[0], height=case.side[1], sample_steps=2)
    phases: dict[str, Callable[[], Trace]] = {
        "train": lambda: rehearsal.train(bucket, case.batch),
        "preview": lambda: rehearsal.preview(item),
        "encode_text": rehearsal.encode_text,
        "cache_latents": lambda: rehearsal.cache_latents(bucket),
    }
    return phases[case.phase]()


def measured(case: Case) -> int:
    """Peak bytes of the phase, by torch's profiler, counted from before anything was built."""
    gc.collect()
    shapes = Rehearsal(case.process, family_for("flux"), case.source, Target("cpu")).text_shapes
    real = Real(case.process, family_for("flux"), case.source, Target("cpu"), full_depth=True, device=CPU)
    if not case.live:
        real.text_shapes = shapes
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler, residence.apart():
        if case.live or case.phase == "encode_text":
            real.encoders  # noqa: B018  # built in float32 first, which is no part of the phase
        _phase(real, case)
    events = profiler.profiler.kineto_results.events()
    starts = [event.start_ns() for event in events if event.name() == START]
    memory = sorted(
        ((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"),
        key=lambda pair: pair[0],
    )
    live = peak = 0
    for when, size in memory:
        live += size
        if when >= starts[-1]:
            peak = max(peak, live)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, help="write the table into this file")
    parser.add_argument("--only", default="", help="cases whose description has this text")
    options = parser.parse_args()
    rows = []
    for case in cases():
        if options.only not in str(case):
            continue
        peak = predicted(case).peak()
        truth = measured(case)
        resident = peak.bytes - peak.activations
        total = (peak.bytes - truth) / truth
        part = (peak.activations - (truth - resident)) / (truth - resident)
        rows.append((str(case), truth, peak.bytes, truth - resident, peak.activations, total, part))
        print(
            f"{case!s:80} {truth / MIB:9.3f} {peak.bytes / MIB:9.3f} MiB {total:+8.3%} {part:+8.3%}  {peak.moment}",
            flush=True,
        )
    for dtype in ("float32", "bfloat16"):
        chosen = [row for row in rows if row[0].endswith(dtype)]
        if chosen:
            worst = max(abs(row[5]) for row in chosen), max(abs(row[6]) for row in chosen)
            print(
                f"{dtype}: {len(chosen)} configurations, worst {worst[0]:.3%} of total, {worst[1]:.3%} of activations"
            )
    if options.markdown:
        lines = [
            "| configuration | profiler, MiB | predicted, MiB | error | activations, MiB | error |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {name} | {truth / MIB:.3f} | {said / MIB:.3f} | {total:+.3%} | {left / MIB:.3f} | {part:+.3%} |"
            for name, truth, said, left, _, total, part in rows
        ]
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

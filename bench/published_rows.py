"""Published memory figures of FLUX.1 and Wan trainings, each as the AI Toolkit job that comes nearest to it.

The files in ``data`` hold the rows with their sources. What a row says is mapped here, what it leaves open is
filled with the tool's default, and what cannot be mapped is said: a row *needs* something that plafond cannot do, or
something of it is *unknown*. Bytes are integers.

How each thing is read:

- **Which number.** plafond predicts allocated, reserved and device bytes; `METRICS` says which of them a row's figure
  is. Where the source does not say, reserved bytes are compared, the middle one.
- **Unit.** GB is 10⁹ bytes, as the letters say, except where the source is known to divide by 1024³. Where it is not
  known, the figure is *uncertain* and the other reading, 1024³ bytes, is kept beside it.
- **LoRA layers.** `TOOLS` has each tool's default.
- **Text encoder.** Cached embeddings: none on the device while training. On the GPU: both stay for the whole run.
- **Kontext.** Its control image joins the sequence as so many more tokens; a target and a control of 832x576 are the
  tokens of one picture of 832x1152, which is what is planned.
- **Trainer.** Rows of tools that train PEFT's layers are predicted with what such layers and torch's checkpointing keep
  (`plafond.memory.plainly`), not with plafond's own step.
- **Clips.** The number of frames is cut to 4n + 1. "480px pixel-area buckets" are planned as a square of 480.
- **RamTorch** streams weights from main memory, which is planned as ``model.layer_offloading``.
- **float8 products** keep bf16 weights and are planned as bf16; the casts of single layers are not counted.
- **Out of memory, at an unknown moment.** A figure reached at a failure is compared only where the source says what
  failed; see `MOMENT_UNKNOWN`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any, Literal

DATA = Path(__file__).parent / "data"

GB = 10**9
GIB = 1024**3

Kind = Literal["allocated", "reserved", "device"]


@dataclass(frozen=True, slots=True)
class Model:
    """A published model as a job names it."""

    name: str
    arch: str

    @property
    def line(self) -> str:
        """FLUX or Wan, whose tools' defaults differ."""
        return "flux" if self.arch == "flux" else "wan"


FLUX = Model("black-forest-labs/FLUX.1-dev", "flux")
MODELS = {
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": Model("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "wan21:1b"),
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": Model("Wan-AI/Wan2.1-T2V-14B-Diffusers", "wan21:14b"),
    "Wan-AI/Wan2.1-T2V-14B": Model("Wan-AI/Wan2.1-T2V-14B-Diffusers", "wan21:14b"),
    "Wan-AI/Wan2.1-I2V-14B": Model("Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", "wan21_i2v:14b480p"),
    "Wan-AI/Wan2.1-I2V-14B-480P": Model("Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", "wan21_i2v:14b480p"),
    "Wan-AI/Wan2.2-T2V-A14B": Model("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "wan22_14b:t2v"),
}
"""By the rows' names; every other name with FLUX in it means FLUX.1-dev or a model of the same shapes."""

ATTENTION = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0")
ADDED = ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out")
FEED_FORWARD = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool's defaults.

    Attributes:
        layers: by line of models, LoRA on layers whose name contains one of these; without them on every linear layer
            of the blocks.
        caches_text: embeddings are computed before the training where the row does not say.
        peft: trains PEFT's layers under torch's checkpointing: planned plainly, with the float32 copies of float32
            adapters, although SimpleTuner's can be bfloat16.
        source: where the defaults are from.
    """

    layers: Mapping[str, tuple[str, ...]]
    caches_text: bool
    peft: bool
    source: str


TOOLS = {
    "SimpleTuner": Tool(
        {"flux": (*ATTENTION, *ADDED), "wan": ("to_q", "to_k", "to_v", "to_out.0")},
        True,
        True,
        "documentation/quickstart/FLUX.md, flux_lora_target all; models/wan/model.py, DEFAULT_LORA_TARGET",
    ),
    "sd-scripts": Tool({}, True, False, "networks/lora_flux.py: every linear layer of the blocks"),
    "fluxgym (sd-scripts)": Tool({}, True, False, "networks/lora_flux.py"),
    "diffusers research script": Tool(
        {"flux": ATTENTION}, True, True, "train_dreambooth_lora_flux_miniature.py"
    ),
    "diffusers (flux_lora_quantization script)": Tool(
        {"flux": ATTENTION},
        True,
        True,
        "train_dreambooth_lora_flux_miniature.py; its text is 77 tokens long, not 512",
    ),
    "diffusers dreambooth script": Tool(
        {"flux": (*ATTENTION, *ADDED, *FEED_FORWARD)}, False, True, "train_dreambooth_lora_flux.py"
    ),
    "unsloth studio (diffusers)": Tool(
        {"flux": (*ATTENTION, *ADDED)},
        True,
        True,
        "studio/backend/core/training/diffusion_dit_trainer.py, _FLUX_TARGETS",
    ),
    "qwen-image-finetune (qflux)": Tool(
        {}, True, True, "configs/face_seg_flux_kontext_fp16.yaml, target_modules"
    ),
    "diffusion-pipe": Tool({}, True, True, "models/wan: every linear layer of the blocks"),
    "musubi-tuner": Tool({}, True, False, "networks/lora_wan.py: every linear layer of the blocks"),
    "DiffSynth-Studio": Tool({}, True, True, "the rows name their layers: all of the blocks"),
}


@dataclass(frozen=True, slots=True)
class Metric:
    """What a row's figure counts: which bytes, in which unit, and whether the unit is certain."""

    kind: Kind
    unit: int
    certain: bool


METRICS = {
    "9090 MiB, nvidia-smi style": Metric("device", GIB, True),
    # diffusion_dit_trainer.py prints torch.cuda.max_memory_allocated() / 1e9
    "GB, PR table": Metric("allocated", GB, True),
    'GB, "approximately", peak VRAM': Metric("reserved", GB, False),
    "GB, peak VRAM": Metric("reserved", GB, False),
    "GB, peak memory": Metric("reserved", GB, False),
    'GB "GPU used" (nvidia-smi style)': Metric("device", GB, False),
    # a doc that says "peak VRAM" alone: about 1 GiB below nvidia-smi on a comparable run
    "GiB; the doc says only": Metric("allocated", GIB, True),
    "GB, nvidia-smi style": Metric("device", GB, False),
    "GB, maintainer measurement": Metric("device", GB, False),
    "GB, author figure": Metric("device", GB, False),
    "GB, user measurement": Metric("device", GB, False),
    "GiB allocated by torch at failure (79.15 GiB card)": Metric("allocated", GIB, True),
}

OPTIMIZERS = {
    "adamw 8bit": "adamw8bit",
    "adamw 8bit (bnb)": "adamw8bit",
    "adamw8bit": "adamw8bit",
    "adam 8bit or prodigy": "adam8bit",
    "bnb-lion8bit-paged": "lion8bit",
    "adafactor": "adafactor",
    "prodigy": "prodigy",
    "adamw_bf16": "adamw",
    "AdamW8bitKahan": "adamw8bit",
}

QTYPES = {
    "nf4": "nf4",
    "nf4-bnb": "nf4",
    "fp4": "nf4",
    "fp8 base": "qfloat8",
    "fp8 (fp8_base)": "qfloat8",
    "fp8-quanto": "qfloat8",
    "int8": "qint8",
}


CAPABILITIES = {
    "B200": (10, 0),
    "H100": (9, 0),
    "A100": (8, 0),
    "A6000": (8, 6),
    "L40S": (8, 9),
    "4090": (8, 9),
    "2080": (7, 5),
    "T4": (7, 5),
}
"""Compute capability of the cards that rows name; 8.0 where none is named."""


MOMENT_UNKNOWN = {
    # The message (78.20 GiB allocated, 108.00 MiB asked for) comes without a step or a trace. 108.00 MiB is what a
    # modulation weight takes (18432 x 3072 in bf16, 9216 x 3072 in float32) and no other tensor of a step; weights
    # move when the model is
    # loaded, when the script fetches the text encoders again to draw its four previews, and at the end, when it puts
    # a second whole pipeline beside the model in training. The command asks for previews. Earlier in the thread the
    # same script stops with an error of shapes at every batch above 1, so it was changed in between; and a maintainer
    # reports that a like command runs on one A100.
    "df-10994-flux-bs2-nogc": "what failed: not the step, by the size that was asked for",
}
"""Rows whose figure was reached at a failure outside of what is predicted, or nobody knows where."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A published number of bytes; `other` is the second reading of an uncertain unit."""

    bytes: int
    kind: Kind
    other: int | None


@dataclass(frozen=True, slots=True)
class Case:
    """One row, mapped.

    Attributes:
        id, tool, source: of the row.
        width, height: the bucket that is planned, pixels; 0 when it is not known.
        frames: of its clips; 1 for pictures.
        batch: pictures per batch.
        plain: predicted as the tool's step, not as plafond's.
        process: the job's process without its folder of pictures.
        outcome: ``fits`` or ``oom``.
        figure: the published number, if there is one; with outcome ``oom``, what was reached at the failure.
        group: rows of one source that differ little share it.
        card_gb: size of the card, GB as sold.
        capability: its compute capability.
        needs: what plafond cannot do.
        unknown: what the row does not say.
        notes: where the mapping is not exact.
    """

    id: str
    tool: str
    source: str
    width: int
    height: int
    frames: int
    batch: int
    plain: bool
    process: dict[str, Any]
    outcome: Literal["fits", "oom"]
    figure: Figure | None
    group: str
    card_gb: int | None
    capability: tuple[int, int]
    needs: tuple[str, ...]
    unknown: tuple[str, ...]
    notes: tuple[str, ...]


def read_cases(folder: Path = DATA) -> list[Case]:
    """Every row of the files, mapped, in their order."""
    return [
        map_row(json.loads(line))
        for path in sorted(folder.glob("*_cases.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def map_row(row: dict[str, Any]) -> Case:
    """The job that comes nearest to a row."""
    tool = TOOLS[row["tool"]]
    width, height = _bucket(row)
    if row.get("num_control_images"):
        height *= 1 + row["num_control_images"]
    return Case(
        id=row["id"],
        tool=row["tool"],
        source=row["source_url"],
        width=width,
        height=height,
        frames=_frames(row),
        batch=row.get("batch_size", 1),
        plain=tool.peft,
        process=_process(row, tool, width, height),
        outcome="oom" if row["outcome"] == "oom" else "fits",
        figure=_figure(row),
        group=row.get("pair_group", row["id"]),
        card_gb=row.get("gpu_vram_gb"),
        capability=next((CAPABILITIES[card] for card in CAPABILITIES if card in row.get("gpu", "")), (8, 0)),
        needs=tuple(_needs(row)),
        unknown=tuple(_unknown(row)),
        notes=tuple(_notes(row, tool)),
    )


def _bucket(row: dict[str, Any]) -> tuple[int, int]:
    resolution = row.get("resolution", 0)
    if isinstance(resolution, str):
        area = re.match(r"(\d+)px pixel-area", resolution)
        resolution = int(area[1]) if area else 0
    if isinstance(resolution, list):
        width, height = resolution
        return width, height
    return resolution, resolution


def _frames(row: dict[str, Any]) -> int:
    return (int(row.get("num_frames", 1)) - 1) // 4 * 4 + 1


def _model(row: dict[str, Any]) -> Model | None:
    name = row["model"]
    return MODELS.get(name) or (FLUX if "flux" in name.lower() else None)


def _process(row: dict[str, Any], tool: Tool, width: int, height: int) -> dict[str, Any]:
    rank = row.get("rank", 16)
    network: dict[str, Any] = {"type": "lora", "linear": rank, "linear_alpha": rank}
    model = _model(row) or FLUX
    if layers := tool.layers.get(model.line):
        network["network_kwargs"] = {"only_if_contains": list(layers)}
    qtype = QTYPES.get(row.get("quantization", ""))
    where = row.get("text_encoder", "cached" if tool.caches_text else "on GPU")
    return {
        "type": "sd_trainer",
        "training_folder": "output",
        "network": network,
        # The smallest resolution whose area holds a picture of exactly this size, so that it is its own bucket.
        "datasets": [
            {"resolution": [isqrt(max(width * height - 1, 0)) + 1], "num_frames": _frames(row)},
        ],
        "train": {
            "batch_size": row.get("batch_size", 1),
            "gradient_accumulation": row.get("grad_accum", 1),
            "gradient_checkpointing": row.get("gradient_checkpointing") is True,
            "optimizer": _optimizer(row),
            "lr": 1.0 if _optimizer(row) == "prodigy" else 1e-4,
            "dtype": "bf16",
            "steps": 10,
            "noise_scheduler": "flowmatch",
            "cache_text_embeddings": not where.startswith("on GPU"),
            "disable_sampling": True,
        },
        "model": {
            "name_or_path": model.name,
            "arch": model.arch,
            "layer_offloading": "layer_offload" in row,
            "quantize": qtype is not None,
            **({"qtype": qtype} if qtype else {}),
        },
    }


def _optimizer(row: dict[str, Any]) -> str:
    if "prodigy optimizer" in row.get("note", ""):
        return "prodigy"
    return OPTIMIZERS[row.get("optimizer", "adamw8bit")]


def _figure(row: dict[str, Any]) -> Figure | None:
    if "reported_peak_gb" not in row:
        return None
    metric = next(METRICS[start] for start in METRICS if row["peak_metric"].startswith(start))
    value = row["reported_peak_gb"]
    other = None if metric.certain else round(value * GIB)
    return Figure(round(value * metric.unit), metric.kind, other)


def _needs(row: dict[str, Any]) -> Iterator[str]:
    if _model(row) is None:
        yield f"the model {row['model']}"
    if row["method"] != "lora":
        yield "full fine-tuning" if row["method"] == "full" else row["method"]
    quantization = row.get("quantization", "none")
    # "fp8" of these two tools means float8 products on bf16 weights
    if quantization not in ("none", "bf16") and not _float8_products(row):
        yield f"a quantised base ({quantization})"
    if row.get("block_swap"):
        yield f"block swap ({row['block_swap']})"
    if not isinstance(row.get("gradient_checkpointing", True), bool):
        yield f"checkpointing: {row['gradient_checkpointing']}"
    if row["phase"] not in ("train",):
        yield f"the phase {row['phase']}"
    if "/ FLUX" in row["model"]:
        yield "one model (the row speaks of two)"


def _unknown(row: dict[str, Any]) -> Iterator[str]:
    if not all(_bucket(row)):
        yield "resolution"
    if "rank" not in row and row["method"] == "lora":
        yield "rank"
    if "batch_size" not in row:
        yield "batch size"
    if "gradient_checkpointing" not in row:
        yield "checkpointing"
    if "reported_peak_gb" not in row and "gpu_vram_gb" not in row:
        yield "size of the card"
    if row["id"] in MOMENT_UNKNOWN:
        yield MOMENT_UNKNOWN[row["id"]]


def _notes(row: dict[str, Any], tool: Tool) -> Iterator[str]:
    if row.get("num_control_images"):
        yield "control image planned as more pixels"
    if _float8_products(row):
        yield "float8 products planned as bf16"
    if row.get("weight_dtype", "bf16") == "fp16":
        yield "fp16 planned as bf16, the same bytes"
    if "compile" in row["id"]:
        yield "compiled, planned as eager"
    if "77 tokens" in tool.source and row["text_encoder"].startswith("precomputed"):
        yield "text of 77 tokens planned as 512"
    if (row.get("num_frames", 1) - 1) % 4:
        yield f"{row['num_frames']} frames planned as {_frames(row)}"
    if "layer_offload" in row and row.get("gradient_checkpointing") is False:
        yield "RamTorch's layers are planned as streamed ones; what they keep besides is not known"
    if row["id"] == "df-10994-flux-bs1-nogc":
        yield "planned with the text encoders, which the script drops when all pictures share one prompt"


def _float8_products(row: dict[str, Any]) -> bool:
    return (
        re.search(r"torchao (float8|fp8)", f"{row.get('quantization', '')} {row.get('note', '')}") is not None
    )

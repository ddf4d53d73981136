"""Published memory figures of trainings with models that plafond knows, each as the job that comes nearest to it.

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
- **RamTorch** streams weights from main memory, which is planned as ``model.layer_offloading``, with layers that keep
  what RamTorch's do (``others.py``). Quantised weights are planned as our own streamed ones.
- **torchao's float8 weights** are planned as ours, with layers that keep what torchao's do (``others.py``).
- **float8 products** keep bf16 weights and are planned as bf16; the casts of single layers are not counted.
- **Quantised bases** are planned with our format of as many bits, whoever's kernels the tool uses, and only where
  blocks are recomputed: what quantised layers keep for a backward pass is a matter of their kernels.
- **Captions** are as long as the model takes, except where the tool's example has one.
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
        """FLUX, Wan, Z-Image, Qwen-Image or SDXL, whose tools' defaults differ."""
        return next(line for line in LINES if self.arch.startswith(line))


LINES = ("flux", "wan", "zimage", "qwen", "sdxl")

FLUX = Model("black-forest-labs/FLUX.1-dev", "flux")
MODELS = {
    "Wan-AI/Wan2.1-T2V-1.3B-Diffusers": Model("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "wan21:1b"),
    "Wan-AI/Wan2.1-T2V-14B-Diffusers": Model("Wan-AI/Wan2.1-T2V-14B-Diffusers", "wan21:14b"),
    "Wan-AI/Wan2.1-T2V-14B": Model("Wan-AI/Wan2.1-T2V-14B-Diffusers", "wan21:14b"),
    "Wan-AI/Wan2.1-I2V-14B": Model("Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", "wan21_i2v:14b480p"),
    "Wan-AI/Wan2.1-I2V-14B-480P": Model("Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", "wan21_i2v:14b480p"),
    "Wan-AI/Wan2.2-T2V-A14B": Model("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "wan22_14b:t2v"),
    "Tongyi-MAI/Z-Image": Model("Tongyi-MAI/Z-Image", "zimage"),
    "Tongyi-MAI/Z-Image-Turbo": Model("Tongyi-MAI/Z-Image-Turbo", "zimage:turbo"),
    "Qwen/Qwen-Image": Model("Qwen/Qwen-Image", "qwen_image"),
    "Qwen/Qwen-Image-Edit": Model("Qwen/Qwen-Image-Edit", "qwen_image_edit"),
    "Qwen/Qwen-Image-Edit-2509": Model("Qwen/Qwen-Image-Edit-2509", "qwen_image_edit_plus"),
    "stabilityai/stable-diffusion-xl-base-1.0": Model("stabilityai/stable-diffusion-xl-base-1.0", "sdxl"),
}
"""By the rows' names; every other name with FLUX in it means FLUX.1-dev or a model of the same shapes."""

ATTENTION = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0")
OWN = ("to_q", "to_k", "to_v", "to_out.0")
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
        caption: the one of its examples; None for as long a one as the model takes.
        checkpoints: blocks are recomputed where the row does not say.
    """

    layers: Mapping[str, tuple[str, ...]]
    caches_text: bool
    peft: bool
    source: str
    caption: str | None = None
    checkpoints: bool = False


TOOLS = {
    "SimpleTuner": Tool(
        {"flux": (*ATTENTION, *ADDED), "wan": OWN, "zimage": OWN, "qwen": OWN},
        True,
        True,
        "documentation/quickstart/FLUX.md, flux_lora_target all; models/common.py, DEFAULT_LORA_TARGET;"
        " the examples' one caption is an emoji",
        caption="\N{LARGE BROWN SQUARE}",
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
        {"flux": (*ATTENTION, *ADDED), "zimage": OWN, "qwen": (*ATTENTION, *ADDED)},
        True,
        True,
        "studio/backend/core/training/diffusion_dit_trainer.py, _FLUX_TARGETS",
    ),
    "qwen-image-finetune (qflux)": Tool(
        {}, True, True, "configs/face_seg_flux_kontext_fp16.yaml, target_modules"
    ),
    "diffusion-pipe": Tool({}, True, True, "models/wan: every linear layer of the blocks"),
    "musubi-tuner": Tool({}, True, False, "networks/lora_wan.py: every linear layer of the blocks"),
    "OneTrainer": Tool(
        {
            "qwen": ("attn", "img_mlp", "txt_mlp"),
            "zimage": ("attention", "feed_forward"),
            "sdxl": ("attentions",),
        },
        True,
        False,
        "training_presets, layer_filter",
    ),
    "OneTrainer / diffusers VAE": Tool({}, True, False, "an autoencoder alone"),
    "ai-toolkit": Tool({}, True, True, "every linear layer of the blocks", checkpoints=True),
    "omini-kontext": Tool({}, True, True, "the thread does not name them"),
    "flymyai-lora-trainer": Tool({"qwen": OWN}, True, True, "train_configs, target_modules"),
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
    "GB, user estimate": Metric("device", GB, False),
    "GB, user observation": Metric("device", GB, False),
    # Windows' task manager divides by 1024 three times
    "GB, user figure (task monitor)": Metric("device", GIB, True),
    "GB, screenshot": Metric("device", GB, False),
    "GB, memory snapshot peak": Metric("allocated", GB, False),
    "GB, nvidia-smi/nvitop": Metric("device", GB, False),
    "GiB, peak allocated": Metric("allocated", GIB, True),
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
    "adamw": "adamw",
    "ADAMW (default)": "adamw",
    "ADAFACTOR fused back pass": "adafactor",
    "adafactor, fused backward pass": "adafactor",
    "adafactor, fused backward": "adafactor",
    # keeps its one average in the adapters' own format
    "optimi-lion": "lion",
}

QTYPES = {
    "nf4": "nf4",
    "nf4-bnb": "nf4",
    "fp4": "nf4",
    "fp8 base": "qfloat8",
    "fp8 (fp8_base)": "qfloat8",
    "fp8-quanto": "qfloat8",
    "int8": "qint8",
    "int8-quanto": "qint8",
    "int8-sdnq-hadamard": "qint8",
    "int8-sdnq (hadamard)": "qint8",
    "fp8-torchao": "qfloat8",
    "fp8 scaled": "qfloat8",
    "fp8 storage": "qfloat8",
    "qfloat8": "qfloat8",
    "fp8": "qfloat8",
    "FLOAT_8": "qfloat8",
    "INT_W8A8": "qint8",
}
"""The format of ours that has as many bits and scales of like size. Whose kernels multiply by it makes a difference
to what a backward pass keeps, so that rows without checkpointing are not compared."""

UNQUANTISED = ("none", "bf16", "BFLOAT_16")


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
    # 40.99, 24.05 and 25.29 GiB stand there for one checkpoint a block, for one of two blocks and for half of the
    # blocks; a step's activations would differ.
    "st-seg-qwen-bf16-layer-l40s": "the step's peak: the figure is the same whatever is recomputed",
    "st-seg-qwen-int8-sdnq-hadamard-layer-l40s": "the step's peak: the figure is the same whatever is recomputed",
    "st-seg-qwen-fp8-torchao-layer-l40s": "the step's peak: the figure is the same whatever is recomputed",
    "un-flux-512-int8": "the step's peak: the figure is that of loading",
    "un-zimage-768-int8": "the step's peak: the figure is that of loading",
    "st-zimage-sdnq-h100-current": "the step's peak: the figure is that of a validation at 1024 pixels",
    "st-zimage-sdnq-l40s-current": "the step's peak: the figure is that of a validation at 1024 pixels",
    "st-zimage-sdnq-l40s-baseline": "the step's peak: the figure is that of a validation at 1024 pixels",
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
        library: whose layers the tool uses; see ``others.py``.
        caption: of every picture; None for as long a one as the model takes.
        process: the job's process without its folder of pictures.
        outcome: ``fits`` or ``oom``.
        figure: the published number, if there is one; with outcome ``oom``, what was reached at the failure.
        group: rows of one source that differ little share it.
        card_gb: size of the card, GB as sold.
        capability: its compute capability.
        needs: what plafond cannot do.
        unknown: what the row does not say.
        quantised: the base is, with another tool's kernels.
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
    library: str | None
    caption: str | None
    process: dict[str, Any]
    outcome: Literal["fits", "oom"]
    figure: Figure | None
    group: str
    card_gb: int | None
    capability: tuple[int, int]
    needs: tuple[str, ...]
    unknown: tuple[str, ...]
    quantised: bool
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
        library=_library(row),
        caption=tool.caption,
        process=_process(row, tool, width, height),
        outcome="oom" if row["outcome"] == "oom" else "fits",
        figure=_figure(row),
        group=row.get("pair_group", row["id"]),
        card_gb=row.get("gpu_vram_gb"),
        capability=next((CAPABILITIES[card] for card in CAPABILITIES if card in row.get("gpu", "")), (8, 0)),
        needs=tuple(_needs(row)),
        unknown=tuple(_unknown(row)),
        quantised=_qtype(row) is not None,
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
    qtype = _qtype(row)
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
            "gradient_checkpointing": row.get("gradient_checkpointing", tool.checkpoints) is True,
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
            **_offloading(row),
            "quantize": qtype is not None,
            **({"qtype": qtype} if qtype else {}),
        },
    }


def _qtype(row: dict[str, Any]) -> str | None:
    return None if _float8_products(row) else QTYPES.get(row.get("quantization", ""))


def _library(row: dict[str, Any]) -> str | None:
    if str(row.get("layer_offload", "")).startswith("ramtorch"):
        return "ramtorch"
    return "torchao" if row.get("quantization") == "fp8-torchao" else None


def _offloading(row: dict[str, Any]) -> dict[str, Any]:
    """Streamed blocks: all of them, or the share that OneTrainer's presets give."""
    asked = row.get("layer_offload", 0)
    share = asked if isinstance(asked, float | int) else 1.0
    return {"layer_offloading": True, "layer_offloading_transformer_percent": share} if share else {}


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
    if quantization not in UNQUANTISED and not _float8_products(row):
        if quantization not in QTYPES:
            yield f"a quantised base ({quantization})"
        elif row.get("gradient_checkpointing") is False:
            yield f"what layers of a quantised base keep ({quantization})"
    if row.get("block_swap"):
        yield f"block swap ({row['block_swap']})"
    if not isinstance(row.get("gradient_checkpointing", True), bool):
        yield f"checkpointing: {row['gradient_checkpointing']}"
    if row.get("train_text_encoder"):
        yield "a LoRA on the text encoders"
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
    if "gradient_checkpointing" not in row and not TOOLS[row["tool"]].checkpoints:
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
    if _library(row) == "ramtorch" and _qtype(row) is not None:
        yield "quantised weights planned as streamed by plafond, whatever RamTorch does with them"
    if _library(row) == "torchao":
        yield "float8 inputs planned as bf16"
    if row["id"] == "df-10994-flux-bs1-nogc":
        yield "planned with the text encoders, which the script drops when all pictures share one prompt"


def _float8_products(row: dict[str, Any]) -> bool:
    return (
        re.search(r"torchao (float8|fp8)", f"{row.get('quantization', '')} {row.get('note', '')}") is not None
    )

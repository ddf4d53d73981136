"""Write what was trained: a LoRA file that ComfyUI and diffusers load, or a fine-tuned transformer."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import plafond
from plafond.activations.blocks import at_home
from plafond.families import family_for
from plafond.families._contract import Family
from plafond.job.schema import Job, ProcessConfig
from plafond.model.experts import names_of
from plafond.model.kohya import to_kohya
from plafond.model.lora import LoraLinear, LoraNetwork
from plafond.model.native import lora_to_native, to_native_names
from plafond.training.run_folder import write_atomically

if TYPE_CHECKING:
    from plafond.data.batches import Item

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


MODULES = {"lora": "networks.lora", "dora": "networks.lora", "lokr": "lycoris.kohya"}
"""kohya's names of what makes each kind of adapter."""


def save_lora(
    target: Path,
    network: LoraNetwork,
    transformer: torch.nn.Module,
    family: Family,
    process: ProcessConfig,
    metadata: Mapping[str, str],
) -> list[Path]:
    """Save the adapter as ``save.lora_format`` says and return the files written.

    ``auto`` writes the one file that both ComfyUI and diffusers load; ``both`` writes the native names to `target`
    and diffusers' names to ``<target>_diffusers.safetensors``. Experts have a file each, with their names behind that
    of `target`.
    """
    dtype = DTYPES[process.save.dtype]
    with at_home(transformer):
        whole = {name: tensor.to("cpu", dtype) for name, tensor in network.file_tensors().items()}
    wanted = process.save.lora_format
    formats = {"auto": (family.lora_format,), "both": ("native", "diffusers")}.get(wanted, (wanted,))
    written: list[Path] = []
    for ending, state in _adapters(whole, family, process):
        for place, form in enumerate(formats):
            path = target.with_stem(f"{target.stem}{ending}{'_diffusers' if place else ''}")
            names = family.kohya_names(transformer)
            if form == "diffusers":
                tensors = _diffusers(state, network, family)
            elif names is not None:
                tensors = to_kohya(state, network, names)
            else:
                tensors = _native(state, network, transformer, family, dtype)
            _write(path, tensors, metadata)
            written.append(path)
    return written


def _adapters(
    state: Mapping[str, Tensor], family: Family, process: ProcessConfig
) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """What goes into each file, with the ending of its name."""
    if not family.experts:
        yield "", state
    for expert in family.trained_experts(process.model):
        yield f"_{expert.name}", {own: state[name] for name, own in names_of(state, expert.name)}


def _diffusers(state: Mapping[str, Tensor], network: LoraNetwork, family: Family) -> dict[str, Tensor]:
    """Without alpha: a scale that is not 1 goes into ``B``."""
    found = {f"{family.denoiser}.{name}": tensor.contiguous() for name, tensor in state.items()}
    for path, layer in network.layers.items():
        name = f"{family.denoiser}.{path}.lora_B.weight"
        if layer.alpha != layer.rank and name in found:
            found[name] = found[name] * (layer.alpha / layer.rank)
    return found


def _native(
    state: Mapping[str, Tensor],
    network: LoraNetwork,
    transformer: torch.nn.Module,
    family: Family,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    layer = next(iter(network.layers.values()))
    sizes = {
        name: module.out_features
        for name, module in transformer.named_modules()
        if hasattr(module, "out_features") and not name.endswith(".base")
    }
    table = family.native_table(transformer)
    if type(layer) is LoraLinear:
        native = lora_to_native(state, table, sizes, alpha=layer.alpha, rank=layer.rank)
    else:
        native = to_native_names(state, table)
    return {f"diffusion_model.{name}": tensor.to(dtype).contiguous() for name, tensor in native.items()}


def _write(path: Path, tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> None:
    from safetensors.torch import save

    body = save(tensors)
    digest = _content_hash(body)
    full = {
        "format": "pt",
        **metadata,
        "sshs_model_hash": digest,
        "sshs_legacy_hash": hashlib.sha256(body[0x100000:0x110000]).hexdigest()[:8],
        "modelspec.hash_sha256": f"0x{digest}",
    }
    data = save(tensors, metadata=full)
    write_atomically(path, lambda temporary: _write_bytes(temporary, data))


def _write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _content_hash(body: bytes) -> str:
    """SHA-256 of the tensors' bytes, without the header: kohya's hash, which tells files apart by their weights."""
    header = int.from_bytes(body[:8], "little")
    return hashlib.sha256(body[8 + header :]).hexdigest()


def save_transformer(
    target: Path, transformer: torch.nn.Module, process: ProcessConfig, metadata: Mapping[str, str]
) -> Path:
    """Save a full fine-tune: a diffusers folder when ``save.save_format`` is ``diffusers``, else one file."""
    from safetensors.torch import save_file

    dtype = DTYPES[process.save.dtype]
    if process.save.save_format == "diffusers":
        folder = target.with_suffix("")

        def write_folder(path: Path) -> None:
            weights = {name: tensor.to("cpu", dtype) for name, tensor in transformer.state_dict().items()}
            part = family_for(process.model.arch).denoiser
            transformer.save_pretrained(path / part, state_dict=weights)  # type: ignore[operator]
            notes = json.dumps(dict(metadata), indent=1)
            (path / "plafond.json").write_text(notes, encoding="utf-8")

        write_atomically(folder, write_folder)
        return folder
    weights = {
        name: tensor.to("cpu", dtype).contiguous() for name, tensor in transformer.state_dict().items()
    }
    write_atomically(target, lambda path: save_file(weights, path, metadata={"format": "pt", **metadata}))
    return target


def describe(
    job: Job,
    process: ProcessConfig,
    family: Family,
    items: list[Item],
    *,
    name: str,
    step: int,
    epoch: int,
    started: float,
) -> dict[str, str]:
    """Metadata of a saved file: AI Toolkit's, kohya's ``ss_*`` and ModelSpec's, all strings.

    Captions and folder names appear only with ``save.metadata_captions``: they may be private.
    """
    network = process.network
    train = process.train
    pictures = len({item.picture.path for item in items})
    resolutions = sorted({resolution for data in process.datasets for resolution in data.resolution})
    buckets: dict[str, int] = {}
    for item in items:
        buckets[str(item.bucket)] = buckets.get(str(item.bucket), 0) + 1
    now = time.time()
    values: dict[str, Any] = {
        **dict(job.meta),
        "name": job.meta.get("name", name),
        "training_info": {"step": step, "epoch": epoch},
        "software": {"name": "plafond", "version": plafond.__version__},
        "ss_base_model_version": family.base_version,
        "ss_output_name": name,
        "ss_sd_model_name": Path(process.model.name_or_path).name,
        "ss_network_module": MODULES[network.type] if network else None,
        "ss_network_args": {"algo": "lokr", "factor": network.lokr_factor}
        if network and network.type == "lokr"
        else None,
        "ss_network_dim": network.linear if network else None,
        "ss_network_alpha": (network.linear_alpha if family.honours_alpha else network.linear)
        if network
        else None,
        "ss_network_dropout": network.dropout if network else None,
        "ss_learning_rate": train.lr,
        "ss_unet_lr": train.lr,
        "ss_optimizer": train.optimizer,
        "ss_lr_scheduler": train.lr_scheduler,
        "ss_steps": step,
        "ss_max_train_steps": train.steps,
        "ss_epoch": epoch,
        "ss_seed": process.training_seed,
        "ss_num_train_images": pictures,
        "ss_batch_size_per_device": train.batch_size,
        "ss_gradient_accumulation_steps": train.gradient_accumulation,
        "ss_gradient_checkpointing": train.gradient_checkpointing,
        "ss_mixed_precision": train.dtype,
        "ss_resolution": ", ".join(str(resolution) for resolution in resolutions),
        "ss_bucket_info": {"buckets": buckets},
        "ss_timestep_sampling": train.timestep_type,
        "ss_training_started_at": started,
        "ss_training_finished_at": now,
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": _architecture(family, process),
        "modelspec.implementation": "https://github.com/huggingface/diffusers",
        "modelspec.title": name,
        "modelspec.date": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)),
        "modelspec.resolution": f"{max(resolutions)}x{max(resolutions)}" if resolutions else None,
        "modelspec.trigger_phrase": process.trigger_word,
    }
    if process.trigger_word:
        values["ss_tag_frequency"] = {"1_trigger": {process.trigger_word: 1}}
    if process.save.metadata_captions:
        values.update(_captions(items))
    return {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in values.items()
        if value is not None
    }


def _architecture(family: Family, process: ProcessConfig) -> str:
    """ModelSpec's name of the base model; the family's first one stands for checkpoints that nobody knows."""
    known = {base.repo: base.modelspec for base in family.base_models}
    name = known.get(process.model.name_or_path, family.base_models[0].modelspec)
    return f"{name}/lora" if process.network else name


def _captions(items: list[Item]) -> dict[str, Any]:
    """Tags per folder, as A1111 shows them, and the folders' names."""
    tags: dict[str, dict[str, int]] = {}
    folders: dict[str, set[Path]] = {}
    for item in items:
        folder = item.picture.path.parent.name
        seen = folders.setdefault(folder, set())
        if item.picture.path in seen:
            continue
        seen.add(item.picture.path)
        count = tags.setdefault(folder, {})
        for tag in filter(None, (part.strip() for part in item.picture.caption.split(","))):
            count[tag] = count.get(tag, 0) + 1
    return {
        "ss_tag_frequency": tags,
        "ss_dataset_dirs": {name: {"img_count": len(paths)} for name, paths in folders.items()},
    }

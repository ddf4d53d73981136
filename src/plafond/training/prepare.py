"""Everything before the transformer is loaded: data, text embeddings, latents.

Encoders and autoencoder are loaded only when something is missing from the caches, one after the other, and leave
the device before the next part arrives. So the device never holds more than one of them at a time; only a job that
encodes its captions live keeps the text encoders.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plafond.data.batches import BatchPlan, Item, build_items, plan_batches
from plafond.data.cache import cache_folder
from plafond.data.folder import Scan, scan
from plafond.data.latents import LatentStore, cache_latents
from plafond.data.text import FOLDER, TextStore, cache_text
from plafond.errors import JobError
from plafond.families._contract import Family, TextEmbedding
from plafond.job.schema import ProcessConfig
from plafond.memory.residence import enter, host_memory, move_in, move_out, put
from plafond.model.checkpoint import Source
from plafond.report.terminal import Terminal
from plafond.training.base import quantize_encoders
from plafond.training.export import DTYPES
from plafond.training.feed import CAPTION_VARIANTS, Embed, Feed, caches_text


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What the loop needs besides the transformer.

    `vae` loads the autoencoder on the CPU when it is first asked for: previews need it, training does not.
    """

    source: Source
    items: tuple[Item, ...]
    feed: Feed
    preview_texts: dict[str, TextEmbedding]
    vae: Callable[[], nn.Module]
    problems: tuple[str, ...]

    @property
    def pictures(self) -> int:
        """Distinct pictures that are trained on."""
        return len({item.picture.path for item in self.items})


def prepare(process: ProcessConfig, family: Family, *, device: torch.device, terminal: Terminal) -> Prepared:
    """Scan the data, cache its latents, and make text embeddings available.

    Raises:
        JobError: the job has no data set.
        DataError: a folder holds nothing to train on.
    """
    if not process.datasets:
        raise JobError("expected at least one dataset with a folder_path, found none", key="datasets")
    source = family.locate(process.model)
    scans = [scan(config, index) for index, config in enumerate(process.datasets)]
    for found in scans:
        for problem in found.problems:
            terminal.warn(problem)
        for note in found.notes:
            terminal.note(note)
    store, vae = _latents(process, family, source, scans, device, terminal)
    items = store.surviving(build_items(scans, family.divisor))
    plan, regularisation = plan_batches(items, process.train.batch_size, process.training_seed)
    embed, preview_texts = _texts(process, family, source, [plan, regularisation], device, terminal)
    return Prepared(
        source=source,
        items=tuple(items),
        feed=Feed(process, plan, regularisation, store, embed),
        preview_texts=preview_texts,
        vae=vae,
        problems=tuple(problem for found in scans for problem in found.problems) + store.problems,
    )


def _latents(
    process: ProcessConfig,
    family: Family,
    source: Source,
    scans: Sequence[Scan],
    device: torch.device,
    terminal: Terminal,
) -> tuple[LatentStore, Callable[[], nn.Module]]:
    dtype = DTYPES[process.train.dtype]

    @cache
    def vae() -> nn.Module:
        with terminal.doing("loading the VAE"), host_memory():
            return family.load_vae(source, device=torch.device("cpu"), dtype=dtype)

    def encode(pixels: Tensor) -> Tensor:
        module = vae()
        if not on_device:
            on_device.append(move_in(module, device))
        return family.encode_image(module, put(pixels, device, dtype))

    on_device: list[nn.Module] = []
    enter("caching latents")
    store = cache_latents(
        build_items(scans, family.divisor),
        encode,
        signature={"family": family.name, "vae": source.fingerprint("vae"), "dtype": process.train.dtype},
        folder=_cache_place(process),
        progress=terminal.phase("latents"),
    )
    for problem in store.problems:
        terminal.warn(problem)
    if on_device:
        move_out(on_device.pop())
        release(device)
    return store, vae


def _texts(
    process: ProcessConfig,
    family: Family,
    source: Source,
    plans: Sequence[BatchPlan | None],
    device: torch.device,
    terminal: Terminal,
) -> tuple[Embed, dict[str, TextEmbedding]]:
    """The source of caption embeddings, and the embeddings of the preview prompts."""
    train = process.train
    dtype = DTYPES[train.dtype]
    loaded: list[Any] = []

    def encode(prompts: Sequence[str]) -> list[TextEmbedding]:
        if not loaded:
            with terminal.doing("loading the text encoders"):
                with host_memory():
                    host = torch.device("cpu")
                    loaded.append(family.load_text_encoders(source, device=host, dtype=dtype))
                modules = family.text_modules(loaded[0])
                quantize_encoders(modules, process.model, device)
                for module in modules:
                    move_in(module, device)
        return family.encode_text(loaded[0], prompts)

    enter("encoding text")
    previews = [] if train.disable_sampling else _preview_prompts(process, family)
    signature = {
        "family": family.name,
        "encoders": "".join(source.fingerprint(part) for part in family.text_parts),
        "dtype": train.dtype,
    }
    if process.model.text_format:
        signature["weights"] = process.model.text_format
    data = [plan for plan in plans if plan is not None]
    cached = caches_text(process)
    if cached or train.unload_text_encoder:
        if cached:
            prompts = [prompt for plan in data for prompt in plan.prompts(CAPTION_VARIANTS)]
            folder = cache_folder(_cache_place(process) or data[0].items[0].picture.root, FOLDER)
        else:
            terminal.warn(
                "unload_text_encoder without cache_text_embeddings trains every picture with the trigger word"
                " alone; captions are not used"
            )
            prompts = [item.config.trigger_word or "" for plan in data for item in plan.items]
            folder = None
        store = cache_text(
            [*prompts, *previews],
            encode,
            signature=signature,
            folder=folder,
            progress=terminal.phase("captions"),
        )
        loaded.clear()
        release(device)
        return _look_up(store), {prompt: store[prompt] for prompt in previews}
    store = cache_text(previews, encode, signature=signature, progress=terminal.phase("preview prompts"))
    return encode, {prompt: store[prompt] for prompt in previews}


def _preview_prompts(process: ProcessConfig, family: Family) -> list[str]:
    items = process.sample.samples
    return [item.prompt for item in items] + [item.neg for item in items if family.guided(item)]


def _cache_place(process: ProcessConfig) -> Path | None:
    """The folder that the job names for its caches; None puts them beside the data."""
    if process.plafond.latent_cache_dir is None:
        return None
    place = Path(process.plafond.latent_cache_dir).expanduser()
    place.mkdir(parents=True, exist_ok=True)
    return place


def _look_up(store: TextStore) -> Embed:
    return lambda prompts: [store[prompt] for prompt in prompts]


def release(device: torch.device) -> None:
    """Give memory of dropped modules back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()

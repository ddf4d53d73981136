"""Everything before the transformer is loaded: data, text embeddings, latents.

Encoders and autoencoder are loaded only when something is missing from the caches, one after the other, and leave
the device before the next part arrives. So the device never holds more than one of them at a time; only a job that
encodes its captions live keeps the text encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plafond.data.batches import BatchPlan, Item, build_items, plan_batches
from plafond.data.buckets import Bucket
from plafond.data.cache import cache_folder
from plafond.data.captions import CAPTION_VARIANTS, possible_captions, preserved
from plafond.data.clips import take_frames
from plafond.data.controls import control_items, match_controls, match_openings, with_controls
from plafond.data.folder import scan
from plafond.data.latents import LatentStore, cache_latents
from plafond.data.masks import GridOf, match_masks, read_masks
from plafond.data.text import FOLDER, Question, TextStore, cache_text
from plafond.errors import JobError
from plafond.families._contract import Family, TextEmbedding
from plafond.job.schema import ProcessConfig
from plafond.language.said import N_, Said
from plafond.memory.residence import enter, host_memory, move_in, move_out, put, release
from plafond.model.checkpoint import Source
from plafond.report.terminal import Terminal
from plafond.training.base import bring_encoders
from plafond.training.budget import Budget
from plafond.training.embeddings import about_item, about_preview, ask
from plafond.training.export import DTYPES
from plafond.training.feed import Embed, Feed
from plafond.training.places import CACHING_LATENTS, ENCODING_TEXT
from plafond.training.recovery import OnHost, at_place

NO_CONTROLS = N_("{arch} takes no control images; control_path is not used")
NO_HOLES = N_("{arch} completes no pictures; inpaint_path is not used")
LATENTS_ON_CPU = N_("out of memory while caching latents; the rest is encoded on the CPU")
TEXT_ON_CPU = N_("out of memory while encoding text; the text encoders go on on the CPU")
TRIGGER_ALONE = N_(
    "unload_text_encoder without cache_text_embeddings trains every picture with the trigger word alone; captions are"
    " not used"
)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What the loop needs besides the transformer.

    `vae` loads the autoencoder on the CPU when it is first asked for: previews need it, training does not.
    """

    source: Source
    items: tuple[Item, ...]
    feed: Feed
    preview_texts: dict[Question, TextEmbedding]
    vae: Callable[[], nn.Module]
    problems: tuple[Said, ...]

    @property
    def pictures(self) -> int:
        """Distinct pictures that are trained on."""
        return len({item.picture.path for item in self.items})


def prepare(
    process: ProcessConfig,
    family: Family,
    *,
    device: torch.device,
    terminal: Terminal,
    budget: Budget | None = None,
) -> Prepared:
    """Scan the data, cache its latents, and make text embeddings available.

    What does not fit on the device is encoded in main memory, unless the budget says not to recover.

    Raises:
        JobError: the job has no data set.
        DataError: a folder holds nothing to train on.
    """
    budget = budget or Budget()
    if not process.datasets:
        raise JobError(N_("expected at least one dataset with a folder_path, found none"), key="datasets")
    source = family.locate(process.model)
    scans = [scan(config, index) for index, config in enumerate(process.datasets)]
    scans = [match_controls(take_frames(found, family.frames), family.controls) for found in scans]
    scans = [match_masks(match_openings(found, family.opened)) for found in scans]
    for found in scans:
        if found.config.control_path and not family.controls:
            terminal.warn(Said(NO_CONTROLS, {"arch": process.model.arch}))
        if found.config.inpaint_path and not family.inpaints:
            terminal.warn(Said(NO_HOLES, {"arch": process.model.arch}))
        for problem in found.problems:
            terminal.warn(problem)
        for note in found.notes:
            terminal.note(note)
    items = with_controls(build_items(scans, family.divisor), partial(family.control_size, process.model))
    store, vae = _latents(process, family, source, items, device, terminal, budget.recover)
    items = [item for item in store.surviving(items) if all(one in store for one in control_items(item))]
    masks, kept = read_masks(items, _grid_of(store), terminal.phase(Said(N_("masks"))))
    plan, regularisation = plan_batches(items, process.train.batch_size, process.training_seed)
    with at_place(ENCODING_TEXT):
        plans = [plan, regularisation]
        embed, preview_texts = _texts(process, family, source, plans, device, terminal, budget.recover)
    return Prepared(
        source=source,
        items=tuple(items),
        feed=Feed(process, plan, regularisation, store, embed, family, masks, kept, budget.tour),
        preview_texts=preview_texts,
        vae=vae,
        problems=tuple(problem for found in scans for problem in found.problems) + store.problems,
    )


def _grid_of(store: LatentStore) -> GridOf:
    """The size of an item's latents, looked up once for each bucket."""
    known: dict[Bucket, tuple[int, int]] = {}

    def grid(item: Item) -> tuple[int, int]:
        if item.bucket not in known:
            height, width = store[item].shape[-2:]
            known[item.bucket] = height, width
        return known[item.bucket]

    return grid


def _latents(
    process: ProcessConfig,
    family: Family,
    source: Source,
    items: Sequence[Item],
    device: torch.device,
    terminal: Terminal,
    recover: bool = True,
) -> tuple[LatentStore, Callable[[], nn.Module]]:
    dtype = DTYPES[process.train.dtype]

    @cache
    def vae() -> nn.Module:
        with terminal.doing(Said(N_("loading the VAE"))), host_memory():
            return family.load_vae(source, device=torch.device("cpu"), dtype=dtype)

    def there(pixels: Tensor) -> Tensor:
        module = vae()
        if not on_device:
            on_device.append(module)
            move_in(module, device)
        return family.encode_image(module, put(pixels, device, dtype))

    def leave() -> None:
        while on_device:
            move_out(on_device.pop())

    on_device: list[nn.Module] = []
    encode = OnHost(
        there,
        leave,
        lambda pixels: family.encode_image(vae(), pixels.to(dtype)),
        device,
        lambda: terminal.warn(Said(LATENTS_ON_CPU)),
        recover,
    )
    enter("caching latents")
    with at_place(CACHING_LATENTS):
        store = cache_latents(
            [one for item in items for one in (item, *control_items(item))],
            encode,
            signature={"family": family.name, "vae": source.fingerprint("vae"), "dtype": process.train.dtype},
            folder=_cache_place(process),
            progress=terminal.phase(Said(N_("latents"))),
        )
    for problem in store.problems:
        terminal.warn(problem)
    leave()
    release(device)
    return store, vae


def _texts(
    process: ProcessConfig,
    family: Family,
    source: Source,
    plans: Sequence[BatchPlan | None],
    device: torch.device,
    terminal: Terminal,
    recover: bool = True,
) -> tuple[Embed, dict[Question, TextEmbedding]]:
    """The source of caption embeddings, and the embeddings of the preview prompts."""
    train = process.train
    dtype = DTYPES[train.dtype]
    loaded: list[Any] = []

    def encode_on(place: torch.device, prompts: Sequence[Question]) -> list[TextEmbedding]:
        if not loaded:
            with terminal.doing(Said(N_("loading the text encoders"))):
                with host_memory():
                    host = torch.device("cpu")
                    loaded.append(family.load_text_encoders(source, device=host, dtype=dtype))
                bring_encoders(family.text_modules(loaded[0]), process.model, place)
        return ask(family, loaded[0], prompts)

    def encode_at_home(prompts: Sequence[Question]) -> list[TextEmbedding]:
        return encode_on(torch.device("cpu"), prompts)

    encode: OnHost[list[TextEmbedding]] = OnHost(
        lambda prompts: encode_on(device, prompts),
        loaded.clear,
        encode_at_home,
        device,
        lambda: terminal.warn(Said(TEXT_ON_CPU)),
        recover,
    )
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
    cached = process.caches_text
    if cached or train.unload_text_encoder:
        if cached:
            prompts = _questions(process, family, data)
            folder = cache_folder(_cache_place(process) or data[0].items[0].picture.root, FOLDER)
        else:
            terminal.warn(Said(TRIGGER_ALONE))
            prompts = [
                question
                for plan in data
                for item in plan.items
                for question in _with_preserved(process, family, item, item.config.trigger_word or "")
            ]
            folder = None
        store = cache_text(
            [*prompts, *previews],
            encode,
            signature=signature,
            folder=folder,
            progress=terminal.phase(Said(N_("captions"))),
        )
        loaded.clear()
        release(device)
        return _look_up(store), {prompt: store[prompt] for prompt in previews}
    store = cache_text(
        previews, encode, signature=signature, progress=terminal.phase(Said(N_("preview prompts")))
    )
    return encode, {prompt: store[prompt] for prompt in previews}


def _questions(process: ProcessConfig, family: Family, plans: Sequence[BatchPlan]) -> list[Question]:
    """Everything that captions can turn out to be, and what is preserved beside them."""
    if not family.sees_controls and process.train.preserves is None:
        return [prompt for plan in plans for prompt in plan.prompts(CAPTION_VARIANTS)]
    return [
        question
        for plan in plans
        for item in plan.items
        for caption in possible_captions(
            [(item.picture, item.config)], seed=plan.seed, variants=CAPTION_VARIANTS
        )
        for question in _with_preserved(process, family, item, caption)
    ]


def _with_preserved(process: ProcessConfig, family: Family, item: Item, caption: str) -> list[Question]:
    kept = preserved(process.train, caption, item.config.trigger_word)
    return [about_item(family, item, prompt) for prompt in (caption, kept) if prompt is not None]


def _preview_prompts(process: ProcessConfig, family: Family) -> list[Question]:
    items = process.sample.samples
    return [
        about_preview(family, item, prompt)
        for item in items
        for prompt in (item.prompt, *((item.neg,) if family.guided(item) else ()))
    ]


def _cache_place(process: ProcessConfig) -> Path | None:
    """The folder that the job names for its caches; None puts them beside the data."""
    if process.plafond.latent_cache_dir is None:
        return None
    place = Path(process.plafond.latent_cache_dir).expanduser()
    place.mkdir(parents=True, exist_ok=True)
    return place


def _look_up(store: TextStore) -> Embed:
    return lambda prompts: [store[prompt] for prompt in prompts]

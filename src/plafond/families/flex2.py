"""Flex.2-preview: FLUX's shape with inputs for a picture to complete and for a control image.

Behind the 16 channels of the noisy latents the transformer sees 33 more: the latents of the picture where it is to be
kept, a mask that is 1 where it is to be painted anew, and the latents of one control image (depth, lines, pose ...).
Without them a prompt alone paints everything: zeros, ones, zeros. While training each of them is left out by chance,
as ``model.model_kwargs`` says, under AI Toolkit's names (one of which it spells ``random_dialate_mask``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plafond.errors import JobError
from plafond.families._contract import INPAINT, BaseModel, Risk, TextEmbedding, control
from plafond.families.flux import Flux, call, draw, pack, places, unpack
from plafond.language.said import N_

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.job.model import ModelConfig
    from plafond.job.sample import SampleItem
    from plafond.job.train import TrainConfig
    from plafond.model.checkpoint import Source

CONDITION = "condition"
"""The name of the 33 channels among an embedding's tensors."""

CHANCES = ("control_dropout", "inpaint_dropout", "inpaint_random_chance", "invert_inpaint_mask_chance")
SWITCHES = ("do_random_inpainting", "random_blur_mask", "random_dialate_mask")


class Flex2(Flux):
    """See `plafond.families._contract.Family`."""

    name = "flex2"
    archs: tuple[str, ...] = ("flex2",)
    divisor = 16
    controls = 4
    inpaints = True
    model_options = (*CHANCES, *SWITCHES)
    # FLUX.1 stands for this shape where a miniature is wanted
    miniature: Mapping[str, Mapping[str, Any]] = {}
    risks: tuple[Risk, ...] = (Risk(side=512, batch=4), Risk(side=1024, resolutions=2))
    base_version = "flex2"
    base_models: tuple[BaseModel, ...] = (
        BaseModel(
            title="Flex.2-preview",
            repo="ostris/Flex.2-preview",
            arch="flex2",
            transformer_parameters=8_163_669_568,
            text_encoders="T5-XXL + CLIP-L",
            licence="Apache-2.0",
            modelspec="flex-2-preview",
        ),
    )

    def locate(self, model: ModelConfig) -> Source:
        """Folder, Hugging Face id, or a transformer file with encoders and VAE from Flex.2-preview.

        Raises:
            JobError: an option is no probability, or no switch.
        """
        from plafond.model.checkpoint import locate

        for key, value in model.model_kwargs.items():
            if key in CHANCES and not (isinstance(value, (int, float)) and 0 <= value <= 1):
                text = N_("expected a probability from 0 to 1, found {found}")
            elif key in SWITCHES and not isinstance(value, bool):
                text = N_("expected true or false, found {found}")
            else:
                continue
            raise JobError(text, found=repr(value), key=f"model.model_kwargs.{key}")
        return locate(model, companion=self.base_models[0].repo)

    # ------------------------------------------------------------------------------------------------ training

    def condition(
        self, text: TextEmbedding, latents: Tensor, model: ModelConfig, dice: torch.Generator
    ) -> TextEmbedding:
        """One of the control images and the picture outside of its hole, each with the chances that the job gives."""
        import torch

        options = model.model_kwargs
        size = latents.shape[0]
        given = {name: value for name, value in text.items() if not name.startswith("control_")}
        known = [text[control(place)].float() for place in range(self.controls) if control(place) in text]
        keep = self._kept(given.pop(INPAINT, None), latents, options, dice)
        seen = torch.zeros_like(latents)
        if known:
            chosen = torch.randint(len(known), (size,), generator=dice)
            stays = ~_happens(options.get("control_dropout", 0.0), size, dice)
            seen = torch.stack(known, dim=1)[torch.arange(size), chosen] * stays.view(-1, 1, 1, 1)
        hole = 1 - (_spread(keep, dice) if options.get("random_dialate_mask", False) else keep)
        return {**given, CONDITION: torch.cat([latents * keep, hole, seen], dim=1)}

    def _kept(
        self, given: Tensor | None, latents: Tensor, options: Mapping[str, Any], dice: torch.Generator
    ) -> Tensor:
        """Where each picture is kept: (B, 1, h, w), 1 where it is and 0 in the hole."""
        import torch

        from plafond.families._holes import blurred, holes

        size, _, height, width = latents.shape
        keep = latents.new_zeros(size, 1, height, width)
        own = torch.zeros(size, dtype=torch.bool)
        if given is not None:
            keep, own = given.float(), ~_happens(options.get("inpaint_random_chance", 0.0), size, dice)
        if options.get("do_random_inpainting", False):
            drawn = 1 - holes(size, height, width, dice)
            keep = torch.where(own.view(-1, 1, 1, 1), keep, drawn)
            own = torch.ones_like(own)
        if options.get("random_blur_mask", False):
            blur = _happens(0.5, size, dice).view(-1, 1, 1, 1)
            keep = torch.where(blur, blurred(keep, dice), keep)
        turned = _happens(options.get("invert_inpaint_mask_chance", 0.0), size, dice)
        keep = torch.where(turned.view(-1, 1, 1, 1), 1 - keep, keep)
        own &= ~_happens(options.get("inpaint_dropout", 0.0), size, dice)
        return keep * own.view(-1, 1, 1, 1)

    def predict(
        self, transformer: nn.Module, noisy: Tensor, sigma: Tensor, text: TextEmbedding, settings: TrainConfig
    ) -> Tensor:
        """Velocity (B, 16, h, w)."""
        import torch

        condition = text.get(CONDITION)
        if condition is None:
            condition = _blank(noisy)
        tokens = pack(torch.cat([noisy, condition], dim=1))
        velocity = call(transformer, tokens, places(noisy), sigma, text, settings)
        return unpack(velocity, *noisy.shape[-2:])

    # ------------------------------------------------------------------------------------------------ previews

    def preview(
        self, transformer: nn.Module, vae: nn.Module, source: Source, item: SampleItem, text: TextEmbedding
    ) -> Image:
        """One picture at the item's size, seed, steps and guidance.

        Its control image steers it; where ``ctrl_idx`` is 0 and the file has transparency, the picture is kept instead
        and what is transparent is painted.
        """
        import torch
        from diffusers import FluxPipeline

        from plafond.families._shared import VAE_FACTOR, scheduler, whole

        width, height = whole(item.width, 2 * VAE_FACTOR), whole(item.height, 2 * VAE_FACTOR)
        pipeline = FluxPipeline(
            scheduler=scheduler(source), vae=vae, transformer=transformer, **dict.fromkeys(self.text_parts)
        )
        prompt = text["prompt_embeds"]
        latents, _ = pipeline.prepare_latents(
            *(1, 16, height, width, prompt.dtype, prompt.device),
            torch.Generator("cpu").manual_seed(item.seed),
        )
        with torch.no_grad():
            condition = self._shown(
                vae, item, text, unpack(latents, height // VAE_FACTOR, width // VAE_FACTOR)
            )
        with _appended(transformer, pack(condition)):
            return draw(pipeline, item, text, latents=latents, width=width, height=height)

    def _shown(self, vae: nn.Module, item: SampleItem, text: TextEmbedding, latents: Tensor) -> Tensor:
        """The further channels (1, 33, h, w) of a preview."""
        import torch

        from plafond.families._holes import opacity
        from plafond.families._shared import VAE_FACTOR
        from plafond.memory.residence import put

        condition = _blank(latents)
        if control(0) not in text:
            return condition
        height, width = latents.shape[-2] * VAE_FACTOR, latents.shape[-1] * VAE_FACTOR
        pixels = put(_fitted(text[control(0)], height, width), latents.device, latents.dtype)
        seen = self.encode_image(vae, pixels)
        path = Path(item.control_images[0]).expanduser()
        keep = opacity(path, *latents.shape[-2:]) if item.ctrl_idx == 0 and path.is_file() else None
        if keep is None:
            return torch.cat([condition[:, :17], seen], dim=1)
        keep = put(keep, latents.device, latents.dtype)
        return torch.cat([seen * keep, 1 - keep, condition[:, 17:]], dim=1)


def _blank(latents: Tensor) -> Tensor:
    """Everything is to be painted, and nothing steers it: (B, 33, h, w)."""
    import torch

    nothing = torch.zeros_like(latents)
    return torch.cat([nothing, torch.ones_like(latents[:, :1]), nothing], dim=1)


def _happens(chance: float, count: int, dice: torch.Generator) -> Tensor:
    """Whether something of that probability happens to each of so many samples: booleans (count,)."""
    import torch

    return torch.rand(count, generator=dice) < chance


def _spread(keep: Tensor, dice: torch.Generator) -> Tensor:
    """What is kept with an edge that lies a little further out or in, at most by a twentieth of the width."""
    import torch

    from plafond.families._holes import boxed

    side = int(torch.randint(1, max(3, keep.shape[-1] // 20), (), generator=dice)) // 2 * 2 + 1
    if side == 1:
        return keep
    limit = 0.2 + 0.6 * torch.rand(keep.shape[0], 1, 1, 1, generator=dice)
    return (boxed(keep, side) > limit).to(keep)


def _fitted(pixels: Tensor, height: int, width: int) -> Tensor:
    """A control image's bytes (3, H, W) at a preview's size, (1, 3, height, width) in [-1, 1], in main memory."""
    import numpy as np
    import torch
    from PIL import Image, ImageOps

    from plafond.memory.residence import host_memory

    with host_memory():
        given = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
        fitted = ImageOps.fit(given, (width, height), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(fitted)).permute(2, 0, 1)[None].float() / 127.5 - 1


@contextmanager
def _appended(transformer: nn.Module, tokens: Tensor) -> Iterator[None]:
    """Give the transformer `tokens` (1, n, 132) behind the channels that the pipeline passes it."""
    import torch

    def append(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "hidden_states": torch.cat([kwargs["hidden_states"], tokens], dim=2)}

    hook = transformer.register_forward_pre_hook(append, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


FAMILY = Flex2()

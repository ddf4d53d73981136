"""What Stable Diffusion's families share: a UNet, a noise schedule, and whole checkpoints in one file.

The model is asked for the noise, or for a mixture of noise and picture (v-prediction), at one of 1,000 timesteps; a
noise level is such a step, divided by 1,000. Its blocks are ResNets and transformer blocks, by the UNet block that
they stand in; the layers that change the resolution keep what they need.

A single file holds either a UNet alone or the whole checkpoint under the names of its original release; then the
autoencoder and the text encoders come from it, too, and only configurations and tokenizers from a repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plafond.errors import CheckpointError, JobError
from plafond.families._contract import Family, TextEmbedding
from plafond.language.said import N_
from plafond.model.checkpoint import Altered, read_tensors, reading

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.job.model import ModelConfig
    from plafond.job.sample import SampleItem
    from plafond.job.train import TrainConfig
    from plafond.model.checkpoint import Source
    from plafond.model.native import Entry

STEPS = 1000
"""Timesteps of the schedule."""
UNET = "model.diffusion_model."
"""What stands before the UNet's names in a whole checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Altered):
    """Parts of a checkpoint; `whole` says that all of their weights are in `transformer_file`."""

    whole: bool = False

    def fingerprint(self, part: str) -> str:
        """That of the file, where the weights come from it."""
        if not self.whole or self.transformer_file is None:
            return super().fingerprint(part)
        found = self.transformer_file.stat()
        return f"{self.transformer_file.name}:{found.st_size}:{found.st_mtime_ns}/{part}"


class UNetFamily(Family):
    """See `plafond.families._contract.Family`."""

    denoiser = "unet"
    divisor = 16
    flow = False
    honours_alpha = True
    lora_blocks: tuple[str, ...] = ("attentions.",)
    conv_blocks: tuple[str, ...] = ("resnets.", "downsamplers.", "upsamplers.")
    lora_format = "native"
    # the trace is not lengthened: no two of these models differ by a number of blocks
    depth: Mapping[str, str] = {}
    miniature: Mapping[str, Mapping[str, Any]] = {}

    def locate(self, model: ModelConfig) -> Source:
        """Folder, Hugging Face id, or a file with the UNet or all parts.

        Raises:
            JobError: the folder holds no UNet.
        """
        from plafond.model.checkpoint import locate

        source = locate(model, companion=self.base_models[0].repo, denoiser=self.denoiser)
        folder = Path(source.repo_of(self.denoiser))
        if source.transformer_file is None and folder.is_dir() and not (folder / self.denoiser).is_dir():
            raise JobError(
                N_(
                    "{folder} holds no {part}, as {arch} has one; expected model.arch to name the model's architecture"
                ),
                folder=folder,
                part=self.denoiser,
                arch=model.arch,
                key="model.arch",
            )
        changes = {"scheduler": {"prediction_type": "v_prediction"}} if model.is_v_pred else {}
        whole = source.transformer_file is not None and _holds_all(source.transformer_file)
        return Checkpoint(
            repo=source.repo,
            transformer_file=source.transformer_file,
            transformer_repo=source.transformer_repo,
            changes=changes,
            whole=whole,
        )

    def shift(self, latent_height: int, latent_width: int) -> float:
        """Timesteps are drawn alike at every resolution."""
        return 0.0

    # ------------------------------------------------------------------------------------------------ images

    def load_vae(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """The 4-channel f8 autoencoder."""
        from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint

        if not _is_whole(source):
            return super().load_vae(source, device=device, dtype=dtype)
        config = source.config("vae")
        state = read_tensors(_file(source), "first_stage_model.")
        return _filled(
            source, lambda: self.build_vae(source), convert_ldm_vae_checkpoint(state, config), device, dtype
        )

    # ------------------------------------------------------------------------------------------------ UNet

    def load_transformer(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """`UNet2DConditionModel` with frozen weights."""
        from diffusers import UNet2DConditionModel

        from plafond.families._shared import load_denoiser

        loaded = load_denoiser(
            source,
            UNet2DConditionModel,
            self.native_table,
            device=device,
            dtype=dtype,
            part=self.denoiser,
            inside=UNET if _is_whole(source) else "",
        )
        return with_blocks(loaded)

    def build_transformer(self, config: Mapping[str, Any]) -> nn.Module:
        """`UNet2DConditionModel` by its configuration."""
        from diffusers import UNet2DConditionModel

        from plafond.families._shared import from_config

        return with_blocks(from_config(UNet2DConditionModel, config))

    def block_counts(self, config: Mapping[str, Any]) -> dict[str, int]:
        """ResNets and transformer blocks by UNet block, in the order of `with_blocks`."""
        per_block, kinds = int(config["layers_per_block"]), config["down_block_types"]
        deep = config.get("transformer_layers_per_block", 1)
        layers = [deep] * len(kinds) if isinstance(deep, int) else list(deep)
        found: dict[str, int] = {}
        for name, kind, count, each in (
            *((f"down_blocks.{i}", kind, per_block, layers[i]) for i, kind in enumerate(kinds)),
            *(
                (f"up_blocks.{i}", kind, per_block + 1, layers[-1 - i])
                for i, kind in enumerate(config["up_block_types"])
            ),
        ):
            found[f"{name}.resnets"] = count
            if "CrossAttn" in kind:
                found[f"{name}.attentions"] = count * each
        found["mid_block.resnets"], found["mid_block.attentions"] = 2, layers[-1]
        return found

    def predict(
        self, transformer: nn.Module, noisy: Tensor, sigma: Tensor, text: TextEmbedding, settings: TrainConfig
    ) -> Tensor:
        """What the schedule asks for, noise or v, (B, 4, h, w); `sigma` is the timestep divided by 1,000."""
        answer: Tensor = transformer(
            noisy,
            (sigma * STEPS).round(),
            encoder_hidden_states=text["prompt_embeds"],
            added_cond_kwargs=self.added(noisy, text),
            return_dict=False,
        )[0]
        return answer

    def added(self, noisy: Tensor, text: TextEmbedding) -> dict[str, Tensor] | None:
        """What the UNet is told beside prompt and timestep."""
        return None

    # ------------------------------------------------------------------------------------------------ previews

    def guided(self, item: SampleItem) -> bool:
        """With a guidance scale above 1."""
        return item.guidance_scale > 1

    def draw(self, pipeline: Any, item: SampleItem, **embeddings: Tensor | None) -> Image:
        """One picture at the item's size, seed, steps and guidance; `embeddings` are named as the pipeline's."""
        import torch

        from plafond.families._shared import VAE_FACTOR, whole

        pipeline.set_progress_bar_config(disable=True)
        return pipeline(  # type: ignore[no-any-return]
            **{name: tensor for name, tensor in embeddings.items() if tensor is not None},
            width=whole(item.width, VAE_FACTOR),
            height=whole(item.height, VAE_FACTOR),
            num_inference_steps=item.sample_steps,
            guidance_scale=item.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(item.seed),
            output_type="pil",
        ).images[0]

    # ------------------------------------------------------------------------------------------------ names

    def native_table(self, transformer: nn.Module) -> list[Entry]:
        """CompVis's names, which number the UNet's parts through."""
        from plafond.model.native import Entry

        known = dict(transformer.named_modules())
        renamed = {
            "time_embedding.linear_1": "time_embed.0",
            "time_embedding.linear_2": "time_embed.2",
            "add_embedding.linear_1": "label_emb.0.0",
            "add_embedding.linear_2": "label_emb.0.2",
            "conv_in": "input_blocks.0.0",
            "conv_norm_out": "out.0",
            "conv_out": "out.2",
            **dict(_renamed(transformer)),
        }
        table = []
        for path, module in known.items():
            if not list(module.parameters(recurse=False)) or path.endswith(".base"):
                continue  # a layer under an adapter is named by the adapter
            ours = next((name for name in renamed if path == name or path.startswith(f"{name}.")), None)
            if ours is None:
                raise CheckpointError(N_("the UNet has a layer {layer}, which no other one has"), layer=path)
            native = renamed[ours] + path.removeprefix(ours)
            if ".resnets." in path:
                for part, other in _RESNET.items():
                    native = native.replace(f".{part}", f".{other}") if path.endswith(f".{part}") else native
            table.append(Entry(native=native, diffusers=(path,)))
        return table


_RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}


def _renamed(unet: nn.Module) -> Iterator[tuple[str, str]]:
    """Our names of a UNet's parts with CompVis's."""
    model: Any = unet
    each = int(model.config.layers_per_block)
    for index, block in enumerate(model.down_blocks):
        for layer in range(each):
            place = f"input_blocks.{index * (each + 1) + layer + 1}"
            yield f"down_blocks.{index}.resnets.{layer}", f"{place}.0"
            yield f"down_blocks.{index}.attentions.{layer}", f"{place}.1"
        if block.downsamplers is not None:
            yield f"down_blocks.{index}.downsamplers.0.conv", f"input_blocks.{(index + 1) * (each + 1)}.0.op"
    yield "mid_block.resnets.0", "middle_block.0"
    yield "mid_block.attentions.0", "middle_block.1"
    yield "mid_block.resnets.1", "middle_block.2"
    for index, block in enumerate(model.up_blocks):
        attends = getattr(block, "attentions", None) is not None
        for layer in range(each + 1):
            place = f"output_blocks.{index * (each + 1) + layer}"
            yield f"up_blocks.{index}.resnets.{layer}", f"{place}.0"
            yield f"up_blocks.{index}.attentions.{layer}", f"{place}.1"
        if block.upsamplers is not None:
            last = f"output_blocks.{index * (each + 1) + each}.{2 if attends else 1}"
            yield f"up_blocks.{index}.upsamplers.0.conv", f"{last}.conv"


def with_blocks(unet: nn.Module) -> nn.Module:
    """A UNet that knows its blocks: see `plafond.memory.ledger.blocks_of`."""
    model: Any = unet
    parts = {
        **{f"down_blocks.{index}": block for index, block in enumerate(model.down_blocks)},
        **{f"up_blocks.{index}": block for index, block in enumerate(model.up_blocks)},
        "mid_block": model.mid_block,
    }
    groups: dict[str, list[nn.Module]] = {}
    for name, part in parts.items():
        groups[f"{name}.resnets"] = list(part.resnets)
        attentions = [
            attention for attention in getattr(part, "attentions", None) or () if attention is not None
        ]
        if attentions:
            groups[f"{name}.attentions"] = [
                block for attention in attentions for block in attention.transformer_blocks
            ]
    model.block_groups = groups
    return unet


# ---------------------------------------------------------------------------------------------------- whole files


def _holds_all(path: Path) -> bool:
    """Whether a file holds an autoencoder, too."""
    from safetensors import safe_open

    def look() -> bool:
        with safe_open(path, framework="numpy") as file:
            return any(name.startswith("first_stage_model.") for name in file.keys())  # noqa: SIM118

    return reading(str(path), look)


def _is_whole(source: Source) -> bool:
    return isinstance(source, Checkpoint) and source.whole


def _file(source: Source) -> Path:
    assert source.transformer_file is not None
    return source.transformer_file


def load_encoder(
    source: Source, part: str, model: Any, prefix: str, *, device: torch.device, dtype: torch.dtype
) -> nn.Module:
    """A CLIP text encoder, from its folder or, under `prefix`, from a whole checkpoint."""
    from diffusers.loaders.single_file_utils import convert_ldm_clip_checkpoint, convert_open_clip_checkpoint

    from plafond.families._shared import load_part

    if not _is_whole(source):
        return load_part(source, part, model, device=device, dtype=dtype)
    state = read_tensors(_file(source), prefix)
    empty = build_encoder(source, part, model)
    if any(name.startswith(f"{prefix}model.") for name in state):
        found = convert_open_clip_checkpoint(empty, state, prefix=f"{prefix}model.")
    else:
        found = convert_ldm_clip_checkpoint(state)
    return _filled(source, lambda: build_encoder(source, part, model), found, device, dtype)


def build_encoder(source: Source, part: str, model: Any) -> nn.Module:
    """A CLIP text encoder by its configuration."""
    return model(model.config_class(**source.config(part))).eval()  # type: ignore[no-any-return]


def _filled(
    source: Source, build: Any, state: dict[str, Tensor], device: torch.device, dtype: torch.dtype
) -> nn.Module:
    """A frozen model with these weights."""
    from accelerate import init_empty_weights
    from transformers.initialization import no_init_weights

    from plafond.model.checkpoint import assign

    with no_init_weights(), init_empty_weights():
        built: nn.Module = build()
    wanted = dict(built.named_parameters())
    # transformers' CLIP stands with or without a wrapper around it, by its version
    bare = {name.removeprefix("text_model."): tensor for name, tensor in state.items()}
    found: dict[str, Tensor] = {}
    for name, parameter in wanted.items():
        tensor = bare.get(name.removeprefix("text_model."))
        if tensor is None or tensor.shape != parameter.shape:
            raise CheckpointError(
                N_("{path} has no tensor that fits {name}; is it a complete checkpoint?"),
                path=str(source.transformer_file),
                name=name,
            )
        found[name] = tensor
    return assign(built, found, device=device, dtype=dtype).eval()

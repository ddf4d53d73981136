"""What a model family tells the trainer: everything that differs between FLUX, Z-Image, Qwen-Image, Wan ...

A family is one file in this folder with an object named ``FAMILY``; it is found by listing the folder. Its module
must not import torch or diffusers at the top, so that ``plafond --help`` and ``plafond check`` stay fast.

Shapes: ``B`` batch, ``C`` latent channels, ``h``/``w`` latent height and width, ``H``/``W`` pixels. The latents of a
family of clips have a dimension for frames after that for channels, also those of a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from plafond.families._ai_toolkit import PER_BLOCK, Residency

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from plafond.data.buckets import Bucket
    from plafond.job.dataset import DatasetConfig
    from plafond.job.model import ModelConfig
    from plafond.job.sample import SampleItem
    from plafond.job.train import TrainConfig
    from plafond.model.checkpoint import Source
    from plafond.model.native import Entry


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """A published checkpoint that the family can train."""

    title: str
    repo: str
    arch: str
    transformer_parameters: int
    text_encoders: str
    licence: str
    modelspec: str
    """``modelspec.architecture`` of files trained on it, without the suffix ``/lora``."""


@dataclass(frozen=True, kw_only=True)
class Risk:
    """Settings that together often run out of memory where no block is recomputed; each is at least so large."""

    side: int
    """The highest resolution, in pixels."""
    batch: int = 1
    resolutions: int = 1
    """How many resolutions are trained."""
    controls: int = 0
    """Control images per picture."""


@dataclass(frozen=True, kw_only=True)
class Expert:
    """One of several models that share the noise levels among them.

    Its name is that of its group of blocks in `plafond.model.experts.Experts`, and the ending of its saved file's.
    """

    name: str
    sigmas: tuple[float, float]
    """From the lowest to the highest noise level that it denoises."""


@dataclass(frozen=True, kw_only=True)
class Length:
    """How many tokens the longest and the shortest of some prompts have, beside those of pictures.

    `counted` says that the tokenizer was at hand; else they are numbers that no prompt lies outside of.
    """

    tokens: int
    shortest: int
    counted: bool


TextEmbedding = dict[str, "Tensor"]
"""What the text encoders say about one prompt: named tensors without a batch dimension.

Their first dimension may differ from prompt to prompt (see `plafond.training.embeddings`). Integers, such as a mask
that says where a prompt ends, are in main memory.
"""


def control(place: int) -> str:
    """The name of a control image among an embedding's tensors, counted from 0."""
    return f"control_{place + 1}"


INPAINT = "inpaint"
"""The name of what is kept of a picture that is to be completed, among an embedding's tensors: (B, 1, h, w)."""


class Family(Protocol):
    """The contract. Attributes are plain data; methods are called in the order of a run's phases.

    A family derives from it and so inherits what most families have in common.
    """

    name: str
    archs: tuple[str, ...]
    base_models: tuple[BaseModel, ...]
    divisor: int
    """Bucket sides are multiples of this many pixels (AI Toolkit's rule for the architecture)."""
    text_parts: tuple[str, ...]
    """Folders of the checkpoint that hold text encoders and tokenizers."""
    lora_blocks: tuple[str, ...]
    """Substrings of the dotted names of layers that get a LoRA by default."""
    packed_blocks: tuple[str, ...] = ()
    """The same of blocks without a LoRA whose linear layers are quantised, too."""
    denoiser: str = "transformer"
    """The folder of a checkpoint that holds the denoising model, and what stands before its names in LoRA files of
    diffusers."""
    conv_blocks: tuple[str, ...] = ()
    """Substrings of the dotted names of layers that get a LoRA, too, where ``network.conv`` asks for convolutions."""
    honours_alpha: bool = False
    """``network.linear_alpha`` counts; elsewhere a LoRA's scale is 1."""
    flow: bool = True
    """Trained on straight lines between noise and picture; else on the schedule that `schedule` gives."""
    base_version: str
    """``ss_base_model_version`` of saved files."""
    lora_format: str
    """``native`` or ``diffusers``: whose layer names make the one file that ComfyUI and diffusers both load."""

    def locate(self, model: ModelConfig) -> Source:
        """Where the parts of this job's checkpoint are."""

    def load_text_encoders(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> Any:
        """The text encoders with their tokenizers, as the object that `encode_text` takes."""

    def text_modules(self, encoders: Any) -> list[nn.Module]:
        """The modules inside what `load_text_encoders` returns."""

    def encode_text(self, encoders: Any, prompts: Sequence[str]) -> list[TextEmbedding]:
        """Encode prompts through the diffusers pipeline's own method."""

    def load_vae(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """The image autoencoder."""
        from diffusers import AutoencoderKL

        from plafond.families._shared import load_part

        return load_part(source, "vae", AutoencoderKL, device=device, dtype=dtype)

    def encode_image(self, vae: nn.Module, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W), or (B, 3, frames, H, W) of clips, in [-1, 1] to normalised latents (B, C, h, w): the
        posterior's mean."""
        from plafond.families._shared import encode_kl

        return encode_kl(vae, pixels)

    def load_transformer(self, source: Source, *, device: torch.device, dtype: torch.dtype) -> nn.Module:
        """The denoising model."""

    def predict(
        self, transformer: nn.Module, noisy: Tensor, sigma: Tensor, text: TextEmbedding, settings: TrainConfig
    ) -> Tensor:
        """The model's velocity (B, C, h, w) at noise level `sigma` (B,) in [0, 1]; `text` is batched."""

    def schedule(self, source: Source) -> Mapping[str, Any]:
        """The configuration of the noise schedule, of families without `flow`."""
        return source.config("scheduler", "scheduler_config.json")

    def shift(self, latent_height: int, latent_width: int) -> float:
        """Exponent ``mu`` of the resolution-dependent timestep shift."""

    def preview(
        self, transformer: nn.Module, vae: nn.Module, source: Source, item: SampleItem, text: TextEmbedding
    ) -> Image | list[Image]:
        """Draw one preview through the diffusers pipeline: a picture or, of several frames, all of them.

        `text` has no batch dimension; where the preview is `guided`, the negative prompt's tensors stand beside the
        prompt's, with ``negative_`` before their names.
        """

    either_way: bool = True
    """A picture takes the same memory standing or lying, allocation by allocation."""
    usual_frames: int = 1
    """Frames of a clip of which nothing is known, for plans."""

    def frames(self, count: int) -> int:
        """How many of so many frames a clip may have; one where the model knows only pictures."""
        return 1

    experts: tuple[Expert, ...] = ()
    """Models that take turns, each with its own noise levels; the transformer is then an `Experts`."""

    def trained_experts(self, model: ModelConfig) -> tuple[Expert, ...]:
        """Those of the experts that the job trains."""
        return self.experts

    residency: Residency = PER_BLOCK
    """What AI Toolkit has on the device in which phase."""
    risks: tuple[Risk, ...] = ()
    """Combinations that a plan warns of when checkpointing is off."""
    model_options: tuple[str, ...] = ()
    """Keys of ``model.model_kwargs`` that the family acts on; any other gives a warning."""

    controls: int = 0
    """Most control images that a picture can have. Their latents (B, C, h, w) reach `predict` in `text`, under the
    names of `control`; in `preview` they are pixels, bytes (3, H, W)."""
    inpaints: bool = False
    """Pictures may have holes, which the model learns to fill; what is kept reaches `condition` as `INPAINT`."""
    sees_controls: bool = False
    """The text encoder looks at control images, too: prompts with control images go to `encode_seen`."""

    def control_size(self, model: ModelConfig, width: int, height: int, bucket: Bucket) -> Bucket:
        """The size at which a control image of `width` × `height` pixels stands beside a picture of `bucket`."""
        return bucket

    opens: bool = False
    """Clips may begin with a given frame: in training their own, in previews ``ctrl_img``. It takes the place of the
    first control image."""

    def opened(self, data: DatasetConfig, frames: int) -> bool:
        """Whether a clip of so many frames, or a picture, is given its first frame in training."""
        return False

    def scored(self, velocity: Tensor, text: TextEmbedding) -> Tensor:
        """The part of a velocity (B, C, h, w), predicted or true, that the loss counts: all but what was given."""
        return velocity

    def encode_seen(self, encoders: Any, prompt: str, controls: Sequence[Image]) -> TextEmbedding:
        """Encode one prompt that the encoder reads together with control images."""
        return self.encode_text(encoders, [prompt])[0]

    def condition(
        self, text: TextEmbedding, latents: Tensor, model: ModelConfig, dice: torch.Generator
    ) -> TextEmbedding:
        """What `predict` is given for `text` while training, where the job leaves some of it to chance.

        Args:
            text: a batch of embeddings and control images; all but the prompts' numbers are in main memory.
            latents: the clean pictures (B, C, h, w), float32 in main memory.
            model: the job's model section.
            dice: source of randomness, the same at each repetition of a step.
        """
        return text

    def prompt_length(self, source: Source, prompts: Sequence[str], controls: int) -> Length | None:
        """The longest of the prompts as the encoder is given it, with so many control images where it sees them; None
        where every prompt is filled up to the same length."""
        return None

    def guided(self, item: SampleItem) -> bool:
        """Whether a preview is pulled away from a negative prompt, which takes a second pass."""
        return False

    depth: Mapping[str, str]
    """The transformer's configuration key of each group of identical blocks, by the group's attribute name. Groups of
    one key keep the same in training, what is asked of the first of them."""

    def block_counts(self, config: Mapping[str, Any]) -> dict[str, int]:
        """How many blocks each group of a transformer of this configuration has."""
        return {group: int(config[key]) for group, key in self.depth.items()}

    miniature: Mapping[str, Mapping[str, Any]]
    """Changes to the parts' published configurations that make a model which a CPU runs in seconds, to measure it."""

    def build_text_encoders(self, source: Source) -> Any:
        """What `load_text_encoders` returns, from configurations alone: for dry runs, on torch's current device.

        Its tokenizers give full-length ids for any prompt.
        """

    def build_vae(self, source: Source) -> nn.Module:
        """The autoencoder without its weights, for dry runs."""
        from diffusers import AutoencoderKL

        from plafond.families._shared import from_config

        return from_config(AutoencoderKL, source.config("vae"))

    def build_transformer(self, config: Mapping[str, Any]) -> nn.Module:
        """The denoising model without its weights, for dry runs."""

    def native_table(self, transformer: nn.Module) -> list[Entry]:
        """Names of the original release, layer by layer."""

    def kohya_names(self, transformer: nn.Module) -> Mapping[str, str] | None:
        """Layers by their dotted names, as kohya's LoRA files call them; None where other names are usual."""
        return None

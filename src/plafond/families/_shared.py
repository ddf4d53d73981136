"""What several families do alike: loading by diffusers' classes, FLUX's autoencoder, the timestep shift."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plafond.model.checkpoint import assign, read_transformer_file, reading

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from plafond.families._contract import Length
    from plafond.model.checkpoint import Source
    from plafond.model.native import Entry

VAE_FACTOR = 8


def load_part(
    source: Source, part: str, model: Any, *, device: torch.device, dtype: torch.dtype, **options: Any
) -> nn.Module:
    """One frozen model of a diffusers folder; `options` go to ``from_pretrained``."""
    repo = source.repo_of(part)
    # transformers and diffusers call the dtype differently
    name = "dtype" if model.__module__.startswith("transformers") else "torch_dtype"
    loaded = reading(
        f"{repo}/{part}", lambda: model.from_pretrained(repo, subfolder=part, **{name: dtype}, **options)
    )
    return loaded.requires_grad_(False).eval().to(device)  # type: ignore[no-any-return]


def load_tokenizer(source: Source, part: str = "tokenizer") -> Any:
    """The tokenizer in one folder of a checkpoint."""
    from transformers import AutoTokenizer

    return reading(
        f"{source.repo}/{part}", lambda: AutoTokenizer.from_pretrained(source.repo, subfolder=part)
    )


def longest(
    source: Source, prompts: Sequence[str], count: Callable[[Any, str], int], *, around: int, most: int
) -> Length:
    """The lengths of the longest and the shortest prompt.

    Args:
        source: whose tokenizer counts, where it is on this machine.
        prompts: at least one.
        count: the tokens of a prompt by the tokenizer, with what stands around it.
        around: tokens that stand around a prompt at most. Without a tokenizer each byte of a prompt counts as a token,
            since byte pairs, which these tokenizers join, are no shorter.
        most: prompts are cut there.
    """
    from plafond.families._contract import Length

    tokenizer = _tokenizer_at_hand(source)
    if tokenizer is None:
        long = max(len(prompt.encode()) for prompt in prompts) + around
        return Length(tokens=min(long, most), shortest=min(around, most), counted=False)
    found = [min(count(tokenizer, prompt), most) for prompt in prompts]
    return Length(tokens=max(found), shortest=min(found), counted=True)


def _tokenizer_at_hand(source: Source) -> Any:
    """The tokenizer, if nothing has to be downloaded for it."""
    if not source.is_local:
        from huggingface_hub import try_to_load_from_cache

        if not isinstance(try_to_load_from_cache(source.repo, "tokenizer/tokenizer_config.json"), str):
            return None
    return load_tokenizer(source)


def load_denoiser(
    source: Source,
    model: Any,
    table: Callable[[nn.Module], list[Entry]],
    *,
    device: torch.device,
    dtype: torch.dtype,
    part: str = "transformer",
    inside: str = "",
) -> nn.Module:
    """The frozen transformer, from its folder or from a single file.

    Args:
        source: where it is.
        model: its class in diffusers.
        table: the names of the original release, see `Family.native_table`.
        device: where it goes.
        dtype: what it is kept in.
        part: its folder in a checkpoint.
        inside: what stands before its names in a single file that holds more.
    """
    from plafond.model.native import to_diffusers

    def translate(state: dict[str, Tensor], built: nn.Module) -> dict[str, Tensor]:
        shapes = {name: tensor.shape for name, tensor in built.state_dict().items()}
        return to_diffusers(state, table(built), shapes, what="the transformer file")

    if source.transformer_file is None:
        return load_part(source, part, model, device=device, dtype=dtype)
    config = source.config(part)
    built, state = read_transformer_file(
        source.transformer_file, lambda: model.from_config(config), translate, inside
    )
    return assign(built, state, device=device, dtype=dtype).eval()


def from_config(model: Any, config: Mapping[str, Any]) -> nn.Module:
    """One of diffusers' models without its weights."""
    return model.from_config(dict(config)).eval()  # type: ignore[no-any-return]


def encode_kl(vae: nn.Module, pixels: Tensor) -> Tensor:
    """Normalised latents (B, C, H/8, W/8) of an `AutoencoderKL`: the posterior's mean, shifted and scaled."""
    import torch

    config: Any = vae.config
    with torch.no_grad():
        mean = vae.encode(pixels).latent_dist.mode()  # type: ignore[operator]
    return (mean - (config.shift_factor or 0.0)) * config.scaling_factor  # type: ignore[no-any-return]


def token_shift(latent_height: int, latent_width: int) -> float:
    """FLUX's line: mu = 0.5 at 256 tokens of 2×2 latents (256²) and 1.15 at 4,096 (1024²)."""
    tokens = latent_height * latent_width / 4
    return 0.5 + (tokens - 256) * (1.15 - 0.5) / (4096 - 256)


def scheduler(source: Source) -> Any:
    """The checkpoint's own scheduler; a flow-matching Euler one where it names none that diffusers has."""
    import diffusers

    from plafond.memory.residence import host_memory

    config = source.config("scheduler", "scheduler_config.json")
    usual = diffusers.FlowMatchEulerDiscreteScheduler
    with host_memory():  # its tables of noise levels stay there
        return getattr(diffusers, config.get("_class_name", ""), usual).from_config(config)


def whole(side: int, multiple: int) -> int:
    """A preview's side in pixels, cut to a multiple that the pipeline takes."""
    return max(multiple, side // multiple * multiple)

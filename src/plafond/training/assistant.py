"""The training adapter: a LoRA that belongs to the base model while it trains and not when it draws.

Distilled models lose what makes them fast when they are trained as they are. An adapter that undoes the distillation
is merged into the frozen weights, so that training costs nothing more; previews subtract it again, layer by layer, so
that they show what the LoRA does on the distilled model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plafond.errors import JobError
from plafond.language.said import N_
from plafond.memory.residence import host_memory, put
from plafond.model.checkpoint import find_file, reading

KEY = "model.assistant_lora_path"
PREFIXES = ("transformer.", "diffusion_model.")
DOWN, UP = (".lora_A.weight", ".lora_down.weight"), (".lora_B.weight", ".lora_up.weight")


OTHER_LAYERS = N_("{path} holds no layer of this model; the first one is {layer}")
NO_LAYERS = N_("{path} holds no layer of this model")


@dataclass(frozen=True)
class Assistant:
    """An adapter that is merged into a model.

    Args:
        parts: for each layer by its dotted name ``A`` (r, in) and the scaled ``B`` (out, r), in main memory.
    """

    parts: Mapping[str, tuple[Tensor, Tensor]]

    @contextmanager
    def left_out(self, model: nn.Module) -> Iterator[None]:
        """The model as it was published, inside the ``with`` block."""
        hooks = [
            model.get_submodule(name).register_forward_hook(_subtracting(*part))
            for name, part in self.parts.items()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def merge_assistant(model: nn.Module, name: str | None) -> Assistant | None:
    """Add the adapter in a file to the model's weights; nothing without a file.

    Args:
        model: in main memory, with plain layers.
        name: a file, or where it is on the Hugging Face hub: ``owner/name`` or ``owner/name/file``.

    Raises:
        JobError: there is no such file, or it is made for another model.
        CheckpointError: the file cannot be read.
    """
    if name is None:
        return None
    from safetensors.torch import load_file

    path = find_file(name, KEY, "pytorch_lora_weights.safetensors")
    with host_memory():
        saved = _layers(reading(str(path), lambda: load_file(path)))
        layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
        parts = {name: part for name, part in saved.items() if name in layers}
        if not parts:
            found = OTHER_LAYERS if saved else NO_LAYERS
            raise JobError(found, path=path, layer=next(iter(saved), ""), key=KEY)
        with torch.no_grad():
            for layer, (down, up) in parts.items():
                weight = layers[layer].weight
                if weight.shape != (up.shape[0], down.shape[1]):
                    raise JobError(
                        N_("{path}: {layer} is {found}, in this model {expected}"),
                        path=path,
                        layer=layer,
                        found=str((up.shape[0], down.shape[1])),
                        expected=str(tuple(weight.shape)),
                        key=KEY,
                    )
                weight.addmm_(up.to(weight), down.to(weight))
    return Assistant(parts)


def merge_local_assistant(model: nn.Module, name: str | None) -> Assistant | None:
    """As `merge_assistant`, but an adapter that is not on this machine is not fetched and left out.

    Dry runs do so: the adapter takes no memory but a little in previews.
    """
    return merge_assistant(model, name if name and Path(name).expanduser().is_file() else None)


def _subtracting(down: Tensor, up: Tensor) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor]:
    def hook(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        x: Tensor = inputs[0]
        # carried over for each use: previews are few, and the adapter would take room all the time
        first, second = put(down, x.device, x.dtype), put(up, x.device, x.dtype)
        return output - (x @ first.t()) @ second.t()

    return hook


def _layers(saved: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """``A`` and the scaled ``B`` of each layer of a file in PEFT's or kohya's spelling."""
    named: dict[str, Tensor] = {}
    for name, tensor in saved.items():
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        named[name] = tensor
    parts: dict[str, tuple[Tensor, Tensor]] = {}
    for name, down in named.items():
        for first, second in zip(DOWN, UP, strict=True):
            layer = name.removesuffix(first)
            if layer != name and layer + second in named:
                alpha = float(named.get(f"{layer}.alpha", torch.tensor(float(down.shape[0]))))
                parts[layer] = down, named[layer + second] * (alpha / down.shape[0])
    return parts

"""What is trained: a LoRA on the frozen transformer, or the transformer itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from plafond.activations.blocks import PlannedBlock, plan_blocks
from plafond.activations.plan import ActivationPlan, asked_for
from plafond.errors import CheckpointError, JobError
from plafond.families._contract import Expert, Family
from plafond.job.model import ModelConfig
from plafond.job.schema import ProcessConfig
from plafond.language.said import N_
from plafond.memory.kernels import Target
from plafond.memory.residence import host_memory, label, move_in
from plafond.model.checkpoint import reading
from plafond.model.experts import Experts
from plafond.model.kohya import from_kohya
from plafond.model.lora import Convolutions, LoraNetwork, Targets, inject
from plafond.model.native import Entry, lora_from_native
from plafond.model.streaming import Ring, chosen
from plafond.training.adapters import adapter_of
from plafond.training.assistant import Assistant
from plafond.training.checkpoint import Identity
from plafond.training.randomness import derived_seed


@dataclass(frozen=True)
class Trainee:
    """The transformer, with the adapter if there is one, and the parameters that the optimizer sees.

    `blocks` are the transformer's blocks, by group; `assistant` is merged into the weights and left out of previews.
    `leaders` says of each group whose levels it has, `turns` which experts are trained, if there are any.
    """

    transformer: nn.Module
    network: LoraNetwork | None
    parameters: dict[str, nn.Parameter]
    blocks: Mapping[str, Sequence[PlannedBlock]]
    assistant: Assistant | None = None
    leaders: Mapping[str, str] = field(default_factory=dict)
    turns: Turns | None = None

    def move_in(self, device: torch.device, model: ModelConfig) -> None:
        """Put the transformer on the device, but for the blocks that are streamed to it.

        Raises:
            JobError: nothing in the blocks is frozen, so nothing can be streamed.
        """
        if model.layer_offloading:
            blocks = [block for group in self.blocks.values() for block in group]
            places = chosen(len(blocks), model.layer_offloading_transformer_percent)
            if self.network is None:
                raise JobError(
                    N_("only frozen weights can be streamed, and a job without a network trains all of them"),
                    key="model.layer_offloading",
                )
            ring = Ring([blocks[place].block for place in places], device)
            for number, place in enumerate(places):
                blocks[place].stream(ring, number)
        if isinstance(self.transformer, Experts):
            self.transformer.settle(device)
        move_in(self.transformer, device)
        label(self.parameters.values(), "lora")
        self.turn(1)

    def turn(self, step: int) -> tuple[float, float]:
        """Let the expert of a step (counted from 1) take its turn; gives the range of its noise levels."""
        if self.turns is None or not isinstance(self.transformer, Experts):
            return 0.0, 1.0
        expert = self.turns.of(step)
        self.transformer.turn(expert.name)
        return expert.sigmas

    def use(self, plan: ActivationPlan) -> None:
        """Let every block keep what `plan` says, from its next forward pass on."""
        for group, blocks in self.blocks.items():
            levels = plan.levels(self.leaders.get(group, group), len(blocks))
            for block, level in zip(blocks, levels, strict=True):
                block.level = level

    @contextmanager
    def drawing(self, multiplier: float) -> Iterator[None]:
        """The model as previews show it: the adapter scaled, the assistant left out."""
        assistant = self.assistant
        with assistant.left_out(self.transformer) if assistant else nullcontext(), self.strength(multiplier):
            yield

    @contextmanager
    def strength(self, multiplier: float) -> Iterator[None]:
        """Scale the adapter inside the ``with`` block; a full fine-tune has none and is left as it is."""
        if self.network is None or multiplier == 1.0:
            yield
            return
        with self.network.strength(multiplier):
            yield

    def identity(self, process: ProcessConfig) -> Identity:
        """What a saved state must share with this run."""
        return Identity(
            model=process.model.name_or_path,
            network=process.network.type if process.network else "full fine-tune",
            rank=process.network.linear if process.network else None,
            tensors=len(self.parameters),
            optimizer=process.train.optimizer,
        )

    def weights(self) -> dict[str, Tensor]:
        """Copies of the trained weights on the CPU, by name."""
        with host_memory():
            return {
                name: parameter.detach().to("cpu", copy=True) for name, parameter in self.parameters.items()
            }

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Restore what `weights` gave."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(weights[name])


def make_trainee(
    transformer: nn.Module,
    family: Family,
    process: ProcessConfig,
    target: Target,
    assistant: Assistant | None = None,
) -> Trainee:
    """Put the job's adapter on the transformer, or unfreeze it when the job has no ``network``.

    Args:
        transformer: the model.
        family: its family.
        process: the job's process.
        target: the device that runs it or, on ``meta``, is predicted.
        assistant: what is merged into the model.

    Raises:
        JobError: the job's filters leave nothing to train, or its activation plan names no group of blocks.
    """
    network, parameters = _adapt(transformer, family, process)
    blocks = plan_blocks(transformer, target)
    named = asked_for(process).groups
    if unknown := [group for group in named if group not in blocks]:
        raise JobError(
            N_("the model has no {group}; its groups of blocks are {names}"),
            group=unknown[0],
            names=tuple(blocks),
            key="plafond.activation_plan",
        )
    turns = None
    if family.experts:
        turns = Turns(family.trained_experts(process.model), process.train.switch_boundary_every)
    return Trainee(transformer, network, parameters, blocks, assistant, leaders(family), turns)


@dataclass(frozen=True)
class Turns:
    """Which expert is trained when: each for so many steps, then the next."""

    experts: tuple[Expert, ...]
    every: int

    def of(self, step: int) -> Expert:
        """The expert of a step, counted from 1."""
        return self.experts[(max(step, 1) - 1) // self.every % len(self.experts)]


def leaders(family: Family) -> dict[str, str]:
    """Of each group of blocks the first one with the same configuration key."""
    first: dict[str, str] = {}
    return {group: first.setdefault(key, group) for group, key in family.depth.items()}


def _adapt(
    transformer: nn.Module, family: Family, process: ProcessConfig
) -> tuple[LoraNetwork | None, dict[str, nn.Parameter]]:
    if process.network is None:
        if family.experts:
            raise JobError(
                N_("expected a network section; of models that take turns only adapters can be trained"),
                key="network",
            )
        return None, _unfreeze(transformer, family, process)
    rank = process.network.linear
    own = tuple(f"{expert.name}." for expert in family.trained_experts(process.model)) or family.lora_blocks
    convolutions = None
    if family.conv_blocks and process.network.type == "lora":
        convolutions = Convolutions(
            rank=process.network.conv, alpha=process.network.conv_alpha or float(process.network.conv or 1)
        )
        own += family.conv_blocks if process.network.conv else ()
    kwargs = process.network.network_kwargs
    network = inject(
        transformer,
        Targets(
            blocks=own if process.network.transformer_only or family.experts else ("",),
            only=kwargs.only_if_contains,
            ignore=kwargs.ignore_if_contains,
        ),
        rank=rank,
        # AI Toolkit forces alpha = rank on transformers, whatever the file says.
        alpha=process.network.linear_alpha if family.honours_alpha else float(rank),
        dropout=process.network.dropout or 0.0,
        seed=derived_seed(process.training_seed, "lora"),
        kind=adapter_of(process.network),
        convolutions=convolutions,
    )
    if process.network.pretrained_lora_path:
        load_lora_file(network, Path(process.network.pretrained_lora_path), family, transformer)
    return network, network.tensors()


def _unfreeze(transformer: nn.Module, family: Family, process: ProcessConfig) -> dict[str, nn.Parameter]:
    only, ignore = process.model.only_if_contains, process.model.ignore_if_contains
    chosen: dict[str, nn.Parameter] = {}
    for name, parameter in transformer.named_parameters():
        # AI Toolkit's filters see the name with this prefix
        full = f"{family.denoiser}.{name}"
        wanted = (not only or any(part in full for part in only)) and not any(part in full for part in ignore)
        parameter.requires_grad_(wanted)
        if wanted:
            chosen[name] = parameter
    if not chosen:
        raise JobError(
            N_("only_if_contains {only} and ignore_if_contains {ignore} leave no parameter to train"),
            only=str(list(only)),
            ignore=str(list(ignore)),
            key="model.only_if_contains",
        )
    return chosen


def load_lora_file(network: LoraNetwork, path: Path, family: Family, transformer: nn.Module) -> None:
    """Start from a saved LoRA under diffusers' names, or under native ones if the family's layers are not fused.

    Of experts, the file of each is read, whichever of them is named.

    Raises:
        CheckpointError: a file lacks layers, or has another rank.
    """
    table = family.native_table(transformer)
    if not family.experts:
        state = _saved(path, table, family.kohya_names(transformer) or {})
    else:
        trained = {name.partition(".")[0] for name in network.layers}
        stem = path.stem
        for expert in family.experts:
            stem = stem.removesuffix(f"_{expert.name}")
        state = {
            f"{name}.{key.partition('.')[2]}": tensor
            for name in trained
            for key, tensor in _saved(path.with_stem(f"{stem}_{name}"), table, {}).items()
        }
    for name, layer in network.layers.items():
        if layer.alpha != layer.rank and (up := f"{name}.lora_B.weight") in state:
            state[up] = state[up] * (layer.rank / layer.alpha)  # files are read as if the scale were 1
    for name, tensor in network.state_dict().items():
        if name not in state:
            raise CheckpointError(
                N_("{path} has no tensor {name}; does it belong to this model?"), path=path, name=name
            )
        if state[name].shape != tensor.shape:
            raise CheckpointError(
                N_("{path}: {name} has shape {found}, this job's network has {expected}"),
                path=path,
                name=name,
                found=str(tuple(state[name].shape)),
                expected=str(tuple(tensor.shape)),
            )
    network.load_state_dict(state)


def _saved(path: Path, table: Sequence[Entry], kohya: Mapping[str, str]) -> dict[str, Tensor]:
    """A LoRA file's tensors under diffusers' names without prefix."""
    from safetensors.torch import load_file

    saved = reading(str(path), lambda: load_file(path))
    state = {
        name.removeprefix("transformer.").removeprefix("unet.").removeprefix("diffusion_model."): tensor
        for name, tensor in saved.items()
    }
    return {**state, **lora_from_native(state, table), **from_kohya(saved, kohya)}

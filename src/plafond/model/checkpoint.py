"""Where a base model's parts are, and loading them: a Hugging Face id, a local folder, or a single file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from plafond.errors import CheckpointError, JobError
from plafond.language.said import N_

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from plafond.job.model import ModelConfig

Loaded = TypeVar("Loaded")


DENOISERS = ("transformer", "unet")
"""Folders of checkpoints that hold denoising models."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The parts of one base model.

    `repo` is a diffusers-layout folder or a Hugging Face id and holds encoders, VAE, scheduler and configuration;
    `transformer_file`, when given, holds the transformer's weights instead of `repo`, and `transformer_repo` its
    whole folder.
    """

    repo: str
    transformer_file: Path | None = None
    transformer_repo: str | None = None

    def repo_of(self, part: str) -> str:
        """The folder or Hugging Face id that holds this part."""
        return self.transformer_repo or self.repo if part.startswith(DENOISERS) else self.repo

    @property
    def is_local(self) -> bool:
        """Whether `repo` is a folder on this machine."""
        return Path(self.repo).is_dir()

    def config(self, part: str, name: str = "config.json") -> dict[str, Any]:
        """A configuration file of one part: from the folder, the numbers that come with plafond, or the hub."""
        repo = self.repo_of(part)
        shipped = None if Path(repo).is_dir() else shipped_config(repo, f"{part}/{name}")
        if shipped is not None:
            return shipped
        return dict(json.loads(self._file(part, name).read_text(encoding="utf-8")))

    def fingerprint(self, part: str) -> str:
        """What tells this part's weights from another's: name, size and time of local files, or the hub's id."""
        if not self.is_local:
            return f"{self.repo}/{part}"
        files = sorted(path for path in Path(self.repo, part).rglob("*") if path.is_file())
        stats = [(path, path.stat()) for path in files]
        return ";".join(f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}" for path, stat in stats)

    def _file(self, part: str, name: str) -> Path:
        repo = self.repo_of(part)
        if Path(repo).is_dir():
            path = Path(repo, part, name)
            if not path.is_file():
                raise CheckpointError(
                    N_("{folder} has no {file}; is it a complete diffusers folder?"),
                    folder=repo,
                    file=f"{part}/{name}",
                )
            return path
        from huggingface_hub import hf_hub_download

        return Path(reading(repo, lambda: hf_hub_download(repo, f"{part}/{name}")))


@dataclass(frozen=True, kw_only=True)
class Altered(Source):
    """The configurations of a base model with other numbers: a model of another size, without weights.

    Args:
        changes: values by key, by part.
    """

    changes: Mapping[str, Mapping[str, Any]]

    def config(self, part: str, name: str = "config.json") -> dict[str, Any]:
        """The published configuration with the changes."""
        return {**super().config(part, name), **self.changes.get(part, {})}


def shipped_config(repo: str, file: str) -> dict[str, Any] | None:
    """One configuration file of a well-known repository, so that planning works offline; None for other ones."""
    folder = files("plafond.assets").joinpath("configs")
    name: str | None = repo.replace("/", "--")
    while name is not None:
        entry = folder.joinpath(f"{name}.json")
        if not entry.is_file():
            return None
        shipped = json.loads(entry.read_text(encoding="utf-8"))
        if file in shipped["files"]:
            return dict(shipped["files"][file])
        name = shipped.get("like")
    return None


def locate(model: ModelConfig, *, companion: str, denoiser: str = "transformer") -> Source:
    """Sort out what ``model.name_or_path`` names.

    Args:
        model: the job's model section.
        companion: repository that supplies encoders and VAE when only a transformer file is given and
            ``extras_name_or_path`` is not.
        denoiser: the folder of the denoising model.

    Raises:
        JobError: a local path that does not exist.
    """
    name = model.name_or_path
    extras = model.extras_name_or_path
    if name.endswith((".safetensors", ".sft")):
        path = find_file(name, "model.name_or_path")
        return Source(repo=_folder_or_id(extras or companion), transformer_file=path)
    if extras and extras != name:
        return Source(repo=_folder_or_id(extras), transformer_repo=_folder_or_id(name, denoiser))
    return Source(repo=_folder_or_id(name))


def _folder_or_id(name: str, needed: str = "model_index.json") -> str:
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / needed).exists():
            raise JobError(
                N_(
                    "{folder} has no {name}; expected a diffusers folder, a .safetensors file or a Hugging Face id"
                ),
                folder=name,
                name=needed,
                key="model.name_or_path",
            )
        return str(path)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1:
        raise JobError(
            N_("found no folder or file at {path}; a Hugging Face id looks like owner/name"),
            path=name,
            key="model.name_or_path",
        )
    return name


def find_file(name: str, key: str, usual: str = "") -> Path:
    """A file on this machine or on the hub, as ``owner/name/file``.

    Args:
        name: where it is.
        key: the job's key that says so.
        usual: the file of that name is meant where the hub's repository alone is named.

    Raises:
        JobError: there is no such file.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    owner, _, rest = name.partition("/")
    repo, _, inside = rest.partition("/")
    inside = inside or (usual if repo else "")
    if not inside or name.startswith((".", "~", "/")):
        raise JobError(N_("found no file at {path}"), path=name, key=key)
    from huggingface_hub import hf_hub_download

    return Path(reading(name, lambda: hf_hub_download(f"{owner}/{repo}", inside)))


def reading(what: str, load: Callable[[], Loaded]) -> Loaded:
    """Run a loader of a library and turn its failures (file, network, access) into one sentence.

    Raises:
        CheckpointError: the loader failed; the sentence names `what` and the library's own reason.
    """
    from safetensors import SafetensorError

    try:
        return load()
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise CheckpointError(N_("cannot load {what}: {reason}"), what=what, reason=reason) from error


def read_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` file whose names begin with `prefix`."""
    from safetensors import safe_open

    def read() -> dict[str, Tensor]:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118

    return reading(str(path), read)


def read_transformer_file(
    path: Path,
    build: Callable[[], nn.Module],
    translate: Callable[[dict[str, Tensor], nn.Module], dict[str, Tensor]],
    inside: str = "",
) -> tuple[nn.Module, dict[str, Tensor]]:
    """Build a transformer on the meta device and read a single file for it.

    Args:
        path: a ``.safetensors`` file under diffusers' or native names, with or without ComfyUI's
            ``model.diffusion_model.`` prefix.
        build: makes the model from its configuration.
        translate: turns native names into the model's.
        inside: only tensors whose names begin so belong to it.

    Returns:
        The model, its parameters on the meta device, and a complete state dict for it.
    """
    from accelerate import init_empty_weights
    from diffusers.models.modeling_utils import no_init_weights

    # what is computed from the configuration, such as the angles of a rotary embedding, is in no file
    with no_init_weights(), init_empty_weights():
        model = build()
    state = read_tensors(path, inside)
    for prefix in ("model.diffusion_model.", "diffusion_model.", "transformer."):
        if all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    wanted = model.state_dict()
    if not wanted.keys() <= state.keys():
        state = translate(state, model)
    for name, parameter in wanted.items():
        if name not in state:
            raise CheckpointError(
                N_("{path} has no tensor for {name}; is it a complete transformer?"), path=path, name=name
            )
        if state[name].shape != parameter.shape:
            raise CheckpointError(
                N_("{path}: {name} has shape {found}, the model has {expected}"),
                path=path,
                name=name,
                found=str(tuple(state[name].shape)),
                expected=str(tuple(parameter.shape)),
            )
    return model, {name: state[name] for name in wanted}


def loaded_dtype(model: nn.Module, name: str, dtype: torch.dtype) -> torch.dtype:
    """What a parameter or buffer is kept in by a model that is loaded in `dtype`.

    Some parts stay in float32: in diffusers' models always, in those of transformers only beside float16.
    """
    import torch
    from transformers import PreTrainedModel

    kept = set(getattr(model, "_keep_in_fp32_modules", None) or ())
    exact = dtype == torch.float16 or not isinstance(model, PreTrainedModel)
    return torch.float32 if exact and not kept.isdisjoint(name.split(".")) else dtype


def assign(
    model: nn.Module, state: dict[str, Tensor], *, device: torch.device, dtype: torch.dtype
) -> nn.Module:
    """Give a model built on the meta device its weights, tensor by tensor, so that none is held twice."""
    import torch

    for name in list(state):
        tensor = state.pop(name).to(device=device, dtype=loaded_dtype(model, name, dtype))
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        module.register_parameter(attribute, torch.nn.Parameter(tensor, requires_grad=False))
    return model

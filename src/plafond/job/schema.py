"""The job: what one file asks for, typed and resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from plafond.activations.plan import level
from plafond.errors import JobError, PlafondError
from plafond.job.dataset import DatasetConfig
from plafond.job.document import KeyPath
from plafond.job.model import ModelConfig
from plafond.job.network import NetworkConfig
from plafond.job.sample import SampleConfig
from plafond.job.save import LoggingConfig, SaveConfig
from plafond.job.section import EXPECTED, Flag, Section, one_name, refused
from plafond.job.source import Source
from plafond.job.train import TrainConfig
from plafond.job.wording import shown
from plafond.language.said import N_, Said, Value

DEFAULT_SEED = 42

PROCESS_TYPES = ("sd_trainer", "diffusion_trainer", "ui_trainer")


LEVELS = N_(
    'keep, attention, recompute, offload or "selective 2000" (FLOP per kept byte), or these by group of blocks'
)


def _readable(value: object) -> object:
    """Refuse levels that do not exist, and numbers of blocks that are none."""
    for group in value.values() if isinstance(value, dict) else (value,):
        for name, count in (group if isinstance(group, dict) else {str(group): 1}).items():
            try:
                level(str(name))
            except ValueError:
                found = shown(group if name == str(group) else name)
                raise refused(EXPECTED, expected=Said(LEVELS), found=found) from None
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                blocks = Said(N_("at least 1 block for {name}"), {"name": str(name)})
                raise refused(EXPECTED, expected=blocks, found=shown(count))
    return value


LevelPlan = Annotated[str | dict[str, str | dict[str, int]], BeforeValidator(_readable)]


class PlafondConfig(Section):
    """Settings that only plafond has."""

    activation_plan: LevelPlan | None = Field(
        None,
        description="What blocks keep for the backward pass, in place of train.gradient_checkpointing: a level, or "
        "for each group of blocks a level or numbers of blocks by level, first to last.",
    )
    tiled_previews: Flag = Field(
        False, description="Decode previews in overlapping tiles, which takes less memory and little time."
    )
    latent_cache_dir: str | None = Field(
        None, description="Folder for cached latents and text embeddings; beside the data when not given."
    )


class ProcessConfig(Section):
    """One training run: an item of `config.process`."""

    type: Annotated[str, one_name(N_("a process type"), *PROCESS_TYPES)] = Field(
        description="Kind of process."
    )
    name: str | None = Field(
        None, min_length=1, description="Name of this run's folder and files; the job's when not given."
    )
    training_folder: str = Field("output", description="Folder in which the run's own folder is made.")
    device: str = Field("cuda", description="Device of the run, unless the command line names one.")
    trigger_word: str | None = Field(None, description="Word that stands for what is learnt.")
    training_seed: int = Field(DEFAULT_SEED, ge=0, le=2**63 - 1, description="Seed of everything random.")
    network: NetworkConfig | None = Field(
        None, description="The adapter; without it the whole model is trained."
    )
    save: SaveConfig = Field(SaveConfig(), description="When and how weights are saved.")
    logging: LoggingConfig = Field(LoggingConfig(), description="How often the loss is reported.")
    datasets: tuple[DatasetConfig, ...] = Field((), description="The folders of training data.")
    train: TrainConfig = Field(TrainConfig(), description="The optimisation.")
    model: ModelConfig = Field(description="The frozen base model.")
    sample: SampleConfig = Field(SampleConfig(), description="The previews.")
    plafond: PlafondConfig = Field(PlafondConfig(), description="Settings that only plafond has.")

    @property
    def caches_text(self) -> bool:
        """Whether captions are encoded before training, for the whole job or by every data set."""
        return self.train.cache_text_embeddings or all(data.cache_text_embeddings for data in self.datasets)

    @property
    def encodes_live(self) -> bool:
        """Whether captions are encoded while training, by text encoders that stay on the device."""
        return not (self.caches_text or self.train.unload_text_encoder)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job file: its name, its runs and where each value stands.

    Args:
        name: name of the run folder and of the saved files.
        meta: copied into the metadata of saved files.
        processes: the runs, one after the other.
        path: the file that was read.
        text: the file as it stands on disk, before any replacement.
        remarks: warnings, one sentence each, with file, line and key.
        lines: 1-based line of each key, by its path from the top of the file.
        overrides: settings from the command line, by the path of the value they set.
    """

    name: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    processes: tuple[ProcessConfig, ...]
    path: Path
    text: str
    remarks: tuple[Said, ...] = ()
    lines: Mapping[KeyPath, int] = field(default_factory=dict, repr=False)
    overrides: Mapping[KeyPath, str] = field(default_factory=dict, repr=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The remarks as texts, in English."""
        return tuple(map(str, self.remarks))

    def error(self, key: str, text: str | Said, /, *, process: int = 0, **values: Value) -> PlafondError:
        """An error about one value, with its file and line: for what only a later stage can know.

        Args:
            key: dotted key inside the process, as ``model.arch`` or ``datasets.0.folder_path``.
            text: what was found and what is expected.
            process: index of the process.
            values: what stands in the sentence.
        """
        parts = [int(part) if part.isdecimal() else part for part in key.split(".")]
        source = Source(self.path, self.lines, self.overrides)
        return source.error(("config", "process", process, *parts), text, **values)

    @contextmanager
    def placing(self, process: int) -> Iterator[None]:
        """Give errors about a process's values the file and line that only the job knows."""
        try:
            yield
        except JobError as error:
            if error.file is not None or error.key is None:
                raise
            raise self.error(error.key, error.message, process=process) from error

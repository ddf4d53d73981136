"""One process of a job: its raw sections become typed ones."""

from __future__ import annotations

from typing import Any

from plafond.job import resolve
from plafond.job.dataset import DatasetConfig
from plafond.job.document import KeyPath
from plafond.job.keys import take_keys
from plafond.job.network import NetworkConfig, NetworkKwargs
from plafond.job.sample import SampleConfig
from plafond.job.save import LoggingConfig, SaveConfig
from plafond.job.schema import PlafondConfig, ProcessConfig
from plafond.job.section import EXPECTED, Section
from plafond.job.sentences import QUOTE
from plafond.job.source import Source
from plafond.job.train import EmaConfig, TrainConfig
from plafond.job.wording import shown
from plafond.language.said import N_, Said


class ProcessReader:
    """Reads processes; what is wrong goes to the source."""

    def __init__(self, source: Source, *, strict: bool):
        self.source, self.strict = source, strict

    def read(self, raw: dict[str, Any], path: KeyPath) -> ProcessConfig | None:
        """Read one process; note what is wrong and return None if anything is."""
        values = self._take(raw, "", path)
        trigger = values.get("trigger_word")
        train = self._mapping(values, "train", path)
        sections: dict[str, Any] = {
            "train": self._train(train, (*path, "train")),
            "network": self._network(values, path),
            "save": self._plain(SaveConfig, values, "save", path),
            "plafond": self._plain(PlafondConfig, values, "plafond", path),
            "logging": self._logging(raw, values, path),
            "datasets": self._datasets(values, train, trigger, path),
            "sample": self._sample(values, trigger if isinstance(trigger, str) else "", path),
            "model": None,
        }
        if "model" in values:
            model = self._take(self._mapping(values, "model", path), "model", (*path, "model"))
            sections["model"] = resolve.model(model, (*path, "model"), self.source)
        else:
            self.source.problem(path, N_("expected a model with name_or_path"))
        for key in sections:
            values.pop(key, None)
        if sections["network"] is None:
            del sections["network"]
        if any(section is None for section in sections.values()):
            # Some section is wrong already; still look at the plain keys of the process.
            stand_in = {"model": {"name_or_path": "x"}}
            resolve.build(ProcessConfig, {**values, **stand_in}, path, self.source)
            return None
        return resolve.build(ProcessConfig, {**values, **sections}, path, self.source)

    def _take(self, raw: dict[str, Any], section: str, path: KeyPath) -> dict[str, Any]:
        return take_keys(raw, section, path, self.source, strict=self.strict)

    def _mapping(self, values: dict[str, Any], key: str, path: KeyPath) -> dict[str, Any]:
        value = values.get(key, {})
        if isinstance(value, dict):
            return value
        self._unexpected((*path, key), N_("a mapping"), value)
        return {}

    def _unexpected(self, path: KeyPath, expected: str, value: object) -> None:
        self.source.problem(path, EXPECTED, expected=Said(expected), found=shown(value))

    def _list(self, values: dict[str, Any], key: str, path: KeyPath, expected: str) -> list[Any]:
        value = values.get(key, [])
        if isinstance(value, list):
            return value
        self._unexpected((*path, key), expected, value)
        return []

    def _plain(self, model: type[Section], values: dict[str, Any], key: str, path: KeyPath) -> Section | None:
        at = (*path, key)
        return resolve.build(model, self._take(self._mapping(values, key, path), key, at), at, self.source)

    def _train(self, raw: dict[str, Any], path: KeyPath) -> TrainConfig | None:
        values = self._take(raw, "train", path)
        resolve.accumulation(values, path, self.source)
        if "ema_config" in values:
            at: KeyPath = (*path, "ema_config")
            ema = self._take(self._mapping(values, "ema_config", path), "train.ema_config", at)
            values["ema_config"] = resolve.build(EmaConfig, ema, at, self.source) or EmaConfig()
        return resolve.build(TrainConfig, values, path, self.source)

    def _network(self, values: dict[str, Any], path: KeyPath) -> NetworkConfig | None:
        if "network" not in values:
            return None
        at: KeyPath = (*path, "network")
        network = self._take(self._mapping(values, "network", path), "network", at)
        if "network_kwargs" in network:
            inner: KeyPath = (*at, "network_kwargs")
            kwargs = self._take(self._mapping(network, "network_kwargs", at), "network.network_kwargs", inner)
            network["network_kwargs"] = (
                resolve.build(NetworkKwargs, kwargs, inner, self.source) or NetworkKwargs()
            )
        return resolve.build(NetworkConfig, network, at, self.source)

    def _logging(self, raw: dict[str, Any], values: dict[str, Any], path: KeyPath) -> Section | None:
        logging = raw.get("logging")
        if isinstance(logging, dict) and "log_every" in logging and logging["log_every"] is None:
            # The one null that is not the default: AI Toolkit then reports every step.
            values["logging"] = {**logging, "log_every": 1}
        return self._plain(LoggingConfig, values, "logging", path)

    def _datasets(
        self, values: dict[str, Any], train: dict[str, Any], trigger: object, path: KeyPath
    ) -> tuple[Section, ...] | None:
        built = []
        items = self._list(values, "datasets", path, N_("a list of datasets"))
        for index, raw in enumerate(items):
            at: KeyPath = (*path, "datasets", index)
            if not isinstance(raw, dict):
                self._unexpected(at, N_("a mapping"), raw)
                continue
            item = resolve.dataset(self._take(raw, "datasets", at), train, trigger)
            built.append(resolve.build(DatasetConfig, item, at, self.source))
        ready = tuple(item for item in built if item is not None)
        return ready if len(ready) == len(items) else None

    def _sample(self, values: dict[str, Any], trigger: str, path: KeyPath) -> SampleConfig | None:
        at: KeyPath = (*path, "sample")
        sample = self._take(self._mapping(values, "sample", path), "sample", at)
        prompts = sample.pop("prompts", [])
        items: list[tuple[KeyPath, dict[str, Any]]] = []
        if "samples" in sample:
            if prompts:
                self.source.warn((*at, "prompts"), resolve.overruled("samples"))
            for index, raw in enumerate(self._list(sample, "samples", at, N_("a list of mappings"))):
                item_path: KeyPath = (*at, "samples", index)
                if isinstance(raw, dict):
                    items.append((item_path, self._take(raw, "sample.samples", item_path)))
                else:
                    self._unexpected(item_path, N_("a mapping"), raw)
            del sample["samples"]
        else:
            listed = self._list({"prompts": prompts}, "prompts", at, N_("a list of prompts"))
            for index, prompt in enumerate(listed):
                prompt_path: KeyPath = (*at, "prompts", index)
                if isinstance(prompt, str):
                    items.append((prompt_path, {"prompt": prompt}))
                else:
                    wrong = Said(EXPECTED, {"expected": Said(N_("a text")), "found": shown(prompt)})
                    number = isinstance(prompt, (int, float))
                    self.source.problem(prompt_path, Said(QUOTE, {"text": wrong}) if number else wrong)
        config = resolve.build(SampleConfig, sample, at, self.source)
        if config is None:
            return None
        return config.model_copy(update={"samples": resolve.samples(config, items, trigger, self.source)})

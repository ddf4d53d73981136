"""Reading a job: file → text → plain data → typed sections, with every complaint tied to its line."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from plafond.errors import JobError
from plafond.job.checks import contradictions
from plafond.job.document import Document, DocumentError, KeyPath
from plafond.job.frames import warn_of_frames
from plafond.job.keys import NOT_USED_BECAUSE, UNKNOWN, UNKNOWN_IGNORED
from plafond.job.not_yet import not_yet
from plafond.job.overrides import apply_overrides
from plafond.job.process import ProcessReader
from plafond.job.schema import PROCESS_TYPES, Job
from plafond.job.section import EXPECTED
from plafond.job.sentences import QUOTE
from plafond.job.source import Source, key_of
from plafond.job.text import find_file, parse, read_text
from plafond.job.wording import hinted, nearest, safe, shown
from plafond.language.said import N_, Said

OTHER_JOBS = frozenset({"train", "extract", "mod", "generate"})
OTHER_PROCESSES = frozenset(
    {
        *("textual_inversion_trainer", "concept_slider", "image_reference_slider_trainer"),
        *("ultimate_slider_trainer", "concept_replacer", "reference_generator", "pure_lora_generator"),
        *("batch_img2img", "dataset_tools", "sync_from_collection", "super_tagger", "AceStepCaptioner"),
        *("Qwen3VLCaptioner", "Qwen3OmniCaptioner", "Ideogram4Captioner", "example_merge_extension"),
        *("slider", "slider_old", "lora_hack", "vae", "esrgan", "rescale_sd", "reference"),
    }
)
TOP_KEYS = ("job", "config", "meta")
CONFIG_KEYS = ("name", "process")
OTHER_JOB = N_('the job "{name}" of AI Toolkit is not supported; supported: {names}')
OTHER_TYPE = N_('the process type "{name}" of AI Toolkit is not supported; supported: {names}')
OTHER_CONFIG_KEYS = frozenset({"device", "training_folder", "log_dir", "training_seed", "is_v2"})


def load_job(
    path: Path | str,
    *,
    name: str | None = None,
    overrides: Sequence[str] = (),
    strict: bool = False,
    env: Mapping[str, str] | None = None,
) -> Job:
    """Read a job file.

    Args:
        path: the file, or the name of one inside `config/`.
        name: the job's name instead of `config.name`, also put where the file says `[name]`.
        overrides: settings such as ``train.steps=30``, applied to every process.
        strict: make unknown keys an error instead of a warning.
        env: variables for `${VAR}`; the process's own when not given.

    Raises:
        JobError: the file cannot be run as written; the message names the line and key.
        UsageError: an override cannot be applied.
    """
    file = find_file(Path(path))
    return job_of(read_text(file), file, name=name, overrides=overrides, strict=strict, env=env)


def job_of(
    text: str,
    file: Path,
    *,
    name: str | None = None,
    overrides: Sequence[str] = (),
    strict: bool = False,
    env: Mapping[str, str] | None = None,
) -> Job:
    """Read a job from a text that stands in `file`, or could; the rest is as for `load_job`."""
    try:
        document = parse(text, file, os.environ if env is None else env)
    except DocumentError as error:
        raise JobError(safe(error.said), file=file, line=error.line, key=key_of(error.path)) from None
    return _Reader(file, text, document, strict=strict).read(name, overrides)


class _Reader:
    """Reads one document into a job."""

    def __init__(self, file: Path, text: str, document: Document, *, strict: bool):
        self.file, self.text, self.data, self.strict = file, text, document.data, strict
        self.source = Source(file, document.lines)

    def read(self, name: str | None, overrides: Sequence[str]) -> Job:
        config, processes = self._top()
        name = self._name(config, name)
        self.source.overrides = apply_overrides(processes, overrides)
        _replace(self.data, "[name]", name)
        self._refuse_infinite(processes)
        reader = ProcessReader(self.source, strict=self.strict)
        built = [reader.read(raw, ("config", "process", index)) for index, raw in enumerate(processes)]
        self.source.raise_first()
        ready = tuple(process for process in built if process is not None)
        for index, process in enumerate(ready):
            contradictions(process, ("config", "process", index), self.source)
            not_yet(process, ("config", "process", index), self.source)
            warn_of_frames(process, ("config", "process", index), self.source)
        self.source.raise_first()
        return Job(
            name=name,
            meta=self.data.get("meta") or {},
            processes=ready,
            path=self.file,
            text=self.text,
            remarks=self.source.warnings,
            lines=self.source.lines,
            overrides=self.source.overrides,
        )

    def _top(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Check the outer layers; return `config` and its processes."""
        data = self.data
        if data is None:
            raise JobError(N_("the file is empty"), file=self.file)
        if not isinstance(data, dict):
            expected = Said(N_("a mapping with job and config"))
            raise JobError(EXPECTED, expected=expected, found=shown(data), file=self.file)
        self._unknown(data, (), TOP_KEYS, frozenset())
        for key in ("job", "config"):
            if data.get(key) is None:
                self.source.fail((), N_('expected a key "{key}" at the top of the file'), key=key)
        self._one_of(data["job"], ("job",), ("extension",), OTHER_JOBS, OTHER_JOB)
        config, meta = data["config"], data.get("meta")
        if not isinstance(config, dict):
            self._unexpected(("config",), N_("a mapping with name and process"), config)
        if meta is not None and not isinstance(meta, dict):
            self._unexpected(("meta",), N_("a mapping"), meta)
        self._unknown(config, ("config",), CONFIG_KEYS, OTHER_CONFIG_KEYS)
        processes = config.get("process")
        if not isinstance(processes, list) or not processes:
            self._unexpected(("config", "process"), N_("a list of processes"), processes)
        for index, process in enumerate(processes):
            path: KeyPath = ("config", "process", index)
            if not isinstance(process, dict):
                self._unexpected(path, N_("a mapping"), process)
            if process.get("type") is None:
                self.source.fail(path, N_("expected a type, one of {names}"), names=PROCESS_TYPES)
            self._one_of(process["type"], (*path, "type"), PROCESS_TYPES, OTHER_PROCESSES, OTHER_TYPE)
        self.source.raise_first()
        return config, processes

    def _unknown(self, raw: dict[str, Any], path: KeyPath, own: Sequence[str], known: frozenset[str]) -> None:
        for key, value in raw.items():
            if key in own:
                continue
            if key in known:
                if value is not None:
                    inside = Said(N_("it belongs inside the process"))
                    self.source.warn((*path, key), NOT_USED_BECAUSE, why=inside)
                continue
            unknown = hinted(Said(UNKNOWN if self.strict else UNKNOWN_IGNORED), nearest(key, own))
            (self.source.problem if self.strict else self.source.warn)((*path, key), unknown)

    def _one_of(
        self, value: object, path: KeyPath, own: Sequence[str], known: frozenset[str], other: str
    ) -> None:
        if value in own:
            return
        if isinstance(value, str) and value in known:
            self.source.fail(path, other, name=value, names=tuple(own))
        near = nearest(value, own) if isinstance(value, str) else None
        expected = own[0] if len(own) == 1 else Said(N_("one of {names}"), {"names": tuple(own)})
        self.source.fail(path, hinted(Said(EXPECTED, {"expected": expected, "found": shown(value)}), near))

    def _unexpected(self, path: KeyPath, expected: str, value: object) -> NoReturn:
        self.source.fail(path, EXPECTED, expected=Said(expected), found=shown(value))

    def _name(self, config: dict[str, Any], name: str | None) -> str:
        path: KeyPath = ("config", "name")
        found = config.get("name") if name is None else name
        if found is None:
            self.source.fail(("config",), N_("expected a name for the job, as name or with --name"))
        if not isinstance(found, str):
            wrong = Said(EXPECTED, {"expected": Said(N_("a text")), "found": shown(found)})
            self.source.fail(path, QUOTE, text=wrong)
        if not found.strip() or found in (".", "..") or any(mark in found for mark in "/\\\0"):
            self._unexpected(path, N_("a name that can be a folder's"), found)
        if "[name]" in found:
            self.source.fail(path, N_("[name] stands for the job's name; give one with --name"))
        config["name"] = found
        return found

    def _refuse_infinite(self, processes: list[dict[str, Any]]) -> None:
        for index, process in enumerate(processes):
            for path, value in _leaves(process, ("config", "process", index)):
                if isinstance(value, float) and not math.isfinite(value):
                    expected = Said(N_("a finite number"))
                    self.source.problem(path, EXPECTED, expected=expected, found=str(value))


def _replace(data: Any, mark: str, text: str) -> None:
    """Put `text` where `mark` stands in any text inside `data`."""
    for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        if isinstance(value, str):
            data[key] = value.replace(mark, text)
        elif isinstance(value, (dict, list)):
            _replace(value, mark, text)


def _leaves(data: Any, path: KeyPath) -> Iterator[tuple[KeyPath, object]]:
    if isinstance(data, (dict, list)):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _leaves(value, (*path, key))
    else:
        yield path, data

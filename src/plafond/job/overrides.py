"""`--set train.steps=30`: values from the command line that take the place of those in the file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_origin

from plafond.errors import UsageError
from plafond.job.document import DocumentError, KeyPath, read_yaml
from plafond.job.keys import LISTS, SECTIONS, SectionKeys, sections_of_keys
from plafond.job.source import OVERRIDE
from plafond.job.wording import hinted, nearest, printable, shown
from plafond.language.said import N_, Said, Value

# When one of these is set, the other spellings of the same thing in the file must not win over it.
_RIVALS = {
    "train.gradient_accumulation": ("gradient_accumulation_steps",),
    "train.gradient_accumulation_steps": ("gradient_accumulation",),
    "train.unet_lr": ("lr",),
    "network.linear": ("rank",),
    "network.alpha": ("linear_alpha",),
    "datasets.caption_type": ("caption_ext",),
    "datasets.dataset_path": ("folder_path",),
    "datasets.control_path": ("control_path_1", "control_path_2", "control_path_3"),
    "model.auto_memory": ("layer_offloading",),
    "sample.prompts": ("samples",),
}


def apply_overrides(processes: list[dict[str, Any]], overrides: Iterable[str]) -> dict[KeyPath, str]:
    """Write `dotted.key=value` settings into every process.

    Returns:
        The path of each value that was set and the setting as the user wrote it.

    Raises:
        UsageError: a setting is malformed, or its key does not exist.
    """
    paths: dict[KeyPath, str] = {}
    for setting in overrides:
        key, equals, text = setting.partition("=")
        setting = printable(setting)
        if not equals or not key.strip():
            raise _wrong(setting, N_("expected KEY=VALUE, as in train.steps=30"))
        parts: KeyPath = tuple(int(part) if part.isdecimal() else part for part in key.strip().split("."))
        rivals = _check(parts, setting)
        try:
            value = read_yaml(text).data
        except DocumentError:
            value = text.strip()
        for index, process in enumerate(processes):
            _write(process, parts, value, rivals, setting)
            paths[("config", "process", index, *parts)] = setting
    return paths


def _check(parts: KeyPath, setting: str) -> tuple[str, ...]:
    """Make sure that the key exists; return the keys that would compete with it."""
    if parts[:2] == ("config", "name"):
        raise _wrong(setting, N_("use --name instead"))
    section = ""
    rest = list(parts)
    while True:
        key = rest.pop(0)
        keys = SECTIONS[section]
        name = f"{section}.{key}".lstrip(".")
        if key not in keys.all():
            unknown = Said(UNKNOWN_KEY, {"name": name})
            raise _wrong(setting, hinted(unknown, _inside_a_process(parts) or _nearest(str(key), section)))
        if rest and name not in SECTIONS and not _holds(keys, str(key), rest[0]):
            raise _wrong(setting, UNKNOWN_KEY, name=f"{name}.{rest[0]}")
        if not rest or name not in SECTIONS:
            return _RIVALS.get(name, ())
        section = name
        if name in LISTS:
            index = rest.pop(0)
            if not isinstance(index, int):
                number = N_("expected a number after {name}, as in {name}.0.{key}")
                raise _wrong(setting, number, name=name, key=index)
            if not rest:
                return ()


UNKNOWN_KEY = N_("unknown key {name}")


def _wrong(setting: str, text: str | Said, /, **values: Value) -> UsageError:
    return UsageError(OVERRIDE, setting=setting, text=Said.of(text, values))


def _holds(keys: SectionKeys, key: str, inner: str | int) -> bool:
    """Whether a key's value may have something inside: free settings, or the items of a list."""
    info = keys.model.model_fields.get(key)
    return isinstance(inner, int) or info is None or get_origin(info.annotation) is dict


def _inside_a_process(parts: KeyPath) -> str | None:
    """The key as it is set, of one that is written as it stands in the file: config.process.0.train.steps."""
    if parts[:2] != ("config", "process"):
        return None
    return ".".join(str(part) for part in parts[2:]).lstrip("0123456789.") or None


def _nearest(key: str, section: str) -> str | None:
    prefix = f"{section}." if section else ""
    near = nearest(key, SECTIONS[section].all())
    if near is None:
        homes = sections_of_keys()
        near = nearest(key, homes, cutoff=0.8)
        prefix = f"{homes[near]}." if near and homes[near] else ""
    if near is None:
        return None
    # A list needs the number of an item in front of the key.
    for name in LISTS:
        prefix = prefix.replace(f"{name}.", f"{name}.0.") if prefix == f"{name}." else prefix
    return f"{prefix}{near}"


def _write(
    process: dict[str, Any], parts: KeyPath, value: object, rivals: Iterable[str], setting: str
) -> None:
    if parts[:2] == ("sample", "samples"):
        _prompts_to_samples(process.get("sample"))
    target: Any = process
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(part, int):
            if not isinstance(target, list) or part >= len(target):
                at = ".".join(map(str, parts[:depth]))
                count = len(target) if isinstance(target, list) else 0
                raise _wrong(setting, N_("{key} has {count} items, counted from 0"), key=at, count=count)
        elif not isinstance(target, dict):
            at = ".".join(map(str, parts[:depth]))
            value = N_("{key} is {found} in the job, not a mapping")
            raise _wrong(setting, value, key=at, found=shown(target))
        if last:
            target[part] = value
        elif isinstance(part, int) or target.get(part) is not None:
            target = target[part]
        else:
            target[part] = {}
            target = target[part]
    if isinstance(target, dict):
        for rival in rivals:
            target.pop(rival, None)


def _prompts_to_samples(sample: object) -> None:
    """Let single previews be addressed although the file has the older list of prompts."""
    if not isinstance(sample, dict) or sample.get("samples") is not None:
        return
    if isinstance(sample.get("prompts"), list):
        sample["samples"] = [{"prompt": prompt} for prompt in sample.pop("prompts")]

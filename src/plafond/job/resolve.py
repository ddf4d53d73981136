"""From the keys in the file to the fields of a section: aliases, old spellings, defaults that follow."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError

from plafond.errors import BEHIND
from plafond.job.archs import ALIASES, LEGACY_FLAGS, archs
from plafond.job.document import KeyPath
from plafond.job.keys import NOT_USED
from plafond.job.model import ModelConfig
from plafond.job.prompts import FlagError, PromptFlags, read_flags
from plafond.job.sample import SampleConfig, SampleItem
from plafond.job.section import EXPECTED, Section
from plafond.job.sentences import sentence
from plafond.job.source import Source
from plafond.job.wording import hinted, nearest, shown
from plafond.language.said import N_, Said

S = TypeVar("S", bound=Section)

Values = dict[str, Any]


def build(model: type[S], values: Values, path: KeyPath, source: Source) -> S | None:
    """Make a section of its values; note what is wrong with them and return None if anything is."""
    values, origin = merge_inputs(model, values, path, source)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            field, *rest = detail["loc"] or ("",)
            at = (*path, origin.get(str(field), field))
            # Pydantic also names the type it tried; only what stands in the file is a place.
            for part in rest:
                at = (*at, part) if (*at, part) in source.lines else at
            source.problem(at if detail["type"] != "missing" else (*path, field), sentence(detail, model))
        return None


def merge_inputs(
    model: type[Section], values: Values, path: KeyPath, source: Source
) -> tuple[Values, dict[str, str]]:
    """Put each alias into its field. Returns the fields and the key in the file that each came from."""
    merged = {key: value for key, value in values.items() if key not in model.inputs}
    origin: dict[str, str] = {}
    for key, declared in model.inputs.items():
        if key not in values:
            continue
        field, used, unused = declared.into, declared.into, key
        if declared.wins or field not in merged:
            used, unused = key, field
        if merged.get(field, values[key]) != values[key]:
            source.warn((*path, unused), overruled(used))
        if used == key:
            merged[field] = values[key]
            origin[field] = key
    return merged, origin


def overruled(used: str) -> Said:
    """Say that one of two keys for the same thing does not count."""
    return Said(N_("not used, because {key} is given as well"), {"key": used})


def accumulation(values: Values, path: KeyPath, source: Source) -> None:
    """Merge the two spellings of gradient accumulation, which may not both ask for something."""
    new, old = values.get("gradient_accumulation"), values.get("gradient_accumulation_steps")
    if new is None or old is None:
        return
    if new != 1 and old != 1:
        source.problem(
            (*path, "gradient_accumulation_steps"),
            N_(
                "gradient_accumulation ({new}) and gradient_accumulation_steps ({old}) are both set; keep only"
                " gradient_accumulation"
            ),
            new=shown(new),
            old=shown(old),
        )
    del values["gradient_accumulation" if new == 1 and new is not True else "gradient_accumulation_steps"]


def arch(values: Values, path: KeyPath, source: Source) -> None:
    """Find the architecture from `arch` (with a variant after a colon) or from the legacy flags."""
    flags = [flag for flag in LEGACY_FLAGS if flag in values]
    for flag in flags:
        if values[flag] not in (True, False):
            expected = Said(N_("true or false"))
            source.problem((*path, flag), EXPECTED, expected=expected, found=shown(values[flag]))
    named = {LEGACY_FLAGS[flag]: flag for flag in flags if values.pop(flag) in (True, 1)}
    if "arch" in values:
        if isinstance(values["arch"], str):
            _split_arch(values, path, source)
        for other, flag in named.items():
            if other != values["arch"]:
                source.warn((*path, flag), overruled("arch"))
        return
    # SSD and Vega are cut-down SDXL, Sigma is a PixArt: files set both flags.
    if "ssd" in named or "vega" in named:
        named.pop("sdxl", None)
    if "pixart_sigma" in named:
        named.pop("pixart", None)
    if len(named) > 1:
        first, second = list(named.values())[:2]
        both = N_("{first} and {second} are both true; write one arch instead")
        source.problem((*path, second), both, first=first, second=second)
    if named:
        values["arch"] = next(iter(named))


def _split_arch(values: Values, path: KeyPath, source: Source) -> None:
    name, _, tag = values["arch"].partition(":")
    name = ALIASES.get(name, name)
    known = archs()
    if name not in known:
        expected = Said(N_("the name of an architecture"))
        wrong = Said(EXPECTED, {"expected": expected, "found": shown(name)})
        source.problem((*path, "arch"), hinted(wrong, nearest(name, [*known, *ALIASES])))
    values["arch"] = name
    if tag:
        values["arch_tag"] = tag


def model(values: Values, path: KeyPath, source: Source) -> ModelConfig | None:
    """Resolve the base model."""
    arch(values, path, source)
    if values.get("quantize") in (True, False):
        values.setdefault("quantize_te", values["quantize"])
    return build(ModelConfig, values, path, source)


def dataset(values: Values, train_values: Values, trigger_word: object) -> Values:
    """Resolve the parts of a dataset that have several spellings or follow the process."""
    extension = values.pop("caption_type", None)
    extension = values.get("caption_ext", extension)
    if isinstance(extension, str):
        extension = extension if extension.startswith(".") else f".{extension}"
    if extension is not None:
        values["caption_ext"] = extension
    more = [
        values.pop(key) for key in ("control_path_1", "control_path_2", "control_path_3") if key in values
    ]
    if more:
        first = values.get("control_path", [])
        values["control_path"] = [*(first if isinstance(first, list) else [first]), *more]
    if isinstance(trigger_word, str):
        values.setdefault("trigger_word", trigger_word)
    if train_values.get("cache_text_embeddings") in (True, 1):
        values["cache_text_embeddings"] = True
    return values


def samples(
    config: SampleConfig, items: list[tuple[KeyPath, Values]], trigger_word: str, source: Source
) -> tuple[SampleItem, ...]:
    """Fill in each preview: its own values, its prompt's flags, then the section's.

    A seed given for one preview is also the seed of those after it, until another is given; with `walk_seed`
    it is the section's seed plus the preview's index instead. A seed of -1 stays random. A seed in a prompt
    flag is for that prompt alone.
    """
    result = []
    running = config.seed
    inherited = {name: getattr(config, name) for name in SampleItem.model_fields if hasattr(config, name)}
    for index, (path, own) in enumerate(items):
        if config.walk_seed and config.seed >= 0:
            running = config.seed + index
        if build(SampleItem, own, path, source) is None:
            continue
        running = own.get("seed", running)
        # An item of the older list of prompts is the prompt itself.
        prompt_path = path if path[-2] == "prompts" else (*path, "prompt")
        flags = _flags(own.get("prompt", ""), prompt_path, source)
        values = {**inherited, **own, "seed": running, **flags.values}
        values["prompt"] = flags.prompt.replace("[trigger]", trigger_word)
        item = build(SampleItem, values, path, source)
        if item is not None:
            result.append(item)
    return tuple(result)


def _flags(prompt: str, path: KeyPath, source: Source) -> PromptFlags:
    """Read a prompt's flags and check the values they set."""
    try:
        flags = read_flags(prompt)
    except FlagError as error:
        source.problem(path, error.said)
        return PromptFlags(prompt)
    for flag in flags.unused:
        source.warn(path, BEHIND, place=flag, text=Said(NOT_USED))
    try:
        SampleItem.model_validate(flags.values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            flag = flags.names[str(detail["loc"][0])]
            source.problem(path, BEHIND, place=flag, text=sentence(detail, SampleItem))
        return PromptFlags(flags.prompt)
    return flags

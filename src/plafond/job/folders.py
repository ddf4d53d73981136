"""Data that a job names and that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from plafond.errors import PlafondError
from plafond.job.document import KeyPath
from plafond.job.schema import Job, ProcessConfig
from plafond.job.source import Source
from plafond.job.wording import entries, exists, expanded, hinted, nearest
from plafond.language.said import N_, Said


def missing_folders(job: Job) -> list[PlafondError]:
    """Name every data folder and control image of a preview that does not exist, each once."""
    source = Source(job.path, job.lines, job.overrides)
    errors: list[PlafondError] = []
    named: set[str] = set()
    for index, process in enumerate(job.processes):
        for path, written, is_folder in _places(process, source, ("config", "process", index)):
            place = expanded(written)
            if written in named or exists(place):
                continue
            named.add(written)
            text = N_("no such folder: {path}") if is_folder else N_("no such image: {path}")
            errors.append(source.error(path, hinted(Said(text, {"path": written}), _near(place))))
    return errors


def _places(process: ProcessConfig, source: Source, path: KeyPath) -> Iterator[tuple[KeyPath, str, bool]]:
    """Every path that must exist: where it stands in the job, the path, whether it is a folder."""
    for index, dataset in enumerate(process.datasets):
        at: KeyPath = (*path, "datasets", index)
        yield (*at, "folder_path"), dataset.folder_path, True
        written = [
            *((*at, "control_path", n) for n in range(len(dataset.control_path))),
            (*at, "control_path"),
        ]
        written += [(*at, f"control_path_{n}") for n in (1, 2, 3)]
        present = [key for key in written if key in source.lines and not _is_list(key, source)]
        for number, folder in enumerate(dataset.control_path):
            yield present[number] if number < len(present) else (*at, "control_path"), folder, True
        for key in ("mask_path", "inpaint_path"):
            if (folder := getattr(dataset, key)) is not None:
                yield (*at, key), folder, True
    for index, item in enumerate(process.sample.samples):
        prompt: KeyPath = (*path, "sample", "prompts", index)
        for key in ("ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3"):
            if image := getattr(item, key):
                yield (
                    prompt if prompt in source.lines else (*path, "sample", "samples", index, key),
                    image,
                    False,
                )


def _is_list(path: KeyPath, source: Source) -> bool:
    return (*path, 0) in source.lines


def _near(place: Path) -> Path | None:
    """Suggest an existing neighbour of the first part of the path that does not exist."""
    while not exists(place.parent) and place.parent != place.parent.parent:
        place = place.parent
    near = nearest(place.name, [entry.name for entry in entries(place.parent)])
    return place.parent / near if near else None

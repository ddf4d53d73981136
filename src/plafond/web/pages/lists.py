"""The form's lists: data sets and previews, which come and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nicegui import events, ui

from plafond.web.draft import Draft
from plafond.web.fields import DATASET, PICTURES, PROMPT_FIELDS, SAMPLE
from plafond.web.kinds import Field
from plafond.web.pages.frame import heading
from plafond.web.pages.hints import told
from plafond.web.pages.inputs import Changed, Input
from plafond.web.pages.pictures import PictureInput
from plafond.web.site import Site
from plafond.web.words import Words

NEW_DATASET: Mapping[str, Any] = {
    "caption_ext": "txt",
    "caption_dropout_rate": 0.05,
    "cache_latents_to_disk": True,
    "resolution": [512, 768, 1024],
}


class Lists:
    """The panels Datasets and Sample.

    Args:
        t: words.
        site: the page's.
        draft: the job.
        folder: where the job's relative paths start.
        entered: told of what was entered into a field.
        changed: told after an item has come or gone.
    """

    def __init__(
        self,
        t: Words,
        site: Site,
        draft: Draft,
        folder: Path,
        entered: Changed,
        changed: Callable[[], None],
    ):
        self._t, self._site, self._draft, self._folder = t, site, draft, folder
        self._entered, self._changed = entered, changed
        self._inputs: list[Input] = []
        self._prompts: list[tuple[str, ui.textarea]] = []
        self._shape: Any = None
        self._quiet = False
        self._box = ui.element("div").classes("lists")

    def update(self, origin: Input | None = None) -> None:
        """Show what the job says now; what somebody is typing into `origin` is left alone."""
        if self._shape_now() != self._shape:
            self._shape = self._shape_now()
            self._box.clear()
            self._inputs, self._prompts = [], []
            with self._box:
                self._draw_datasets()
                self._draw_sample()
            return
        for one in self._inputs:
            one.update(also_value=one is not origin)
        self._quiet = True
        for key, area in self._prompts:
            if area.value != (text := str(self._draft.raw(key) or "")):
                area.value = text
        self._quiet = False

    def _shape_now(self) -> Any:
        draft = self._draft
        family = draft.family
        return (
            draft.process,
            len(draft.raw("datasets") or ()),
            [isinstance(one, dict) for one in draft.raw("sample.samples") or ()],
            len(draft.raw("sample.prompts") or ()),
            None if family is None else family.name,
        )

    def _input(self, field: Any, prefix: str = "", folders: Mapping[str, str] | None = None) -> None:
        self._inputs.append(Input(self._t, field, self._draft, self._entered, prefix=prefix, folders=folders))

    def _edit(self, change: Callable[[], None]) -> None:
        with told(self._t):
            change()
        self._changed()

    # ------------------------------------------------------------------------------------------------ data sets

    def _draw_datasets(self) -> None:
        t, draft = self._t, self._draft
        folders = self._folders()
        with ui.element("section").classes("card"):
            with ui.element("div").classes("between"):
                heading(t("Datasets"))
                ui.link(t("All data sets"), "/datasets", new_tab=True).classes("soft")
            count = len(draft.raw("datasets") or ())
            for index in range(count):
                with ui.element("div").classes("item"):
                    with ui.element("div").classes("between"):
                        heading(t(DATASET.title, number=index + 1), "h3")
                        self._draw_remove("datasets", index, t("Remove dataset {number}", number=index + 1))
                    with ui.element("div").classes("fields"):
                        for field in DATASET.fields:
                            self._input(field, f"datasets.{index}.", folders)
            ui.button(t("Add Dataset"), icon="add", on_click=lambda: self._edit(self._add_dataset)).props(
                "flat no-caps data-test=add-dataset"
            )

    def _folders(self) -> dict[str, str]:
        """Names of the data sets by their paths, as the job writes them."""
        root = self._site.datasets.root
        if root.is_relative_to(self._folder):
            root = root.relative_to(self._folder)
        return {(root / name).as_posix(): name for name in self._site.datasets.names()}

    def _add_dataset(self) -> None:
        draft = self._draft
        used = {one.get("folder_path") for one in draft.raw("datasets") or () if isinstance(one, dict)}
        free = [path for path in self._folders() if path not in used]
        draft.add("datasets", {"folder_path": free[0] if free else "datasets/pictures", **NEW_DATASET})

    def _draw_remove(self, key: str, index: int, label: str) -> None:
        ui.button(icon="close", on_click=lambda: self._edit(lambda: self._draft.remove(key, index))).props(
            f'flat round dense aria-label="{label}"'
        )

    # ------------------------------------------------------------------------------------------------ previews

    def _draw_sample(self) -> None:
        t, draft = self._t, self._draft
        with ui.element("section").classes("card"):
            heading(t(SAMPLE.title))
            with ui.element("div").classes("fields"):
                for field in SAMPLE.fields:
                    self._input(field)
            key = self._prompts_key()
            count = len(draft.raw(key) or ())
            heading(t("Sample Prompts ({count})", count=count), "h3")
            for index in range(count):
                self._draw_prompt(key, index)
            ui.button(t("Add Prompt"), icon="add", on_click=lambda: self._edit(self._add_prompt)).props(
                "flat no-caps data-test=add-prompt"
            )

    def _prompts_key(self) -> str:
        """Previews are `samples` or, in older files, `prompts`; the first wins where both are given."""
        draft = self._draft
        return (
            "sample.prompts"
            if draft.raw("sample.prompts") and not draft.raw("sample.samples")
            else "sample.samples"
        )

    def _add_prompt(self) -> None:
        key = self._prompts_key()
        self._draft.add(key, "" if key.endswith("prompts") else {"prompt": ""})

    def _draw_prompt(self, key: str, index: int) -> None:
        t, draft = self._t, self._draft
        place = f"{key}.{index}"
        is_mapping = isinstance(draft.raw(place), dict)
        text_key = f"{place}.prompt" if is_mapping else place
        with ui.element("div").classes("prompt"):
            area = ui.textarea(t("Prompt"), value=str(draft.raw(text_key) or ""))
            area.props(f'outlined dense autogrow debounce=300 rows=1 data-test="{place}"')
            area.on_value_change(lambda event, key=text_key: self._prompt_typed(key, event))
            self._prompts.append((text_key, area))
            self._draw_remove(key, index, t("Remove prompt {number}", number=index + 1))
            if is_mapping:
                with ui.element("div").classes("fields pictures"):
                    for field in PICTURES:
                        self._inputs.append(self._picture(field, f"{place}."))
                with (
                    ui.expansion(t("Size, seed, strength")).props("dense").classes("more"),
                    ui.element("div").classes("fields"),
                ):
                    for field in PROMPT_FIELDS:
                        self._input(field, f"{place}.")

    def _picture(self, field: Field, prefix: str) -> Input:
        datasets, folder = self._site.datasets, self._folder
        return PictureInput(
            self._t, field, self._draft, self._entered, datasets=datasets, folder=folder, prefix=prefix
        )

    def _prompt_typed(self, key: str, event: events.ValueChangeEventArguments[str]) -> None:
        if self._quiet or event.value == (self._draft.raw(key) or ""):
            return
        with told(self._t):
            self._draft.replace(key, event.value)
        self._changed()

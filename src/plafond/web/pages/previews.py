"""The previews of a run: a grid by prompt and step, and two of them over each other with a slider between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from nicegui import ui

from plafond.web.runs import Sample
from plafond.web.words import N_, Words

TEXTS = {
    "compare": N_("Compare step"),
    "with": N_("with step"),
    "divider": N_("Divider between the two"),
    "close": N_("Close"),
}
"""What the browser's viewer says."""


class Previews:
    """The grid; the browser opens the pictures by itself.

    Args:
        t: words.
        job: the job's number.
        prompts: what each column shows.
    """

    def __init__(self, t: Words, job: int, prompts: Sequence[str]):
        self._t, self._job, self._prompts = t, job, prompts
        self._shown: list[Sample] | None = None
        self._grid = ui.html("", sanitize=False).classes("previews").props("data-test=previews")

    def update(self, samples: list[Sample]) -> None:
        """Show these previews, the newest step first."""
        if samples == self._shown:
            return
        self._shown = samples
        t = self._t
        if not samples:
            self._grid.content = f'<p class="soft">{escape(t("There are no previews yet."))}</p>'
            return
        steps = sorted({sample.step for sample in samples}, reverse=True)
        columns = sorted({sample.index for sample in samples})
        by_place = {(sample.step, sample.index): sample for sample in samples}
        head = "".join(f'<th scope="col">{escape(self._prompt(index))}</th>' for index in columns)
        body = "".join(
            f'<tr><th scope="row">{escape(t("step {number}", number=step))}</th>'
            + "".join(self._cell(by_place.get((step, index))) for index in columns)
            + "</tr>"
            for step in steps
        )
        data = escape(json.dumps([self._data(sample) for sample in samples]), quote=True)
        texts = escape(
            json.dumps({key: t(text) for key, text in TEXTS.items()}, ensure_ascii=False), quote=True
        )
        self._grid.content = (
            f'<table data-samples="{data}" data-texts="{texts}"><thead><tr><td></td>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table>"
        )

    def _prompt(self, index: int) -> str:
        return self._prompts[index] if index < len(self._prompts) else f"#{index + 1}"

    def _url(self, sample: Sample) -> str:
        return f"/api/jobs/{self._job}/samples/{sample.file}"

    def _data(self, sample: Sample) -> dict[str, Any]:
        return {
            "step": sample.step,
            "index": sample.index,
            "url": self._url(sample),
            "prompt": self._prompt(sample.index),
        }

    def _cell(self, sample: Sample | None) -> str:
        if sample is None:
            return "<td></td>"
        said = escape(
            self._t("{prompt}, step {number}", prompt=self._prompt(sample.index), number=sample.step),
            quote=True,
        )
        return (
            f'<td><button type="button" onclick="plafondCompare(this)" data-step="{sample.step}"'
            f' data-index="{sample.index}" aria-label="{said}">{_picture(self._url(sample), said)}</button></td>'
        )


def _picture(url: str, said: str) -> str:
    if url.endswith(".mp4"):
        return f'<video src="{url}" muted loop autoplay playsinline></video>'
    return f'<img src="{url}" alt="{said}" loading="lazy">'

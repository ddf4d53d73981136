"""The forecast beside the form: every phase against the ceiling, what would help, and one button that does it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any
from uuid import uuid4

from nicegui import background_tasks, ui

from plafond.jobs.queue import Where
from plafond.web.asking import AskError, Question, only_answer
from plafond.web.draft import Draft
from plafond.web.pages.fitting import show_fitted
from plafond.web.pages.frame import PHASES, heading
from plafond.web.site import Site
from plafond.web.words import N_, Words

DEBOUNCE_SECONDS = 0.06
"""So long an edit waits for the next one; a forecast of traces that are known takes little more."""

VERDICTS = {"fits": N_("Fits"), "tight": N_("Tight"), "oom": N_("Does not fit")}
REMEDIES = {
    "checkpointing_on": N_("Turn checkpointing on"),
    "leaner_plan": N_("Keep less for the backward pass"),
    "smaller_batch": N_("Smaller batch, same step"),
    "cache_text_unload_te": N_("Cache text, unload the encoder"),
    "cheaper_preview": N_("Cheaper previews"),
    "tiled_vae": N_("Previews in tiles"),
    "expandable_segments": N_("Expandable segments"),
    "stream_blocks": N_("Stream blocks from main memory"),
    "quantize": N_("Quantise the model"),
    "quantize_te": N_("Quantise the text encoder"),
    "eight_bit_optimizer": N_("8-bit optimizer"),
    "drop_top_bucket": N_("Drop the highest resolution"),
    "fewer_frames": N_("Fewer frames"),
    "smaller_rank": N_("Smaller rank"),
}
KINDS = (
    ("weights", N_("weights"), ("weights_bytes",)),
    ("lora", N_("LoRA and optimizer"), ("lora_bytes", "gradient_bytes", "optimizer_bytes")),
    ("activations", N_("activations"), ("activation_bytes",)),
)
"""Colours of a bar, their names, and the parts of a phase that they stand for."""


@dataclass
class Found:
    """What is known of one job's memory."""

    plans: list[dict[str, Any]] = field(default_factory=list)
    remedies: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    limited: bool = False

    @property
    def verdict(self) -> str | None:
        """The worst of all processes; None as long as nothing is known."""
        if not self.plans:
            return None
        if not self.limited:
            return "fits"
        verdicts: list[str] = [plan["verdict"] for plan in self.plans]
        return max(verdicts, key=list(VERDICTS).index)


class Forecast:
    """The bar and its state.

    Args:
        site: the page's.
        t: words.
        draft: the job as it is edited.
        where: on what it would run now.
        folder: where its relative paths start.
        apply: writes a remedy's values into a process.
        rewrite: takes a whole new text.
    """

    def __init__(
        self,
        site: Site,
        t: Words,
        draft: Draft,
        where: Callable[[], Where],
        folder: str,
        apply: Callable[[int, Mapping[str, Any]], None],
        rewrite: Callable[[str], Awaitable[None]],
    ):
        self._site, self._t, self._draft, self._where = site, t, draft, where
        self._folder, self._apply, self._rewrite = folder, apply, rewrite
        self.found = Found()
        self._slot = uuid4().hex
        self._task: asyncio.Task[None] | None = None
        self._draw()
        ui.context.client.on_disconnect(self._leave)

    def _leave(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def refresh(self) -> None:
        """Ask again, a moment after the last edit."""
        if self._task is not None:
            self._task.cancel()
        self._box.classes(add="stale")
        self._task = background_tasks.create(self._ask())

    async def settled(self) -> str | None:
        """The verdict on the job as it is now; None where it cannot be planned."""
        if self._task is not None:
            await asyncio.wait([self._task])
        return self.found.verdict

    def _draw(self) -> None:
        t = self._t
        with (
            ui.element("section")
            .classes("card forecast")
            .props(f'aria-label="{t("Memory forecast")}" aria-live=polite data-test=forecast') as self._box
        ):
            with ui.element("div").classes("between head"):
                with ui.element("div").classes("line"):
                    self._chip = ui.label("…").classes("chip").props("data-test=verdict")
                    self._step = ui.label().classes("soft")
                with ui.element("div").classes("line"):
                    self._fit = ui.button(t("Make it fit"), icon="auto_fix_high", on_click=self._make_it_fit)
                    self._fit.props("unelevated no-caps dense data-test=make-it-fit").classes("fit")
                    ui.button(icon="expand_less", on_click=self._toggle).props(
                        f'flat round dense aria-label="{t("Show or hide details")}"'
                    ).classes("fold")
            self._sentence = ui.label().classes("sentence").props("data-test=sentence")
            self._bars = ui.html("", sanitize=False).classes("bars")
            with ui.element("div").classes("helps") as self._helps:
                self._helps_title = heading(t("What would help"), "h3")
                self._buttons = ui.element("div").classes("remedies")
            self._warnings = ui.html("", sanitize=False).classes("soft warnings")
        self._fit.set_visibility(False)
        self._helps.set_visibility(False)

    def _toggle(self) -> None:
        folded = "folded" in self._box.classes
        self._box.classes(remove="folded") if folded else self._box.classes(add="folded")

    async def _ask(self) -> None:
        await asyncio.sleep(DEBOUNCE_SECONDS)
        draft = self._draft
        if draft.job is None:
            self._say_problem()
            return
        question = Question(
            what="forecast",
            text=draft.text,
            suffix=draft.suffix,
            folder=self._folder,
            where=self._where(),
            slot=self._slot,
            language=self._t.language,
        )
        found = Found()
        async for answer in self._site.planner.ask(question):
            match answer["kind"]:
                case "step":
                    name = self._t(PHASES[answer["phase"]])
                    self._step.text = f"{name} {answer['done'] + 1}/{answer['count']}"
                case "plan":
                    found.plans.append(answer["plan"])
                    found.limited = answer["limited"]
                    if len(found.plans) == len(draft.job.processes):
                        self.found = found
                        self._show()
                case "remedy":
                    found.remedies.append((answer["process"], answer["remedy"]))
                    self._add_remedy(*found.remedies[-1])
                case "error":
                    self.found = Found()
                    self._say_problem(answer["message"])
                case "done":
                    self._step.text = ""

    def _say_problem(self, message: str = "") -> None:
        problem = self._draft.problem
        self.found = Found()
        self._chip.text, self._step.text = self._t("No forecast"), ""
        self._chip.classes(replace="chip")
        self._sentence.text = message or ("" if problem is None else self._t.said(problem.placed))
        self._bars.content = ""
        self._warnings.content = ""
        self._box.classes(remove="stale fits tight oom")
        self._fit.set_visibility(False)
        self._helps.set_visibility(False)

    def _show(self) -> None:
        t, found = self._t, self.found
        verdict = found.verdict or "fits"
        self._chip.text = t(VERDICTS[verdict]) if found.limited else t("No ceiling")
        self._chip.classes(replace=f"chip {verdict if found.limited else ''}")
        self._box.classes(remove="stale fits tight oom", add=verdict if found.limited else None)
        self._step.text = ""
        worst = max(found.plans, key=lambda plan: plan["peak_bytes"] - plan["ceiling_bytes"])
        self._sentence.text = self._verdict(worst)
        self._bars.content = "".join(bars(t, plan, limited=found.limited) for plan in found.plans) + legend(t)
        notes = [warning for plan in found.plans for warning in plan["warnings"]]
        self._warnings.content = "".join(f"<p>{escape(note)}</p>" for note in dict.fromkeys(notes))
        self._fit.set_visibility(found.limited and verdict == "oom")
        self._buttons.clear()
        self._helps.set_visibility(False)

    def _verdict(self, plan: dict[str, Any]) -> str:
        t, peak = self._t, plan["peak"]
        phase = t(PHASES[peak["phase"]])
        place = t("{phase} at {bucket}", phase=phase, bucket=peak["bucket"]) if peak["bucket"] else phase
        needs = t.size(plan["peak_bytes"])
        if not self.found.limited:
            return t("{place} takes the most: {needs}.", place=place, needs=needs)
        ceiling = t.size(plan["ceiling_bytes"])
        left = plan["ceiling_bytes"] - plan["peak_bytes"]
        if left < 0:
            over = t.size(-left)
            return t(
                "{place} needs {needs} of {ceiling}: {over} too much.",
                place=place,
                needs=needs,
                ceiling=ceiling,
                over=over,
            )
        return t(
            "{place} takes the most, {needs} of {ceiling}; {left} are left.",
            place=place,
            needs=needs,
            ceiling=ceiling,
            left=t.size(left),
        )

    def _add_remedy(self, process: int, remedy: dict[str, Any]) -> None:
        t = self._t
        self._helps.set_visibility(True)
        marks = [t("saves {size}", size=t.size(remedy["saves_bytes"]))]
        if abs(remedy["time_ratio"] - 1) >= 0.005:
            marks.append(t("steps {ratio}× as long", ratio=t.number(remedy["time_ratio"], "0.0#")))
        if remedy["quality"] != "same":
            marks.append(t("quality may change"))
        values = {key: new for key, (_, new) in remedy["change"].items()}
        title = t(REMEDIES.get(remedy["id"], remedy["id"]))
        with self._buttons, ui.element("button").classes("remedy") as button:
            button.props(f"type=button data-test=remedy-{remedy['id']}")
            ui.html(
                f"<b>{escape(title)}</b><span>{escape(', '.join(marks))}</span>",
                sanitize=False,
                tag="span",
            )
            if remedy["fits"]:
                ui.label(t("fits then")).classes("chip fits")
            button.on("click", lambda: self._apply(process, values))
            ui.tooltip(", ".join(f"{key}: {_shown(new)}" for key, new in values.items()))

    async def _make_it_fit(self, *, quality: bool = False) -> None:
        t, draft = self._t, self._draft
        self._fit.props("loading")
        try:
            question = Question(
                what="fit",
                text=draft.text,
                suffix=draft.suffix,
                folder=self._folder,
                where=self._where(),
                quality=quality,
                language=t.language,
            )
            answer = await only_answer(self._site.fitter.ask(question), "fitted")
        except AskError as error:
            ui.notify(t.said(error.said), type="negative", multi_line=True)
            return
        finally:
            self._fit.props(remove="loading")
        wish = await show_fitted(t, answer["report"], REMEDIES, quality=quality)
        if wish == "take":
            await self._rewrite(answer["text"])
        elif wish == "quality":
            await self._make_it_fit(quality=True)


def bars(t: Words, plan: dict[str, Any], *, limited: bool) -> str:
    """A bar per phase and bucket, as HTML: what it takes, by kind, up to the ceiling and beyond.

    Of several buckets of a phase the fullest is shown, the others when they are asked for.
    """
    phases = plan["phases"]
    ceiling = plan["ceiling_bytes"] if limited else 0
    scale = max(ceiling, *(phase["device_bytes"] for phase in phases), 1)
    fullest: dict[str, int] = {}
    for phase in phases:
        fullest[phase["phase"]] = max(fullest.get(phase["phase"], 0), phase["device_bytes"])
    rows, minor, seen = [], 0, set()
    for phase in phases:
        name = phase["phase"]
        is_minor = name in seen or phase["device_bytes"] < fullest[name]
        if not is_minor:
            seen.add(name)
        minor += is_minor
        rows.append(_row(t, phase, scale=scale, ceiling=ceiling, minor=is_minor))
    head = f'<caption class="sr">{escape(t("Memory of each phase"))}</caption>'
    table = f'<table class="phases">{head}<tbody>{"".join(rows)}</tbody></table>'
    if minor:
        table += (
            '<button type="button" class="more" onclick="this.previousElementSibling.classList.toggle(\'all\')">'
            f"{escape(t('{count} smaller buckets', count=minor))}</button>"
        )
    return table


def _row(t: Words, phase: dict[str, Any], *, scale: int, ceiling: int, minor: bool) -> str:
    name = escape(t(PHASES[phase["phase"]]))
    bucket = escape(phase["bucket"] or "")
    if phase["phase"] == "train" and phase["batch"] > 1:
        bucket += f" ×{phase['batch']}"
    over = bool(ceiling) and not phase["fits"]
    parts, rest = "", phase["device_bytes"]
    for css, label, keys in KINDS:
        size = min(rest, sum(phase[key] for key in keys))
        rest -= size
        parts += _part(css, size / scale, f"{t(label)}: {t.size(size)}")
    parts += _part("other", rest / scale, f"{t('context and fragments')}: {t.size(rest)}")
    mark = f'<u style="left:{100 * ceiling / scale:.2f}%"></u>' if ceiling else ""
    said = f" · {escape(t('does not fit'))}" if over else ""
    classes = " ".join(word for word, holds in (("over", over), ("minor", minor)) if holds)
    return (
        f'<tr class="{classes}"><th scope="row">{name}<small>{bucket}</small></th>'
        f'<td><div class="bar">{parts}{mark}</div></td>'
        f'<td class="size">{escape(t.size(phase["device_bytes"]))}<span class="sr">{said}</span></td></tr>'
    )


def _part(css: str, share: float, label: str) -> str:
    if share < 0.0005:
        return ""
    return f'<i class="{css}" style="width:{100 * share:.2f}%" title="{escape(label)}"></i>'


def legend(t: Words) -> str:
    """What the colours of the bars mean."""
    kinds = [*((css, t(label)) for css, label, _ in KINDS), ("other", t("context and fragments"))]
    return '<p class="legend">' + "".join(
        f'<span><i class="{css}"></i>{escape(name)}</span>' for css, name in kinds
    )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

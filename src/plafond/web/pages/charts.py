"""The curves of a run: its loss, and its memory beside what was predicted."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from plafond.memory.gpus import GIB, MIB
from plafond.web.curves import Curves, smoothed
from plafond.web.words import Words

INK = "#8491a3"
"""Of axes and texts, readable on light and dark."""

FAINT, STRONG, EXPECTED, WRONG = "#5eaaa2", "#0d9488", "#a78bfa", "#dc2626"


def _options(t: Words, unit: str = "") -> dict[str, Any]:
    return {
        "animation": False,
        "textStyle": {"color": INK},
        "grid": {"left": 8, "right": 16, "top": 40, "bottom": 4, "containLabel": True},
        "legend": {"top": 4, "textStyle": {"color": INK}, "itemHeight": 8},
        "tooltip": {"trigger": "axis", "confine": True},
        "xAxis": {
            "type": "value",
            "name": t("step"),
            "nameLocation": "end",
            "min": "dataMin",
            "max": "dataMax",
            "axisLine": {"lineStyle": {"color": INK}},
            "axisLabel": {"color": INK},
            "splitLine": {"show": False},
        },
        "yAxis": {
            "type": "value",
            "name": unit,
            "scale": True,
            "axisLabel": {"color": INK, "showMaxLabel": False},
            "splitLine": {"lineStyle": {"color": INK, "opacity": 0.18}},
        },
        "series": [],
    }


def _line(name: str, points: list[list[Any]], colour: str, **more: Any) -> dict[str, Any]:
    style = {"color": colour, "width": more.pop("width", 2), "opacity": more.pop("opacity", 1)}
    return {
        "type": "line",
        "name": name,
        "data": points,
        "showSymbol": len(points) < 3,
        "lineStyle": style,
        "itemStyle": {"color": colour},
        **more,
    }


class LossChart:
    """The loss, raw and smoothed.

    Args:
        t: words.
        curves: the run's.
    """

    def __init__(self, t: Words, curves: Curves):
        self._t, self._curves = t, curves
        with ui.element("div").classes("line tools"):
            ui.label(t("Smoothing")).classes("soft")
            self._strength = ui.slider(min=0, max=0.99, step=0.01, value=0.9, on_change=self.update)
            self._strength.props(f'label dense aria-label="{t("Smoothing")}" data-test=smoothing').classes(
                "slim"
            )
            self._log = ui.checkbox(t("Log scale"), on_change=self.update).props("dense data-test=log-scale")
        self._chart = ui.echart(_options(t)).classes("chart").props("data-test=loss")

    def update(self) -> None:
        """Draw it anew."""
        t, rows = self._t, self._curves.thinned()
        steps = [row["step"] for row in rows]
        losses = [row.get("loss") for row in rows]
        strength = float(self._strength.value or 0)
        raw = [[step, loss] for step, loss in zip(steps, losses, strict=True)]
        smooth = [
            [step, loss]
            for step, loss in zip(steps, smoothed(losses, strength), strict=True)
            if loss is not None
        ]
        options = self._chart.options
        options["yAxis"]["type"] = "log" if self._log.value else "value"
        options["series"] = [
            _line(t("loss"), raw, FAINT, width=1, opacity=0.45),
            _line(t("smoothed"), smooth, STRONG),
        ]
        self._chart.update()


class MemoryChart:
    """The peak of every step, as predicted and as measured; where memory ran out and the run went on is marked.

    Args:
        t: words.
        curves: the run's.
        ceiling: bytes that the run may take, where it has a ceiling.
    """

    def __init__(self, t: Words, curves: Curves, ceiling: int | None):
        self._t, self._curves, self._ceiling = t, curves, ceiling
        self._chart = ui.echart(_options(t)).classes("chart").props("data-test=memory")
        self._note = ui.label().classes("soft")

    def update(self, recovered: list[int]) -> None:
        """Draw it anew.

        Args:
            recovered: steps at which memory ran out and the run went on.
        """
        t, rows = self._t, self._curves.thinned()
        peaks = [row[key] for row in rows for key in ("allocated_peak", "predicted_peak") if row.get(key)]
        if not peaks:
            self._chart.set_visibility(False)
            self._note.text = t("This run has no ceiling, so its memory is not measured.") if rows else ""
            return
        self._chart.set_visibility(True)
        unit, name = (GIB, t("GiB")) if max(peaks) >= GIB else (MIB, t("MiB"))

        def points(key: str) -> list[list[Any]]:
            return [[row["step"], round(row[key] / unit, 3)] for row in rows if row.get(key)]

        predicted = _line(
            t("predicted"), points("predicted_peak"), EXPECTED, width=4, opacity=0.55, step="middle"
        )
        measured = _line(t("measured"), points("allocated_peak"), STRONG, width=1.5, step="middle")
        marks: list[dict[str, Any]] = [
            {
                "xAxis": max(step, rows[0]["step"]),
                "lineStyle": {"color": WRONG},
                "label": {
                    "formatter": t("out of memory, recovered"),
                    "color": WRONG,
                    "position": "insideEndBottom",
                },
            }
            for step in recovered
        ]
        if self._ceiling is not None:
            line = {"type": "solid", "color": INK}
            label = {"formatter": t("ceiling"), "position": "insideEndTop", "color": INK}
            marks.append({"yAxis": round(self._ceiling / unit, 3), "lineStyle": line, "label": label})
        measured["markLine"] = {"symbol": "none", "silent": True, "data": marks}
        options = self._chart.options
        options["yAxis"]["name"] = name
        options["yAxis"]["max"] = round(1.08 * max([*peaks, self._ceiling or 0]) / unit, 2)
        options["series"] = [predicted, measured]
        self._chart.update()
        # what was predicted is what was planned, not the leaner way that was found
        self._note.text = "" if recovered else self._error(rows)

    def _error(self, rows: list[dict[str, Any]]) -> str:
        """By how much the prediction was wrong, for the fullest batch of each bucket: it is what is predicted."""
        fullest: dict[str, tuple[int, int]] = {}
        for row in rows:
            if row.get("predicted_peak") and row.get("allocated_peak"):
                pair = row["allocated_peak"], row["predicted_peak"]
                fullest[row["bucket"]] = max(pair, fullest.get(row["bucket"], pair))
        if not fullest:
            return ""
        worst = max((predicted / measured - 1 for measured, predicted in fullest.values()), key=abs)
        return self._t(
            "Fullest batch of each bucket: predicted to within {error} %",
            error=self._t.number(100 * abs(worst), "0.00"),
        )

"""How the pictures of a data set fall into buckets."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from plafond.families import families
from plafond.web.kinds import RESOLUTIONS
from plafond.web.pages.charts import INK
from plafond.web.pages.hints import told
from plafond.web.site import Site
from plafond.web.words import Words

COLOURS = ("#0d9488", "#8b5cf6", "#d97706", "#2563eb", "#db2777", "#65a30d", "#64748b", "#0891b2")


class Buckets:
    """A histogram for chosen resolutions and a model.

    Args:
        t: words.
        site: the page's.
        dataset: its name.
    """

    def __init__(self, t: Words, site: Site, dataset: str):
        self._t, self._site, self._dataset = t, site, dataset
        with ui.element("div").classes("line"):
            self._sides = ui.select(
                list(RESOLUTIONS),
                value=[512, 768, 1024],
                multiple=True,
                label=t("Resolutions"),
                on_change=self.update,
            ).props("outlined dense options-dense use-chips")
            names = {family.name: family.name for family in families()}
            self._family = ui.select(names, value=next(iter(names)), label=t("Model"), on_change=self.update)
            self._family.props("outlined dense options-dense")
        self._chart = ui.echart({"series": []}).classes("chart").props("data-test=histogram")

    def update(self) -> None:
        """Count anew."""
        sides = [int(side) for side in self._sides.value or ()]
        family = next(family for family in families() if family.name == self._family.value)
        found: dict[int, dict[str, int]] = {}
        with told(self._t):
            found = self._site.datasets.buckets(self._dataset, sides, family.divisor)
        buckets = sorted({bucket for counts in found.values() for bucket in counts}, key=_pixels)
        options: dict[str, Any] = {
            "animation": False,
            "textStyle": {"color": INK},
            "grid": {"left": 8, "right": 8, "top": 40, "bottom": 4, "containLabel": True},
            "legend": {"top": 4, "textStyle": {"color": INK}},
            "tooltip": {"trigger": "axis", "confine": True},
            "xAxis": {"type": "category", "data": buckets, "axisLabel": {"rotate": 45, "color": INK}},
            "yAxis": {
                "type": "value",
                "minInterval": 1,
                "splitLine": {"lineStyle": {"color": INK, "opacity": 0.18}},
            },
            "series": [
                {
                    "type": "bar",
                    "stack": "all",
                    "name": str(side),
                    "data": [counts.get(bucket, 0) for bucket in buckets],
                    "itemStyle": {"color": COLOURS[place % len(COLOURS)]},
                    "barMaxWidth": 48,
                }
                for place, (side, counts) in enumerate(found.items())
            ],
        }
        self._chart.options.clear()
        self._chart.options.update(options)
        self._chart.update()


def _pixels(bucket: str) -> tuple[int, int]:
    width, _, height = bucket.partition("x")
    return int(width) * int(height.split("x")[0]), int(width)

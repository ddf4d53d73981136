"""Pictures of the page for its documentation: ``make screens`` takes them all anew.

A home folder of its own is filled with the demo's photographs, two jobs are trained on the CPU under a virtual ceiling,
one is refused, and a browser looks at everything. That takes some minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from PIL import Image
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.by import By

import plafond
from browser import Page, chromium, server

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TINY_FLUX = Path(plafond.__file__).parent / "assets" / "tiny-flux"
MODEL = "tiny-flux"
"""What the jobs call it: nothing of this machine is to be seen."""

WIDE, PHONE = (1440, 1000), (390, 900)
COLOURS = 256
"""Of a picture that is kept: enough for a page, and half of the bytes."""

SIZES = ((1400, 1050), (1200, 1200), (1024, 1536))
"""Of the photographs that a full-size model is planned for."""


def main() -> None:
    """Take every picture."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        fill(home)
        with chromium(size=WIDE) as page, server(home, "--allow", str(ROOT)) as address:
            page.base = address
            jobs = train(page)
            views(page, jobs)
            form(page)
            phone(page, jobs)


def fill(home: Path) -> None:
    """Put the demo's photographs where the page has its data sets."""
    for source in ("photos", "regularisation"):
        target = home / "datasets" / {"photos": "chelsea"}.get(source, source)
        shutil.copytree(ROOT / "examples" / source, target, ignore=shutil.ignore_patterns("_*", "*.md"))
    (home / MODEL).symlink_to(TINY_FLUX, target_is_directory=True)
    large = home / "datasets" / "a large cat"
    large.mkdir()
    for number, size in enumerate(SIZES):
        with Image.open(sorted((home / "datasets" / "chelsea").glob("*.jpg"))[number]) as image:
            image.resize(size).save(large / f"{number}.jpg")


def demo_text(name: str, steps: int, *, checkpointing: str = "true") -> str:
    """The demo job with another name and length."""
    text = (ROOT / "examples" / "demo.yaml").read_text(encoding="utf-8")
    for old, new in {
        "name: chelsea": f"name: {name}",
        "examples/photos": "datasets/chelsea",
        "examples/regularisation": "datasets/regularisation",
        "src/plafond/assets/tiny-flux": MODEL,
        "steps: 600": f"steps: {steps}",
        "sample_every: 600": f"sample_every: {steps // 4}",
        "gradient_checkpointing: true": f"gradient_checkpointing: {checkpointing}",
    }.items():
        text = text.replace(old, new, 1)
    return text


def call(page: Page, path: str, body: dict[str, Any] | None = None) -> Any:
    """Ask the API."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(page.base + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def train(page: Page) -> dict[str, int]:
    """Two runs and one that is refused; the last one is still running when the pictures are taken."""
    numbers = {}
    for name, steps, vram, checkpointing, force in (
        ("chelsea", 600, "75MB", "true", False),
        ("chelsea-recovers", 60, "75MB", "false", True),
        ("chelsea-too-large", 60, "64MB", "false", False),
        ("chelsea-again", 4000, "75MB", "true", False),
    ):
        text = demo_text(name, steps, checkpointing=checkpointing)
        job = call(page, "/api/jobs", {"text": text, "device": "cpu", "vram": vram})
        numbers[name] = job["id"]
        call(page, f"/api/jobs/{job['id']}/start", {"force": force})
        if name != "chelsea-again":
            wait(page, job["id"], "failed" if name.endswith("large") else "done")
    for name in ("next-idea", "the-one-after"):
        job = call(page, "/api/jobs", {"text": demo_text(name, 800), "device": "cpu", "vram": "75MB"})
        call(page, f"/api/jobs/{job['id']}/start", {})
    while call(page, f"/api/jobs/{numbers['chelsea-again']}")["step"] < 5:
        time.sleep(1)
    return numbers


def wait(page: Page, number: int, wanted: str) -> None:
    """Wait until a job is over, which has to be as it is meant to be."""
    while (job := call(page, f"/api/jobs/{number}"))["state"] not in ("done", "failed"):
        time.sleep(1)
    if job["state"] != wanted:
        raise SystemExit(f"{job['name']} is {job['state']}: {job['message']}")


def keep(page: Page, name: str) -> None:
    """Save what the window shows."""
    page.script("document.activeElement?.blur()")
    mouse = ActionBuilder(page.browser)
    mouse.pointer_action.move_to_location(1, 1)
    mouse.perform()
    time.sleep(0.8)
    path = HERE / f"{name}.png"
    page.browser.save_screenshot(str(path))
    with Image.open(path) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path.relative_to(ROOT), f"{path.stat().st_size / 1024:.0f} KiB")


def views(page: Page, jobs: dict[str, int]) -> None:
    """Models, dashboard, jobs, one job, its previews, a diagnosis, a data set."""
    page.open("/models")
    page.until(lambda: page.browser.find_elements(By.CSS_SELECTOR, "main .q-table tbody tr"))
    keep(page, "models")
    page.open("/")
    page.until(lambda: page.browser.find_elements(By.CSS_SELECTOR, "a.job"))
    time.sleep(3)
    keep(page, "dashboard")
    page.open("/jobs")
    page.until(lambda: page.browser.find_elements(By.CSS_SELECTOR, "main .q-table tbody tr"))
    keep(page, "jobs")
    page.open(f"/jobs/{jobs['chelsea']}")
    page.until(lambda: page.all("loss"))
    time.sleep(2)
    keep(page, "job")
    page.click("tab-previews")
    cell = page.until(lambda: page.browser.find_elements(By.CSS_SELECTOR, ".previews button")[0])
    time.sleep(1)
    keep(page, "previews")
    cell.click()
    page.until(lambda: page.browser.find_element(By.CSS_SELECTOR, "dialog.viewer img").is_displayed())
    keep(page, "compare")
    page.open(f"/jobs/{jobs['chelsea-recovers']}")
    page.until(lambda: page.all("memory"))
    time.sleep(2)
    keep(page, "recovered")
    page.open(f"/jobs/{jobs['chelsea-too-large']}")
    page.until(lambda: page.text("summary"))
    time.sleep(1)
    keep(page, "diagnosis")
    page.open("/datasets/chelsea")
    page.click("buckets")
    page.until(
        lambda: page.browser.find_element(By.CSS_SELECTOR, "[data-test=histogram] canvas").is_displayed()
    )
    time.sleep(2)
    keep(page, "dataset")


def form(page: Page) -> None:
    """The form with a full-size model against a card, and its text."""
    page.open("/jobs/new")
    page.type("name", "my_first_lora")
    page.choose("train.gradient_checkpointing", "Off")
    page.choose("card", "RTX 4090 · 24 GB")
    page.until(lambda: page.text("verdict") == "Does not fit", patience=900)
    page.until(lambda: len(page.browser.find_elements(By.CSS_SELECTOR, "button.remedy")) >= 4, patience=900)
    keep(page, "forecast")
    page.click("show-advanced")
    page.edit_text("batch_size: 1", "batch_size: one")
    page.until(lambda: page.text("text-error"))
    page.script("document.querySelector('.bad-line').scrollIntoView({block: 'center'})")
    keep(page, "advanced")
    page.script("window.plafondDirty = false")


def phone(page: Page, jobs: dict[str, int]) -> None:
    """The same on a phone, in French, in the dark."""
    for name, value in (("plafond_language", "fr"), ("plafond_dark", "dark")):
        page.browser.add_cookie({"name": name, "value": value, "path": "/"})
    page.browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": PHONE[0], "height": PHONE[1], "deviceScaleFactor": 1, "mobile": True},
    )
    page.open(f"/jobs/{jobs['chelsea']}/edit")
    page.until(lambda: page.text("verdict") == "Tient")
    keep(page, "phone-form")
    page.open(f"/jobs/{jobs['chelsea']}")
    page.until(lambda: page.all("loss"))
    time.sleep(2)
    keep(page, "phone-job")


if __name__ == "__main__":
    main()

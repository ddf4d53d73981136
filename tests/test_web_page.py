"""The page in a browser: what people do from the first picture to the LoRA."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors import safe_open
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import plafond
from browser import Page, chromium, server
from plafond.job.reading import job_of

TINY_FLUX = Path(plafond.__file__).parent / "assets" / "tiny-flux"
STEPS = 24


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    folder = home / "datasets" / "cats"
    folder.mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (128, 128), (60 * number, 120, 40)).save(folder / f"cat-{number}.png")
        (folder / f"cat-{number}.txt").write_text(f"a cat, number {number}")
    return home


@pytest.fixture(scope="module")
def page(home: Path) -> Iterator[Page]:
    downloads = home / "downloads"
    downloads.mkdir()
    with chromium(downloads=downloads) as page, server(home) as address:
        page.base = address
        yield page
        problems = [text for text in page.problems() if "broken.png" not in text]
        assert not problems


def post(page: Page, path: str, body: dict[str, Any]) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(page.base + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def get(page: Page, path: str) -> Any:
    with urllib.request.urlopen(page.base + path, timeout=60) as answer:
        return json.load(answer)


def fill_in(page: Page) -> None:
    """The demo job, made by hand in the form."""
    page.type("name", "demo")
    page.type("model.name_or_path", str(TINY_FLUX))
    for key in ("model.qtype", "model.qtype_te"):
        page.choose(key, "- NONE -")
    page.choose("train.dtype", "FP32")
    page.choose("save.dtype", "FP32")
    for key, value in {
        "train.batch_size": "4",
        "train.steps": str(STEPS),
        "train.lr": "1e-3",
        "network.linear": "8",
        "sample.sample_every": "4",
        "sample.width": "64",
        "sample.height": "64",
        "sample.sample_steps": "2",
    }.items():
        page.type(key, value)
    page.click("train.cache_text_embeddings")
    for side in (512, 768, 1024):
        if side != 512:
            page.click(f"datasets.0.resolution-{side}")


def verdict(page: Page, wanted: str) -> None:
    """Wait for a verdict on what the form says now."""
    forecast = page.get("forecast")
    page.until(lambda: "stale" not in str(forecast.get_attribute("class")) and page.text("verdict") == wanted)


def test_from_the_form_to_the_lora(page: Page, home: Path) -> None:
    page.open("/")
    page.click("new-job")
    fill_in(page)
    assert page.value("network.linear") == "8"
    verdict(page, "No ceiling")
    page.choose("train.gradient_checkpointing", "Off")
    # a ceiling between what it takes with and without checkpointing
    page.click("show-advanced")
    text = page.job_text()
    page.click("show-advanced")
    job = job_of(text, Path("demo.yaml"))
    assert job.processes[0].train.gradient_checkpointing is False and job.processes[0].network is not None
    assert job.processes[0].network.linear_alpha == 8 and job.processes[0].train.lr == 1e-3
    peaks = {}
    for setting in ("false", "true"):
        tried = text.replace("gradient_checkpointing: false", f"gradient_checkpointing: {setting}")
        (plan,) = post(page, "/api/forecast?remedies=false", {"text": tried, "device": "cpu"})
        peaks[setting] = plan["peak_bytes"]
    ceiling = (peaks["false"] + peaks["true"]) // 2 // 2**10
    page.type("vram", f"{ceiling}KB")
    verdict(page, "Does not fit")
    assert "oom" in str(page.get("forecast").get_attribute("class"))
    assert "too much" in page.text("sentence")
    assert "saves" in page.text("remedy-checkpointing_on")

    page.click("make-it-fit")
    page.click("take-fit")
    verdict(page, "Fits")
    page.click("start")
    page.until(lambda: page.browser.current_url.endswith("/jobs/1"))

    page.until(lambda: page.all("state-running"))
    page.until(lambda: " of " in page.text("progress") and steps_done(page) >= 5)
    page.click("tab-previews")
    page.until(lambda: len(previews(page)) >= 6 and all(loaded(page)))
    page.click("stop")
    page.until(lambda: page.all("state-stopped"))
    stopped = get(page, "/api/jobs/1")
    assert 5 <= stopped["step"] < STEPS

    page.click("start")
    page.until(lambda: page.all("state-done"))
    assert steps_done(page) == STEPS
    previews(page)[0].click()
    slider = page.until(lambda: page.browser.find_element(By.CSS_SELECTOR, "dialog.viewer input[type=range]"))
    slider.send_keys(Keys.HOME)
    cut = "return document.querySelector('.stage').style.getPropertyValue('--cut')"
    page.until(lambda: page.script(cut) == "0%")
    slider.send_keys(Keys.ESCAPE)
    page.until(lambda: not page.browser.find_elements(By.CSS_SELECTOR, "dialog.viewer"))
    page.click("tab-files")
    page.click("file-demo.safetensors")
    lora = home / "downloads" / "demo.safetensors"
    page.until(lora.is_file)
    with safe_open(lora, "pt") as file:
        assert any("lora_A" in name for name in file.keys())  # noqa: SIM118
    page.click("tab-log")
    page.until(lambda: "step" in page.text("log"))
    rows = get(page, "/api/jobs/1/metrics")["rows"]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(row["allocated_peak"] <= ceiling * 2**10 for row in rows)


def steps_done(page: Page) -> int:
    return int(page.text("progress").split()[1])


def previews(page: Page) -> list[Any]:
    return page.browser.find_elements(By.CSS_SELECTOR, '[data-test="previews"] button')


def loaded(page: Page) -> list[bool]:
    return list(
        page.script(
            "return [...document.querySelectorAll('[data-test=previews] img')].slice(0, 3)"
            ".map((image) => image.complete && image.naturalWidth > 0)"
        )
    )


def test_text_and_form_say_the_same(page: Page, home: Path) -> None:
    page.open("/jobs/1/edit")
    page.get("name")
    page.click("show-advanced")
    page.edit_text("batch_size: 4", "batch_size: 3  # by hand")
    page.edit_text(f" steps: {STEPS}", " steps: many")
    assert "train.steps: expected a whole number" in page.text("text-error")
    bad = page.until(lambda: page.browser.find_element(By.CSS_SELECTOR, ".bad-line"))
    assert "steps: many" in bad.text
    line = page.job_text().splitlines().index(next(one for one in bad.text.splitlines())) + 1
    assert page.text("text-error").startswith(f"line {line}:")
    page.edit_text("steps: many", "steps: 200")
    page.until(lambda: not page.browser.find_elements(By.CSS_SELECTOR, ".bad-line"))
    page.click("show-advanced")
    assert page.value("train.batch_size") == "3" and page.value("train.steps") == "200"
    page.type("train.batch_size", "5")
    page.type("train.steps", "none")
    page.until(
        lambda: "expected a whole number" in page.browser.find_element(By.CSS_SELECTOR, ".field.wrong").text
    )
    page.type("train.steps", "250")
    page.choose("arch", "Z-Image-Turbo")
    page.until(lambda: "timestep_type: weighted" in page.job_text())
    page.click("add-prompt")
    page.until(lambda: page.all("sample.samples.3"))
    page.type("sample.samples.3", "a prompt: with a colon")
    page.choose("arch", "Qwen-Image-Edit-2509")
    at = "sample.samples.3.ctrl_img_2"
    upload = page.until(
        lambda: page.browser.find_element(By.CSS_SELECTOR, f'[data-test="{at}-file"] input[type=file]')
    )
    upload.send_keys(str(home / "datasets" / "cats" / "cat-1.png"))
    page.until(lambda: page.value(at))
    assert page.value(at) == "datasets/sample images/cat-1.png" and (home / page.value(at)).is_file()
    copies = "return [...document.querySelectorAll('.picture img.copy')].some(one => one.naturalWidth > 0)"
    page.until(lambda: page.script(copies))
    page.choose("arch", "Z-Image-Turbo")
    page.click("show-advanced")
    # the server answers in its own time
    page.until(lambda: "zimage:turbo" in page.job_text())
    text = page.job_text()
    assert "batch_size: 5  # by hand" in text and "steps: 250" in text
    process = job_of(text, Path("job.yaml")).processes[0]
    assert (process.model.arch, process.train.timestep_type) == ("zimage", "weighted")
    assert process.sample.samples[3].prompt == "a prompt: with a colon"
    page.script("window.plafondDirty = false")


def test_a_data_set_is_uploaded_and_captioned(page: Page, home: Path) -> None:
    sources = home / "sources"
    sources.mkdir()
    for number in range(3):
        Image.new("RGB", (120 + 40 * number, 96), (40, 80 * number, 90)).save(sources / f"dog-{number}.png")
    (sources / "dog-2.txt").write_text("a brown dog")
    (sources / "broken.png").write_bytes(b"no picture at all")
    page.open("/datasets")
    page.type("dataset-name", "dogs")
    page.click("create-dataset")
    page.until(lambda: page.browser.current_url.endswith("/datasets/dogs"))
    chooser = page.until(lambda: page.browser.find_element(By.CSS_SELECTOR, ".drop input[type=file]"))
    chooser.send_keys("\n".join(str(path) for path in sorted(sources.iterdir())))
    page.until(lambda: "3 pictures" in page.text("count"))
    page.until(lambda: "broken.png" in page.browser.find_element(By.CSS_SELECTOR, ".q-notifications").text)
    folder = home / "datasets" / "dogs"
    assert not (folder / "broken.png").exists()

    page.type("caption-dog-0.png", "a black dog")
    page.get("caption-dog-0.png").send_keys(Keys.CONTROL, Keys.ENTER)
    focus = "return document.activeElement.closest('[data-test]')?.dataset.test"
    page.until(lambda: page.script(focus) == "caption-dog-1.png")
    page.until(lambda: (folder / "dog-0.txt").is_file())
    assert (folder / "dog-0.txt").read_text() == "a black dog\n"
    page.click("find-replace")
    page.type("find", "dog")
    page.type("replace", "hound")
    page.until(lambda: page.text("would-change").startswith("2 captions"))
    page.click("really-replace")
    page.until(lambda: page.value("caption-dog-2.png") == "a brown hound")
    assert (folder / "dog-0.txt").read_text() == "a black hound\n"
    page.click("buckets")
    page.until(
        lambda: page.browser.find_element(By.CSS_SELECTOR, '[data-test="histogram"] canvas').is_displayed()
    )


def test_what_is_wrong_with_files_is_said_in_french(page: Page, home: Path) -> None:
    folder = home / "datasets" / "horses"
    folder.mkdir()
    Image.new("RGB", (64, 64)).save(folder / "horse.png")
    (folder / "broken.png").write_bytes(b"")
    upload = home / "broken.png"
    upload.write_bytes(b"no picture at all")
    page.browser.add_cookie({"name": "plafond_language", "value": "fr", "path": "/"})
    try:
        page.open("/datasets/horses")
        page.until(
            lambda: "broken.png : le fichier est vide (0 octet) ; il faut une image." in page.text("problems")
        )
        assert "images sans légende : 1 sur 1 (par exemple horse.png" in page.text("problems")
        page.browser.find_element(By.CSS_SELECTOR, ".drop input[type=file]").send_keys(str(upload))
        refused = "broken.png : le contenu n’est pas une image"
        page.until(lambda: refused in page.browser.find_element(By.CSS_SELECTOR, ".q-notifications").text)
    finally:
        page.browser.delete_all_cookies()


def test_the_page_speaks_french_in_the_dark_and_on_a_phone(page: Page) -> None:
    page.browser.add_cookie({"name": "plafond_language", "value": "fr", "path": "/"})
    page.browser.add_cookie({"name": "plafond_dark", "value": "dark", "path": "/"})
    page.browser.set_window_size(390, 844)
    try:
        page.open("/jobs/1/edit")
        body = page.until(lambda: page.browser.find_element(By.TAG_NAME, "main").text)
        for words in ("Jeux de données", "Entraînement", "Enregistrer et lancer", "Taille de lot"):
            assert words in body
        assert "Batch Size" not in body
        assert page.script("return document.documentElement.lang") == "fr"
        page.until(lambda: page.script("return document.body.classList.contains('body--dark')"))
        for path in ("/", "/jobs", "/jobs/1", "/datasets", "/datasets/dogs", "/models"):
            page.open(path)
            page.until(lambda: page.browser.find_elements(By.CSS_SELECTOR, "main h1"))
            time.sleep(0.2)
            assert page.script("return document.documentElement.scrollWidth") <= 391, path
    finally:
        page.browser.delete_all_cookies()
        page.browser.set_window_size(1440, 1000)

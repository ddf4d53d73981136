"""The page's promises, measured: forecasts within 300 ms of an edit, views within 1.5 s, and no job lost to a kill.

``python bench/page.py forecast``   edits of a FLUX.1-dev job, warm: time until the forecast is on its way to the page
``python bench/page.py load``       views with 200 jobs and a data set of 2,000 pictures, in headless Chromium
``python bench/page.py kill``       page, worker and runs of two jobs are killed at random, 20 times; nothing shows it

Without an argument all three run. Figures go to standard output; an unkept promise makes the exit code 1.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import plafond
from plafond.job.editing import set_value
from plafond.jobs import queue
from plafond.jobs.home import Home
from plafond.jobs.queue import Where
from plafond.jobs.run import RunFiles
from plafond.jobs.store import ACTIVE, DONE, FAILED, QUEUED, Store
from plafond.jobs.worker import start_workers
from plafond.web.asking import Planner, Question
from plafond.web.draft import Draft
from plafond.web.starts import new_text

MEDIAN, LATE, LOAD = 0.3, 0.8, 1.5
"""Promised seconds: of the median and the 95th percentile of forecasts, and of the slowest view."""

KILLS, KILLS_PER_PAIR = 20, 4
JOBS, PICTURES = 200, 2000
TINY_FLUX = Path(plafond.__file__).parent / "assets" / "tiny-flux"


def main() -> None:
    """Run what is asked for."""
    asked = sys.argv[1:] or ["forecast", "load", "kill"]
    kept = [{"forecast": forecast, "load": load, "kill": kill}[name]() for name in asked]
    sys.exit(0 if all(kept) else 1)


def said(name: str, value: float, promise: float, unit: str = "s") -> bool:
    """Print one figure beside its promise."""
    print(
        f"  {name:<44}{value:8.3f} {unit}   promised {promise:g}   {'kept' if value <= promise else 'NOT KEPT'}"
    )
    return value <= promise


def photos(folder: Path, count: int, *, side: int = 64) -> None:
    """Noisy pictures in a few shapes, with captions."""
    folder.mkdir(parents=True)
    dice = np.random.default_rng(0)
    for number in range(count):
        height, width = ((3, 4), (4, 4), (4, 3))[number % 3]
        pixels = dice.integers(0, 255, (height * side // 4, width * side // 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:05}.jpg", quality=70)
        (folder / f"{number:05}.txt").write_text(f"picture number {number}")


# ---------------------------------------------------------------------------------------------------- forecasts

EDITS: tuple[tuple[str, Any], ...] = (
    ("train.gradient_checkpointing", False),
    ("train.batch_size", 2),
    ("network.linear", 16),
    ("train.gradient_checkpointing", True),
    ("datasets.0.resolution", [512, 768]),
    ("train.optimizer", "adamw"),
    ("train.lr", 2e-4),
    ("model.quantize", False),
    ("train.steps", 2000),
    ("sample.width", 768),
    ("train.cache_text_embeddings", True),
    ("model.quantize", True),
    ("train.gradient_checkpointing", "auto"),
    ("train.batch_size", 1),
    ("network.linear", 32),
    ("datasets.0.resolution", [512, 768, 1024]),
    ("sample.width", 1024),
    ("train.optimizer", "adamw8bit"),
    ("train.gradient_checkpointing", True),
    ("train.cache_text_embeddings", False),
)
"""What somebody tries in the form; the last ones lead back to the start."""


def forecast() -> bool:
    """Latency of forecasts whose traces are known."""
    print("Forecast of FLUX.1-dev under 24 GB, from an edit to the plan; every edit was made once before")
    with tempfile.TemporaryDirectory() as folder:
        photos(Path(folder) / "datasets" / "pictures", 40, side=1200)
        cold, warm = asyncio.run(_edits(Path(folder)))
    print(f"  first time, traces unknown: median {statistics.median(cold):.2f} s, worst {max(cold):.2f} s")
    late = statistics.quantiles(warm, n=20)[-1]
    return all([said("median", statistics.median(warm), MEDIAN), said("95th percentile", late, LATE)])


async def _edits(folder: Path) -> tuple[list[float], list[float]]:
    planner = Planner(folder, folder / "log.txt")
    draft = Draft(new_text())
    times: list[list[float]] = [[], []]
    try:
        await _plan(planner, draft, folder)
        for found in times:
            for key, value in EDITS:
                started = time.monotonic()
                draft.set(key, value)
                await _plan(planner, draft, folder)
                found.append(time.monotonic() - started)
    finally:
        await planner.close()
    return times[0], times[1]


async def _plan(planner: Planner, draft: Draft, folder: Path) -> None:
    question = Question(
        what="forecast", text=draft.text, folder=str(folder), where=Where("cuda:0", "24GB"), remedies=False
    )
    async for answer in planner.ask(question):
        assert answer["kind"] != "error", answer
        if answer["kind"] == "plan":
            return


# ---------------------------------------------------------------------------------------------------- views


def load() -> bool:
    """Time until a view can be read and used."""
    from browser import chromium, server

    print(f"Views with {JOBS} jobs and a data set of {PICTURES} pictures, in headless Chromium")
    kept = []
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        photos(home / "datasets" / "many", PICTURES, side=256)
        _seed(home)
        with chromium() as page, server(home) as address:
            page.base = address
            page.open("/jobs")  # the browser's caches are filled, as on a second visit
            for path, mark in (
                ("/", "main a.job"),
                ("/jobs", "main .q-table tbody tr"),
                ("/jobs/1", "main .progress"),
                ("/jobs/1/edit", "main [data-test=name]"),
                ("/datasets", "main a.cover"),
                ("/datasets/many", "main .gallery textarea"),
            ):
                times = []
                for _ in range(3):
                    page.browser.get("about:blank")
                    started = time.monotonic()
                    page.browser.get(address + path)
                    page.until(partial(page.script, f"return !!document.querySelector('{mark}')"))
                    times.append(time.monotonic() - started)
                kept.append(said(path, statistics.median(times), LOAD))
    return all(kept)


def _seed(home: Path) -> None:
    store = Store(Home(home))
    text = new_text()
    for number in range(JOBS):
        entry = queue.add(
            store,
            set_value(text, ("config", "name"), f"job-{number:03}"),
            suffix=".yaml",
            folder=home,
            where=Where("cpu", "24GB"),
        )
        state = (DONE, FAILED, DONE, DONE)[number % 4]
        store.change(entry.id, (entry.state,), state=state, attempts=1, ended=time.time() - 60 * number)
        folder = Path(entry.run_folder)
        folder.mkdir(parents=True)
        rows = [
            {"step": step, "loss": 1 / step, "seconds": 1.0, "bucket": "512x512"} for step in range(1, 400)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# ---------------------------------------------------------------------------------------------------- kills


CEILING = 100
"""MB of each of two jobs that share a virtual card of twice as many."""

WORKER = f"""
from plafond.jobs import worker
shared = worker.Worker
worker.Worker = lambda store, device, capacity: shared(store, device, lambda held: {2 * CEILING} * 2**20)
worker.main()
"""
PAGE = f"""
import subprocess, sys
from plafond.jobs import worker
def start(home, device):
    command = [sys.executable, "-c", {WORKER!r}, str(home.path), device, "plafond.jobs.worker"]
    with home.log(device).open("ab") as log:
        return subprocess.Popen(command, cwd=home.path, stdout=log, stderr=log, start_new_session=True)
worker.start_worker = start
from plafond.cli import main
main()
"""
"""A page whose workers share a virtual card."""


def kill() -> bool:
    """Kill page, worker, runs or all of them at random moments of two jobs; their results must not show it."""
    from runs import assert_same_weights

    print(f"{KILLS} kills of page, worker and runs at random moments, two jobs at a time")
    dice = random.Random(os.environ.get("SEED", "0"))
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        photos(home / "datasets" / "few", 5)
        store = Store(Home(home))
        calm = _job(store, home, "calm")
        queue.start(store, calm)
        start_workers(store.home, store)
        _wait(store, calm.id)
        killed = twice = together = 0
        pairs = 0
        while killed < KILLS:
            pairs += 1
            pair = [_job(store, home, f"hunted-{pairs}-{side}", f"{CEILING}MB") for side in "ab"]
            for entry in pair:
                queue.start(store, entry)
            most = min(KILLS_PER_PAIR, KILLS - killed)
            found = _hunt(store, home, [one.id for one in pair], dice, most)
            killed, together = killed + len(found), together + found.count(2)
            for entry in pair:
                assert_same_weights(_lora(store, calm.id), _lora(store, entry.id))
                twice += _overlaps(store, entry.id)
        print(
            f"  {killed} kills in {pairs} pairs of jobs, {together} of them while both ran: every job done, weights"
            f" bit-equal, {twice} ran twice at a time"
        )
    return twice == 0 and together > 0


def _job(store: Store, home: Path, name: str, vram: str | None = None) -> Any:
    text = f"""job: extension
config:
  name: {name}
  process:
    - type: sd_trainer
      training_folder: output
      network: {{type: lora, linear: 4}}
      save: {{dtype: float32, save_every: 5}}
      datasets:
        - folder_path: datasets/few
          resolution: [64]
      train: {{batch_size: 2, steps: 100, lr: 1e-3, optimizer: adamw, dtype: fp32, cache_text_embeddings: true,
        disable_sampling: true}}
      model: {{name_or_path: {TINY_FLUX}, arch: flux}}
"""
    return queue.add(store, text, suffix=".yaml", folder=home, where=Where("cpu", vram))


def _hunt(store: Store, home: Path, numbers: list[int], dice: random.Random, most: int) -> list[int]:
    """Let a page keep jobs alive, and kill what belongs to them until they are done, at most `most` times.

    Returns:
        For each kill, how many jobs were at work.
    """
    killed: list[int] = []
    page = _page(home)
    try:
        while any(store.job(number).state not in (DONE, FAILED) for number in numbers):
            time.sleep(dice.uniform(0.3, 15.0))
            if len(killed) >= most or all(store.job(one).state not in (*ACTIVE, QUEUED) for one in numbers):
                continue
            prey = dice.choice(["page", "worker", "run", "runs", "all"])
            at_work = len(list(_processes(home, "runs")))
            if prey in ("page", "all"):
                page.kill()
                page.wait()
            found = list(_processes(home, prey))
            for process in dice.sample(found, 1) if prey == "run" and found else found:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            if prey in ("page", "all"):
                page = _page(home)
            killed.append(at_work)
    finally:
        page.kill()
        page.wait()
    for number in numbers:
        assert store.job(number).state == DONE, store.job(number).message
    return killed


def _page(home: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PAGE, "ui", "--port", "0", "--home", str(home)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _processes(home: Path, prey: str) -> Iterator[psutil.Process]:
    worker, run = "plafond.jobs.worker", "plafond.jobs.run"
    wanted = {"page": [], "worker": [worker], "run": [run], "runs": [run], "all": [worker, run]}[prey]
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if any(module in line for module in wanted) and any(str(home) in part for part in line):
            yield process


def _wait(store: Store, number: int) -> None:
    while store.job(number).state != DONE:
        assert store.job(number).state != FAILED, store.job(number).message
        time.sleep(0.2)


def _lora(store: Store, number: int) -> Path:
    folder = Path(store.job(number).run_folder)
    return folder / f"{folder.name}.safetensors"


def _overlaps(store: Store, number: int) -> int:
    """How often a process of the job began while another was at work on it."""
    lines = RunFiles(store.home.run(number)).history.read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    # a process that was killed wrote no end, and was gone when the next one got the lock
    ends = {event["pid"]: event["time"] for event in events if event["event"] == "end"}
    starts = [(event["time"], event["pid"]) for event in events if event["event"] == "start"]
    return sum(1 for (_, pid), (later, _) in pairwise(starts) if pid in ends and ends[pid] > later)


if __name__ == "__main__":
    main()

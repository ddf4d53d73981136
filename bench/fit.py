"""Whether what `fit` writes fits, differs only where it says, and changes nothing without need.

Jobs of the collection that the tests read, as they are and made heavier (no checkpointing, larger batches, a larger
picture), on cards from 8 to 80 GB. Each line of a job gets a comment of its own first. For every pair of a job and a
card, what is written is read and planned anew and

* has to fit, with the margin that a plan leaves;
* may differ from the job in nothing but the keys that the report names, and keeps every comment;
* has to need each of its changes: with any one of them taken back it does not fit, or is slower.

Changes that may change quality are allowed only where nothing else is enough. Where nothing at all is, `fit` has to
say so and write nothing.

    python bench/fit.py [--only WORD]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

from ruamel.yaml import YAML

import plafond
from plafond.job.editing import edit
from plafond.job.schema import ProcessConfig
from plafond.memory.gpus import Ceiling
from plafond.plan.fit import Fitted, write
from plafond.plan.forecast import Forecaster, Plan
from plafond.plan.pace import work
from plafond.plan.search import Step
from plafond.plan.terminal import ceiling_of

JOBS = Path(__file__).resolve().parents[1] / "tests" / "jobs"

SIZES = ("8GB", "12GB", "16GB", "24GB", "32GB", "48GB", "80GB")
CARDS = {
    "8GB": "RTX 4060",
    "12GB": "RTX 4070",
    "16GB": "RTX 4080",
    "24GB": "RTX 4090",
    "32GB": "RTX 5090",
    "48GB": "L40S",
    "80GB": "H100 80GB",
}
"""A card of each size: a size alone does not tell how fast the device is."""

HEAVIER: dict[str, dict[str, Any]] = {
    "as it is": {},
    "no checkpointing": {"train.gradient_checkpointing": False},
    "no checkpointing, batch 4": {"train.gradient_checkpointing": False, "train.batch_size": 4},
    "batch 4, 1536": {"train.batch_size": 4, "datasets.0.resolution": [768, 1024, 1536]},
    "bfloat16, adamw": {"model.quantize": False, "model.quantize_te": False, "train.optimizer": "adamw"},
}

MATRIX: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("lora-flux-24gb", "as it is", ("RTX 4070", "16GB")),
    ("lora-flux-24gb", "no checkpointing, batch 4", SIZES),
    ("lora-flux-24gb", "batch 4, 1536", tuple(CARDS.values())),
    ("lora-flux-kontext-24gb", "no checkpointing", ("16GB", "24GB", "32GB", "48GB")),
    ("lora-flex-24gb", "no checkpointing, batch 4", ("RTX 4060", "RTX 4080", "RTX 4090")),
    ("lora-flex2-24gb", "bfloat16, adamw", ("12GB", "24GB", "32GB")),
    ("full-fine-tune-flex", "no checkpointing", ("24GB", "48GB", "80GB")),
    ("lora-qwen-image-24gb", "no checkpointing, batch 4", ("16GB", "24GB", "48GB", "80GB")),
    ("lora-qwen-image-edit-2509-32gb", "batch 4, 1536", ("RTX 4090", "RTX 5090", "L40S")),
    ("lora-wan21-1b-24gb", "no checkpointing", ("8GB", "12GB", "24GB")),
    ("lora-wan21-14b-24gb", "as it is", ("RTX 4070", "RTX 4080")),
    ("lora-wan22-14b-24gb", "no checkpointing, batch 4", ("16GB", "24GB", "48GB")),
)

ALIASES = {"gradient_accumulation": ("gradient_accumulation_steps",), "linear": ("rank",)}
"""Other names under which the collection's jobs have a setting."""


@dataclass(frozen=True)
class Pair:
    """A job on a card, and what was found wrong with what `fit` wrote for it."""

    fitted: Fitted
    quality: bool
    wrong: tuple[str, ...]

    @property
    def said(self) -> str:
        """What came of it, in a word or as the changes."""
        if not self.fitted.fits:
            return "does not fit"
        ids = dict.fromkeys(step.id for step in self.fitted.steps)
        return ", ".join(ids) or "left as it is"


def commented(text: str) -> str:
    """The job with a comment above and at the end of each line."""
    lines = enumerate(text.splitlines(), start=1)
    said = "\n".join(f"# above {number}\n{line}  # beside {number}" for number, line in lines) + "\n"
    assert _data(said) == _data(text), "a comment fell into a value"
    return said


def with_values(data: Any, steps: Iterable[Step]) -> Any:
    """A parsed job with the changes of these steps, under the names that it has for them; not by plafond's editor."""
    data = deepcopy(data)
    for step in steps:
        for key, (_, new) in step.change.items():
            *parents, name = key.split(".")
            owner: Any = data["config"]["process"][step.process]
            for parent in parents:
                owner = owner[int(parent)] if isinstance(owner, list) else owner.setdefault(parent, {})
            for alias in [alias for alias in (name, *ALIASES.get(name, ())) if alias in owner] or [name]:
                owner[alias] = new
    return data


def judged(path: Path, target: Path, card: str) -> Pair:
    """Fit the job to the card and look at what was written."""
    vram, gpu = (card, None) if card in SIZES else (None, card)
    job, quality = plafond.load_job(path), False
    fitted = plafond.fit(job, vram=vram, gpu=gpu)
    if not fitted.fits:
        quality, fitted = True, plafond.fit(job, vram=vram, gpu=gpu, allow_quality=True)
    target.unlink(missing_ok=True)
    written = write(fitted, target)
    ceiling = ceiling_of(vram, gpu, virtual=False)
    return Pair(fitted, quality, tuple(_wrong(path, written, fitted, ceiling)))


def _wrong(path: Path, written: Path | None, fitted: Fitted, ceiling: Ceiling) -> Iterator[str]:
    if not fitted.fits:
        if written is not None or not fitted.missing:
            yield "does not fit, and was written or nothing was said"
        return
    assert written is not None
    (process,) = plafond.load_job(written).processes
    plan = Forecaster(process, ceiling).plan()
    if plan.verdict != "fits":
        yield f"what was written plans as {plan.verdict}"
    old, new = (file.read_text(encoding="utf-8") for file in (path, written))
    if _data(new) != with_values(_data(old), fitted.steps):
        yield "differs otherwise than it says"
    if _comments(old) != _comments(new):
        yield "comments differ"
    for step in fitted.steps:
        data = with_values(_data(old), (other for other in fitted.steps if other is not step))
        without = _planned(data, written.with_suffix(".without.yaml"), ceiling)
        if without is not None and work(without) <= work(plan):
            yield f"{step.id} is not needed"


def _planned(data: Any, path: Path, ceiling: Ceiling) -> Plan | None:
    """The plan of a parsed job; None when it does not fit."""
    with path.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(data, file)
    (process,) = plafond.load_job(path).processes
    return _fitting(process, ceiling)


def _fitting(process: ProcessConfig, ceiling: Ceiling) -> Plan | None:
    for largest in (True, False):
        plan = Forecaster(process, ceiling).plan(largest_only=largest)
        if plan.verdict != "fits":
            return None
    return plan


def _data(text: str) -> Any:
    return YAML(typ="safe").load(text)


def _comments(text: str) -> list[str]:
    return re.findall(r"# (?:above|beside) \d+", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="pairs that have this word in their names")
    options = parser.parse_args()
    pairs = []
    print("| job | made heavier | card | changes | GiB before | after | s |")
    print("|---|---|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        path, target = Path(folder) / "job.yaml", Path(folder) / "job.fit.yaml"
        for name, heavier, cards in MATRIX:
            text = commented((JOBS / f"{name}.yaml").read_text(encoding="utf-8"))
            path.write_text(edit(text, 0, HEAVIER[heavier]), encoding="utf-8")
            for card in cards:
                if options.only not in f"{name} {heavier} {card}":
                    continue
                started = time.monotonic()
                pair = judged(path, target, card)
                pairs.append(pair)
                sizes = [
                    f"{plans[0].peak.device_bytes / 2**30:.2f}"
                    for plans in (pair.fitted.before, pair.fitted.after)
                ]
                cells = (name, heavier, card, pair.said, *sizes, f"{time.monotonic() - started:.0f}")
                print(f"| {' | '.join(cells)} |", flush=True)
                for wrong in pair.wrong:
                    print(f"WRONG: {wrong}", flush=True)
    bad = sum(bool(pair.wrong) for pair in pairs)
    changed = [pair for pair in pairs if pair.fitted.fits and pair.fitted.steps]
    print(
        f"{len(pairs)} pairs: {len(changed)} changed so that they fit,"
        f" {sum(pair.quality for pair in changed)} of them in ways that may change quality;"
        f" {sum(not pair.fitted.fits for pair in pairs)} do not fit at all; {bad} wrong"
    )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()

"""Published memory figures of FLUX.1 trainings against the plan of the nearest job.

    python bench/published.py [--json]

Prints for each comparable row what is predicted, what was published and the error (of the prediction, relative to the
published figure), then median and 90th percentile of the absolute errors; then the rows that say only whether a card
was large enough; then the rows that cannot be compared, and why. How rows are mapped is in ``published_rows.py``. GiB
are 1024³ bytes.

plafond plans its own training step. Where a row was made by a step that keeps more (autocast with float32 adapters,
for instance), a lower prediction is not an error of the accounting; such rows are marked.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image
from ruamel.yaml import YAML

from published_rows import GIB, Case, read_cases


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes of the training phase in the case's bucket, and the verdict over all phases."""

    allocated: int
    reserved: int
    device: int
    verdict: str


def main() -> None:
    """Compare every row and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    cases = read_cases()
    with tempfile.TemporaryDirectory() as folder:
        results = [
            (case, predict(case, Path(folder)))
            for case in cases
            if not case.needs and not case.unknown and (case.figure or case.card_gb)
        ]
    others = [case for case in cases if case.needs or case.unknown]
    print(json.dumps(_json(results, others), indent=1) if arguments.json else _text(results, others))


def predict(case: Case, folder: Path) -> Prediction:
    """Plan a case's job on pictures of exactly its size; the one place that calls the planner."""
    pictures = folder / f"{case.width}x{case.height}"
    pictures.mkdir(exist_ok=True)
    for index in range(case.batch):
        Image.new("RGB", (case.width, case.height)).save(pictures / f"{index}.png")
        (pictures / f"{index}.txt").write_text("a picture", encoding="utf-8")
    process = {**case.process, "datasets": [{**case.process["datasets"][0], "folder_path": str(pictures)}]}
    job = folder / f"{case.id}.yaml"
    document = {"job": "extension", "config": {"name": case.id, "process": [process]}}
    with job.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(document, file)
    plan = _plan(job, f"{case.card_gb or 1024}GB")
    bucket = f"{case.width}x{case.height}"
    (phase,) = [each for each in plan["phases"] if each["phase"] == "train" and each["bucket"] == bucket]
    return Prediction(
        phase["allocated_bytes"], phase["reserved_bytes"], phase["device_bytes"], plan["verdict"]
    )


def _plan(job: Path, vram: str) -> dict[str, Any]:
    start = "from plafond.cli import main; main()"
    command = [sys.executable, "-c", start, "plan", str(job), "--vram", vram, "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode not in (0, 3):  # fits, does not fit
        raise SystemExit(f"{job.stem}: {run.stderr.strip()}")
    plan: dict[str, Any] = json.loads(run.stdout)
    return plan


def error(predicted: int, published: int) -> float:
    """Relative error of a prediction: positive when it says too much."""
    return predicted / published - 1


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` of all are not above."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def _errors(case: Case, prediction: Prediction) -> tuple[int, float, float | None]:
    assert case.figure is not None
    predicted: int = getattr(prediction, case.figure.kind)
    other = None if case.figure.other is None else error(predicted, case.figure.other)
    return predicted, error(predicted, case.figure.bytes), other


def _text(results: list[tuple[Case, Prediction]], others: list[Case]) -> str:
    lines = [f"{'row':30} {'compared':9} {'predicted':>9} {'published':>9} {'error':>7}  if GB is GiB"]
    lines.append(f"{'':30} {'':9} {'GiB':>9} {'GiB':>9}")
    errors = []
    for case, prediction in results:
        if case.figure is None or case.outcome == "oom":
            continue
        predicted, first, other = _errors(case, prediction)
        errors.append(abs(first))
        lines.append(
            f"{case.id:30} {case.figure.kind:9} {predicted / GIB:9.2f} {case.figure.bytes / GIB:9.2f} {first:+7.1%}"
            + ("" if other is None else f"  {other:+.1%}")
        )
        lines += [f"    {note}" for note in case.notes]
    if errors:
        lines.append(
            f"\n{len(errors)} rows: median error {median(errors):.1%}, 90th percentile {percentile(errors, 0.9):.1%}"
        )
    lines.append(f"\n{'row':30} {'card':>6} {'published':>9} {'planned':>8} {'device GiB':>10}")
    for case, prediction in results:
        if case.card_gb is not None and (case.figure is None or case.outcome == "oom"):
            lines.append(
                f"{case.id:30} {case.card_gb:3} GB {case.outcome:>9} {prediction.verdict:>8}"
                f" {prediction.device / GIB:10.2f}"
            )
            lines += [f"    {note}" for note in case.notes]
    lines.append("\nnot compared:")
    for case in others:
        why = [f"needs {each}" for each in case.needs]
        if case.unknown:
            why.append(f"not known: {', '.join(case.unknown)}")
        lines.append(f"{case.id:30} {'; '.join(why)}")
    return "\n".join(lines)


def _json(results: list[tuple[Case, Prediction]], others: list[Case]) -> dict[str, Any]:
    compared, errors = [], []
    for case, prediction in results:
        entry: dict[str, Any] = {
            "id": case.id,
            "source": case.source,
            "outcome": case.outcome,
            "verdict": prediction.verdict,
            "allocated_bytes": prediction.allocated,
            "reserved_bytes": prediction.reserved,
            "device_bytes": prediction.device,
            "notes": case.notes,
        }
        if case.figure is not None:
            _, first, other = _errors(case, prediction)
            entry |= {"kind": case.figure.kind, "published_bytes": case.figure.bytes}
            entry |= {"error": first, "error_if_gib": other}
            if case.outcome == "fits":
                errors.append(abs(first))
        compared.append(entry)
    return {
        "schema": 1,
        "median_error": median(errors) if errors else None,
        "p90_error": percentile(errors, 0.9) if errors else None,
        "rows": compared,
        "not_compared": [
            {"id": case.id, "source": case.source, "needs": case.needs, "unknown": case.unknown}
            for case in others
        ],
    }


if __name__ == "__main__":
    main()

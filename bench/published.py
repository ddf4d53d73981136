"""Published memory figures of trainings against the plan of the nearest job.

    python bench/published.py [--json]

Prints for each comparable row what is predicted, what was published and the error (of the prediction, relative to the
published figure), then median and 90th percentile of the absolute errors, of all rows and of those whose base is, or
is not, quantised by another tool's kernels; then the rows that say only whether a card was large enough; then the
rows that cannot be compared, and why. How rows are mapped is in ``published_rows.py``. GiB are 1024³ bytes.

All rows were made by other trainers. Where these train PEFT's layers under torch's own checkpointing, it is that step
which is predicted; else plafond's own. Where the unit of a figure is uncertain, the second error is that of the other
reading.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything it needs is shipped as numbers

from ruamel.yaml import YAML

from others import OthersRehearsal
from plafond.data.buckets import Bucket
from plafond.families import family_for
from plafond.job.reading import load_job
from plafond.memory.allocator import replay
from plafond.memory.gpus import context_overhead
from plafond.memory.kernels import Target
from plafond.memory.standins import Given
from published_rows import GIB, Case, read_cases


@dataclass(frozen=True, slots=True)
class Prediction:
    """Bytes of the training phase in the case's bucket."""

    allocated: int
    reserved: int
    device: int

    def fits(self, card_gb: int) -> bool:
        """Whether a card of that size is large enough."""
        return self.device <= card_gb * GIB


def main() -> None:
    """Compare every row and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    cases = read_cases()
    known: dict[str, Prediction] = {}
    results = []
    for case in cases:
        if case.needs or case.unknown:
            continue
        same = repr(
            (
                case.process,
                case.width,
                case.height,
                case.frames,
                case.batch,
                case.plain,
                case.library,
                case.caption,
                case.capability,
            )
        )
        if same not in known:
            known[same] = predict(case)
        results.append((case, known[same]))
    others = [case for case in cases if case.needs or case.unknown]
    print(json.dumps(_json(results, others), indent=1) if arguments.json else _text(results, others))


def predict(case: Case) -> Prediction:
    """Rehearse a case's training steps; the one place that calls plafond."""
    with tempfile.TemporaryDirectory() as folder:
        process = {**case.process, "datasets": [{**case.process["datasets"][0], "folder_path": folder}]}
        path = Path(folder) / "job.yaml"
        with path.open("w", encoding="utf-8") as file:
            document = {"job": "extension", "config": {"name": case.id, "process": [process]}}
            YAML(typ="safe").dump(document, file)
        (job,) = load_job(path).processes
    family = family_for(job.model.arch)
    target = Target("cuda", case.capability)
    source = family.locate(job.model)
    rehearsal = OthersRehearsal(job, family, source, target, plain=case.plain, library=case.library)
    length = None if case.caption is None else family.prompt_length(source, [case.caption], 0)
    if length is not None:
        rehearsal.given = Given(captions=length.tokens, shortest=length.tokens)
    trace = rehearsal.train(Bucket(case.width, case.height, case.frames), case.batch)
    sizes = trace.sizes
    events = [
        (event.allocation, sizes[event.allocation] if event.allocates else -sizes[event.allocation])
        for event in trace.events
    ]
    replayed = replay(events)
    return Prediction(trace.peak().bytes, replayed.reserved_peak, replayed.reserved_peak + context_overhead())


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


def _by_base(results: list[tuple[Case, Prediction]]) -> dict[str, list[float]]:
    """Absolute errors of all compared rows, and by whether the base is quantised."""
    found: dict[str, list[float]] = {"all": [], "weights as published": [], "quantised base": []}
    for case, prediction in results:
        if case.figure is not None and case.outcome == "fits":
            size = abs(_errors(case, prediction)[1])
            found["all"].append(size)
            found["quantised base" if case.quantised else "weights as published"].append(size)
    return found


def _group_medians(results: list[tuple[Case, Prediction]]) -> list[float]:
    """The median absolute error of each group, so that a source with many like rows counts once."""
    groups: dict[str, list[float]] = {}
    for case, prediction in results:
        if case.figure is not None and case.outcome == "fits":
            groups.setdefault(case.group, []).append(abs(_errors(case, prediction)[1]))
    return [median(errors) for errors in groups.values()]


def _text(results: list[tuple[Case, Prediction]], others: list[Case]) -> str:
    lines = [f"{'row':45} {'compared':9} {'predicted':>9} {'published':>9} {'error':>7}  if GB is GiB"]
    lines.append(f"{'':45} {'':9} {'GiB':>9} {'GiB':>9}")
    for case, prediction in results:
        if case.figure is None or case.outcome == "oom":
            continue
        predicted, first, other = _errors(case, prediction)
        lines.append(
            f"{case.id:45} {case.figure.kind:9} {predicted / GIB:9.2f} {case.figure.bytes / GIB:9.2f} {first:+7.1%}"
            + ("" if other is None else f"  {other:+.1%}")
        )
        lines += [f"    {note}" for note in case.notes]
    lines.append("")
    for name, errors in _by_base(results).items():
        tail = f"90th percentile {percentile(errors, 0.9):.1%}"
        lines.append(f"{name}: {len(errors)} rows, median error {median(errors):.1%}, {tail}")
    by_group = _group_medians(results)
    lines.append(f"{len(by_group)} sources, each once: median error {median(by_group):.1%}")
    lines.append(f"\n{'row':45} {'card':>6} {'published':>9} {'planned':>8} {'device GiB':>10}")
    for case, prediction in results:
        if case.card_gb is not None and (case.figure is None or case.outcome == "oom"):
            planned = "fits" if prediction.fits(case.card_gb) else "oom"
            lines.append(
                f"{case.id:45} {case.card_gb:3} GB {case.outcome:>9} {planned:>8} {prediction.device / GIB:10.2f}"
            )
            lines += [f"    {note}" for note in case.notes]
    lines.append("\nnot compared:")
    for case in others:
        why = [f"needs {each}" for each in case.needs]
        if case.unknown:
            why.append(f"not known: {', '.join(case.unknown)}")
        lines.append(f"{case.id:45} {'; '.join(why)}")
    return "\n".join(lines)


def _json(results: list[tuple[Case, Prediction]], others: list[Case]) -> dict[str, Any]:
    compared = []
    for case, prediction in results:
        entry: dict[str, Any] = {
            "id": case.id,
            "source": case.source,
            "outcome": case.outcome,
            "fits": None if case.card_gb is None else prediction.fits(case.card_gb),
            "allocated_bytes": prediction.allocated,
            "reserved_bytes": prediction.reserved,
            "device_bytes": prediction.device,
            "quantised": case.quantised,
            "notes": case.notes,
        }
        if case.figure is not None:
            _, first, other = _errors(case, prediction)
            entry |= {"kind": case.figure.kind, "published_bytes": case.figure.bytes}
            entry |= {"error": first, "error_if_gib": other}
        compared.append(entry)
    return {
        "schema": 1,
        "errors": {
            name: {"rows": len(errors), "median": median(errors), "p90": percentile(errors, 0.9)}
            for name, errors in _by_base(results).items()
        },
        "median_error_by_source": median(_group_medians(results)),
        "rows": compared,
        "not_compared": [
            {"id": case.id, "source": case.source, "needs": case.needs, "unknown": case.unknown}
            for case in others
        ],
    }


if __name__ == "__main__":
    main()

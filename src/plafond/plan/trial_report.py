"""What ``plafond calibrate`` found, in words and as JSON for scripts."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from plafond.memory import calibration
from plafond.memory.virtual import shown
from plafond.plan.trial import Result, Row
from plafond.plan.words import NAMES


def text(result: Result) -> str:
    """The report, at most 100 columns wide, without colours."""
    record = result.record
    driver = f", driver {record.driver}" if record.driver else ""
    lines = [f"{record.device}, torch {record.torch}{driver}", result.model, "", *_table(result.rows)]
    lines += [f"note: {note}" for note in result.notes]
    lines += ["", *_largest_errors(result.rows), *_device(result)]
    lines += [f"Kept in {calibration.file()}; later plans for this device use it."]
    return "\n".join(lines)


def _table(rows: tuple[Row, ...]) -> list[str]:
    lines = [
        f"{'phase':<14}{'bucket':<11}{'batch':>5}  {'checkpointing':<15}{'bytes':<11}"
        f"{'predicted':>12}{'measured':>12}{'error':>10}"
    ]
    for row in rows:
        case = row.case
        bucket = "" if case.bucket is None else str(case.bucket)
        head = f"{NAMES[case.phase]:<14}{bucket:<11}"
        if case.phase == "train":
            head += f"{case.batch:>5}  {'on' if case.checkpointing else 'off'}"
        for quantity, size in row.predicted.items():
            error = row.error(quantity)
            found = ("-", "") if error is None else (shown(row.measured[quantity]), f"{error:+.3%}")
            lines.append(f"{head:<47}{quantity:<11}{shown(size):>12}{found[0]:>12}{found[1]:>10}")
            head = ""
    return lines


def _largest_errors(rows: tuple[Row, ...]) -> list[str]:
    lines = []
    for quantity in rows[0].predicted if rows else ():
        errors = [(error, str(row.case)) for row in rows if (error := row.error(quantity)) is not None]
        if errors:
            error, case = max(errors, key=lambda pair: abs(pair[0]))
            lines.append(f"Largest error of {quantity} bytes: {error:+.3%} ({case})")
    return lines


def _device(result: Result) -> list[str]:
    """Overhead and rates beside what was assumed."""
    record, lines = result.record, []
    if record.overhead_bytes is not None and result.assumed_overhead is not None:
        found, before = shown(record.overhead_bytes), shown(result.assumed_overhead)
        lines.append(f"Beside the allocator (context, kernels): {found}; assumed until now: {before}")
    elif result.assumed_overhead is not None:
        lines.append("What the context takes is unknown: the driver does not tell what this process has")
    rates, guess = record.rates, calibration.estimated(record.device)
    shares = [
        ("Products of matrices", rates.matmul_flops, guess.matmul_flops, "FLOP/s"),
        ("The device's memory", rates.memory_bandwidth, guess.memory_bandwidth, "B/s"),
    ]
    if result.assumed_overhead is not None:
        shares.append(("From pinned main memory", rates.link_bandwidth, guess.link_bandwidth, "B/s"))
    for name, measured, estimate, unit in shares:
        lines.append(
            f"{name}: {_scaled(measured)}{unit}; estimated without measuring: {_scaled(estimate)}{unit}"
        )
    return lines


def _scaled(rate: float) -> str:
    """``61.2 T``, to be followed by a unit."""
    return f"{rate / 1e12:.1f} T" if rate >= 1e12 else f"{rate / 1e9:.1f} G"


def as_json(result: Result) -> dict[str, Any]:
    """Bytes, operations and bytes per second; errors as parts of what was measured."""
    return {
        "schema": 1,
        **asdict(result.record),
        "model": result.model,
        "assumed_overhead_bytes": result.assumed_overhead,
        "phases": [
            {
                "phase": row.case.phase,
                "bucket": None if row.case.bucket is None else str(row.case.bucket),
                "batch": row.case.batch,
                "checkpointing": row.case.checkpointing,
                "predicted_bytes": dict(row.predicted),
                "measured_bytes": dict(row.measured),
                "errors": {quantity: row.error(quantity) for quantity in row.predicted},
            }
            for row in result.rows
        ],
        "notes": list(result.notes),
        "file": str(calibration.file()),
    }

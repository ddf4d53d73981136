"""What ``plafond calibrate`` found, in words and as JSON for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from plafond.language.said import N_, Number, Said, Speak, Value
from plafond.memory import calibration
from plafond.memory.gpus import GIB, MIB
from plafond.plan.trial import Result, Row
from plafond.plan.words import NAMES

HEADINGS = (
    N_("phase"),
    N_("bucket"),
    N_("batch"),
    N_("checkpointing"),
    N_("bytes"),
    N_("predicted"),
    N_("measured"),
    N_("error"),
)
QUANTITIES = {
    "allocated": N_("allocated"),
    "reserved": N_("reserved"),
    "device": N_("device"),
    "counted": N_("counted"),
}
KEPT = N_("Kept in {file}; later plans for this device use it.")
LARGEST = N_("Largest error of {quantity} bytes: {error} ({case})")
BESIDE = N_("Beside the allocator (context, kernels): {size}; assumed until now: {before}")
PRODUCTS = N_("Products of matrices: {rate}; estimated without measuring: {estimate}")
MEMORY = N_("The device's memory: {rate}; estimated without measuring: {estimate}")
LINK = N_("From pinned main memory: {rate}; estimated without measuring: {estimate}")
FLOPS = (N_("{number} GFLOP/s"), N_("{number} TFLOP/s"))
BYTES = (N_("{number} GB/s"), N_("{number} TB/s"))


def text(result: Result, speak: Speak) -> str:
    """The report, at most 100 columns wide, without colours."""
    record = result.record
    device: list[Value] = [record.device, f"torch {record.torch}"]
    if record.driver:
        device.append(Said(N_("driver {version}"), {"version": record.driver}))
    lines = [speak(tuple(device)), speak(result.model), "", *_table(result.rows, speak)]
    lines += [speak(Said(N_("note: {text}"), {"text": note})) for note in result.notes]
    lines += ["", *map(speak, _largest_errors(result.rows)), *map(speak, _device(result))]
    lines += [speak(Said(KEPT, {"file": calibration.file()}))]
    return "\n".join(lines)


def _table(rows: tuple[Row, ...], speak: Speak) -> list[str]:
    words = [speak(Said(heading)) for heading in HEADINGS]
    phase, bucket, batch, checkpointing, quantity, predicted, measured, error = words
    names = {name: speak(Said(said)) for name, said in NAMES.items()}
    first = max(14, *(len(name) + 1 for name in names.values()))
    lines = [
        f"{phase:<{first}}{bucket:<11}{batch:>5}  {checkpointing:<15}{quantity:<11}"
        f"{predicted:>12}{measured:>12}{error:>10}"
    ]
    for row in rows:
        case = row.case
        bucket = "" if case.bucket is None else str(case.bucket)
        head = f"{names[case.phase]:<{first}}{bucket:<11}"
        if case.phase == "train":
            kept = Said(N_("on") if case.checkpointing else N_("off"))
            head += f"{case.batch:>5}  {speak(kept)}"
        for name, size in row.predicted.items():
            off = row.error(name)
            found = ("-", "") if off is None else (speak(_size(row.measured[name])), speak(_error(off)))
            quantity = speak(Said(QUANTITIES[name]))
            lines.append(
                f"{head:<{first + 33}}{quantity:<11}{speak(_size(size)):>12}{found[0]:>12}{found[1]:>10}"
            )
            head = ""
    return lines


def _size(size: int) -> Said:
    if size >= GIB:
        return Said(N_("{number} GiB"), {"number": Number(size / GIB, 2)})
    return Said(N_("{number} MiB"), {"number": Number(size / MIB, 2)})


def _error(error: float) -> Said:
    sign = "-" if error < 0 else "+"
    return Said(N_("{sign}{number}%"), {"sign": sign, "number": Number(abs(error) * 100, 3)})


def _largest_errors(rows: tuple[Row, ...]) -> Iterator[Said]:
    for quantity in rows[0].predicted if rows else ():
        errors = [(error, row.case) for row in rows if (error := row.error(quantity)) is not None]
        if errors:
            error, case = max(errors, key=lambda pair: abs(pair[0]))
            name = Said(QUANTITIES[quantity])
            yield Said(LARGEST, {"quantity": name, "error": _error(error), "case": case.said})


def _device(result: Result) -> Iterator[Said]:
    """Overhead and rates beside what was assumed."""
    record = result.record
    if record.overhead_bytes is not None and result.assumed_overhead is not None:
        yield Said(BESIDE, {"size": _size(record.overhead_bytes), "before": _size(result.assumed_overhead)})
    elif result.assumed_overhead is not None:
        yield Said(N_("What the context takes is unknown: the driver does not tell what this process has"))
    rates, guess = record.rates, calibration.estimated(record.device)
    yield Said(PRODUCTS, _rates(rates.matmul_flops, guess.matmul_flops, FLOPS))
    yield Said(MEMORY, _rates(rates.memory_bandwidth, guess.memory_bandwidth, BYTES))
    if result.assumed_overhead is not None:
        yield Said(LINK, _rates(rates.link_bandwidth, guess.link_bandwidth, BYTES))


def _rates(measured: float, estimate: float, units: tuple[str, str]) -> dict[str, Value]:
    return {"rate": _rate(measured, units), "estimate": _rate(estimate, units)}


def _rate(rate: float, units: tuple[str, str]) -> Said:
    billions, trillions = units
    if rate >= 1e12:
        return Said(trillions, {"number": Number(rate / 1e12, 1)})
    return Said(billions, {"number": Number(rate / 1e9, 1)})


def as_json(result: Result, speak: Speak) -> dict[str, Any]:
    """Bytes, operations and bytes per second; errors as parts of what was measured."""
    return {
        "schema": 1,
        **asdict(result.record),
        "model": speak(result.model),
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
        "notes": [speak(note) for note in result.notes],
        "file": str(calibration.file()),
    }

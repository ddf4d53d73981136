"""What the solver chooses under random ceilings, and whether the run keeps to it.

For each of several random jobs on the tiny FLUX model (those of `verdicts.py`) ceilings are drawn between what the
leanest and the fastest plan take. Under each, `gradient_checkpointing: auto` is planned and run on a virtual GPU that
refuses what is above: no run may run out, and a lower ceiling may never give a faster plan.

    python bench/ceilings.py [--jobs 6] [--ceilings 10] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from plafond import load_job
from plafond.language.said import Said
from plafond.memory.gpus import Ceiling
from plafond.plan.forecast import Forecaster, Plan
from verdicts import completes, draw, job_file

CHECKPOINTING = "train.gradient_checkpointing"


def planned(job: Path, overrides: list[str], ceiling: int) -> Plan:
    """The plan on a virtual GPU."""
    (process,) = load_job(job, overrides=overrides).processes
    return Forecaster(process, Ceiling(ceiling, 0, Said("drawn"), None), virtual=True).plan()


def slowdowns(plan: Plan) -> list[float]:
    """Of each bucket, relative to a step that computes nothing twice."""
    chosen = [phase.activations for phase in plan.phases if phase.activations is not None]
    return [one.slowdown for one in chosen if one.slowdown is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--ceilings", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    refused = faster = runs = plans = 0
    with tempfile.TemporaryDirectory() as folder:
        job = job_file(Path(folder))
        for number in range(1, options.jobs + 1):
            # of the phases of a run only training is solved, so a preview must not decide
            settings = draw(dice) | {"train.disable_sampling": True, "train.cache_text_embeddings": True}
            fixed = [f"{key}={json.dumps(value)}" for key, value in settings.items() if key != CHECKPOINTING]
            lean, full = (
                planned(job, [*fixed, f"{CHECKPOINTING}={word}"], 2**40).peak.device_bytes
                for word in ("true", "false")
            )
            seen = []
            for ceiling in sorted(dice.randint(lean, full) for _ in range(options.ceilings)):
                overrides = [*fixed, f"{CHECKPOINTING}=auto"]
                plan = planned(job, overrides, ceiling)
                seen.append(slowdowns(plan))
                kept = plan.verdict == "fits" and completes(job, overrides, ceiling)
                runs, refused = runs + 1, refused + (not kept)
                where = 0 if full == lean else (ceiling - lean) / (full - lean)
                times = ", ".join(f"{slowdown:.3f}" for slowdown in seen[-1])
                print(
                    f"job {number}: {where:4.0%} of the way, {ceiling / 2**20:7.2f} MiB; predicted"
                    f" {plan.peak.device_bytes / 2**20:7.2f} ({plan.peak.phase}); steps x{times}"
                    f"{'' if kept else '  RAN OUT'}",
                    flush=True,
                )
            plans += len(set(map(tuple, seen)))
            faster += sum(
                before < after
                for lower, higher in pairwise(seen)
                for before, after in zip(lower, higher, strict=True)
            )
    print(
        f"{runs} ceilings, {plans} different plans: {refused} refused by the device,"
        f" {faster} faster under a lower ceiling"
    )
    sys.exit(1 if refused or faster else 0)


if __name__ == "__main__":
    main()

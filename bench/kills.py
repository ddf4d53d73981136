"""`kill -9` at random instants: the run always goes on, and no file that it left is damaged.

A run on the tiny FLUX model is killed again and again until it has come to its end; then the next one begins. After
each kill every finished file is read. At the end weights, optimizer state and losses have to be those of a run that
was left alone.

    python bench/kills.py [--kills 100] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import load_file

import plafond
from plafond.training.run_folder import RunFolder
from recovery import SETTINGS, equal, result, run
from verdicts import job_file

STEPS = 40


def start(job: Path, overrides: list[str]) -> int:
    """Run or continue the job in a process of its own; gives its number."""
    child = os.fork()
    if child:
        return child
    try:
        log = os.open(job.parent / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        plafond.train(plafond.load_job(job, overrides=overrides), device="cpu")
        os._exit(0)
    except BaseException as error:  # noqa: BLE001  # the fork must not go on as its parent
        print(f"ENDED BY {error!r}", file=sys.stderr, flush=True)
        os._exit(1)


def damaged(out: Path) -> list[Path]:
    """Files that bear their final name and cannot be read."""
    found = []
    for path in out.rglob("*"):
        try:
            match path.suffix:
                case ".safetensors":
                    load_file(path)
                case ".pt":
                    torch.load(path, weights_only=True)
                case ".json":
                    json.loads(path.read_text(encoding="utf-8"))
        except Exception:  # noqa: BLE001  # whatever is wrong with it
            found.append(path)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    settings = SETTINGS | {"train.steps": STEPS, "save.save_every": 3}
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    wrong = kills = runs = 0
    with tempfile.TemporaryDirectory() as folder:
        job = job_file(Path(folder))
        out = job.parent / "out"
        # in this process, so that all that a run imports is there when others begin
        reference = result(run(job, settings, None))
        shutil.rmtree(out)
        began = time.monotonic()
        os.waitpid(start(job, overrides), 0)
        whole = time.monotonic() - began
        shutil.rmtree(out)
        while kills < options.kills or out.exists():
            if not out.exists():
                runs += 1
                for cache in (job.parent / "photos").glob("_*_cache"):
                    shutil.rmtree(cache)
            child = start(job, overrides)
            left = time.monotonic() + dice.uniform(0.05, 0.7) * whole
            ended = 0
            while not ended and time.monotonic() < left:
                ended, status = os.waitpid(child, os.WNOHANG)
                time.sleep(0.002)
            if not ended:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                kills += 1
                broken = damaged(out)
                wrong += bool(broken)
                for path in broken:
                    print(f"  DAMAGED after kill {kills}: {path}", flush=True)
                continue
            found = RunFolder(out, "verdict")
            same = not status and equal(reference, result(found))
            wrong += not same
            print(f"run {runs} {'equal' if same else 'DIFFERENT'} after {kills} kills in all", flush=True)
            if status:
                print((job.parent / "log.txt").read_text()[-2000:])
                break
            shutil.rmtree(out)
    print(f"{kills} kills in {runs} runs of {STEPS} steps: {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

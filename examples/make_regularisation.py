"""Render the demo's regularisation pictures: what the base model draws already and shall not forget.

python examples/make_regularisation.py
"""

from __future__ import annotations

import random
from pathlib import Path

from plafond.assets.scenes import caption, scene_sample

COUNT = 96
FIRST_SEED = 9_000_000
"""Far from the seeds of the base model's training pictures."""

FOLDER = Path(__file__).parent / "regularisation"


def main() -> None:
    """Write the pictures and their captions."""
    FOLDER.mkdir(exist_ok=True)
    for index in range(COUNT):
        picture, scene = scene_sample(FIRST_SEED + index)
        stem = FOLDER / f"scene-{index + 1:02d}"
        picture.save(stem.with_suffix(".jpg"), quality=92)
        stem.with_suffix(".txt").write_text(caption(scene, random.Random(index)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

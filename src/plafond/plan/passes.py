"""What a job's losses add to every step, as a note of the plan."""

from __future__ import annotations

from plafond.job.schema import ProcessConfig
from plafond.language.said import N_, Said

TWICE = N_("{key} makes each step two forward passes and one backward pass longer")
ONCE = N_("{key} makes each step a forward pass longer")


def passes_note(process: ProcessConfig) -> Said | None:
    """One sentence when steps have more passes than one forward and one backward."""
    train = process.train
    for key in ("diff_output_preservation", "blank_prompt_preservation"):
        if getattr(train, key):
            return Said(TWICE, {"key": f"train.{key}"})
    if train.inverted_mask_prior and any(data.is_masked for data in process.datasets):
        return Said(ONCE, {"key": "train.inverted_mask_prior"})
    if any(data.prior_reg for data in process.datasets):
        return Said(ONCE, {"key": "prior_reg"})
    return None

"""What a job's losses add to every step, as a note of the plan."""

from __future__ import annotations

from plafond.job.schema import ProcessConfig


def passes_note(process: ProcessConfig) -> str | None:
    """One sentence when steps have more passes than one forward and one backward."""
    train = process.train
    more = [
        f"train.{key} adds two forward passes and one backward pass"
        for key in ("diff_output_preservation", "blank_prompt_preservation")
        if getattr(train, key)
    ]
    if train.inverted_mask_prior and any(data.is_masked for data in process.datasets):
        more.append("train.inverted_mask_prior adds a forward pass")
    elif any(data.prior_reg for data in process.datasets):
        more.append("prior_reg adds a forward pass")
    return f"each step takes longer: {'; '.join(more)}" if more else None

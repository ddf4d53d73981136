"""What is worth knowing about a plan beside its numbers."""

from __future__ import annotations

from plafond.language.said import Said
from plafond.plan.forecast import Plan
from plafond.plan.passes import passes_note
from plafond.plan.risks import risk_warning


def notes_of(plan: Plan) -> list[Said]:
    """Risky settings, what makes steps longer, and what had to be assumed: one sentence each."""
    found = (
        risk_warning(plan.process),
        passes_note(plan.process),
        plan.shapes.assumed,
        plan.lengths.note(plan.process.model.name_or_path),
    )
    return [note for note in found if note is not None]

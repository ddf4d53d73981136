"""What a family knows to be risky with checkpointing off, as a warning of the plan."""

from __future__ import annotations

from plafond.families import family_for
from plafond.families._contract import Risk
from plafond.job.schema import ProcessConfig
from plafond.language.said import N_, Said, Value

RISKY = N_(
    "train.gradient_checkpointing is false with {settings}: on {model} this often runs out of memory; first try it with"
    " true and batch_size 1, and climb from there"
)


def risk_warning(process: ProcessConfig) -> Said | None:
    """One sentence when every block keeps all and the job has settings that its family says are risky."""
    if process.train.gradient_checkpointing is not False or process.plafond.activation_plan is not None:
        return None
    sides = {side for dataset in process.datasets for side in dataset.resolution}
    if not sides:
        return None
    has = Risk(
        side=max(sides),
        batch=process.train.batch_size,
        resolutions=len(sides),
        controls=max(len(dataset.control_path) for dataset in process.datasets),
    )
    found = [risk for risk in family_for(process.model.arch).risks if _meets(has, risk)]
    if not found:
        return None
    settings: list[Value] = [Said(N_("resolution {size}"), {"size": has.side})]
    if any(risk.batch > 1 for risk in found):
        settings.append(f"batch_size {has.batch}")
    if any(risk.resolutions > 1 for risk in found):
        settings.append(Said(N_("{number} resolutions"), {"number": has.resolutions}))
    if any(risk.controls > 0 for risk in found):
        settings.append(Said(N_("{number} control images"), {"number": has.controls}))
    return Said(RISKY, {"settings": tuple(settings), "model": process.model.arch})


def _meets(has: Risk, risk: Risk) -> bool:
    return (
        has.side >= risk.side
        and has.batch >= risk.batch
        and has.resolutions >= risk.resolutions
        and has.controls >= risk.controls
    )

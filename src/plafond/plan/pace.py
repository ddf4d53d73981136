"""How long a training step takes, as an estimate: what is computed, and what has to come through the link."""

from __future__ import annotations

from plafond.memory.calibration import Rates, processor, rates_for
from plafond.plan.changes import changed
from plafond.plan.forecast import Forecaster, Plan


def work(plan: Plan) -> float:
    """FLOP of training on one picture of the largest bucket.

    Where a step waits for the link to main memory, these are the FLOP that the device could do in that time; where
    nobody knows how fast device and link are, waiting counts nothing.
    """
    phase = next(phase for phase in plan.phases if phase.phase == "train")
    computed = plan.flops_per_picture
    rates = rates_of(plan)
    if rates is not None:
        passed = _through_the_link(plan) / phase.batch
        computed = max(computed, passed / rates.link_bandwidth * rates.matmul_flops)
    return computed


def rates_of(plan: Plan) -> Rates | None:
    """How fast the plan's device is; None when only a size is known."""
    if plan.virtual:
        return rates_for(processor())
    return None if plan.ceiling.gpu is None else rates_for(plan.ceiling.gpu)


def _through_the_link(plan: Plan) -> float:
    """Bytes that pass the link while the work of `Plan.flops_per_picture` is done: twice per step."""
    return 2 * (_streamed(plan) + _offloaded(plan))


def _streamed(plan: Plan) -> int:
    """Bytes of the blocks that stay in main memory."""
    process = plan.process
    if not process.model.layer_offloading:
        return 0
    resident = changed(process, {"model.layer_offloading": False})
    with_all, without = (
        Forecaster(one, plan.ceiling, virtual=plan.virtual).loaded_bytes() for one in (resident, process)
    )
    return max(0, with_all - without)


def _offloaded(plan: Plan) -> int:
    """Bytes of block inputs that wait in main memory."""
    if plan.process.plafond.activation_plan != "offload":
        return 0
    kept = changed(plan.process, {"plafond.activation_plan": "recompute"})
    phase = next(phase for phase in plan.phases if phase.phase == "train")
    (other,) = (
        Forecaster(kept, plan.ceiling, virtual=plan.virtual)
        .plan(plan.shapes, largest_only=True, only=("train",))
        .phases
    )
    return max(0, other.summary.allocated_bytes - phase.summary.allocated_bytes)

"""Which kind of adapter a job trains."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from plafond.job.network import NetworkConfig
from plafond.model.adapter import Adapter
from plafond.model.dora import DoraLinear
from plafond.model.lokr import LokrLinear
from plafond.model.lora import LoraLinear


def adapter_of(network: NetworkConfig) -> Callable[..., Adapter]:
    """What makes the job's kind of adapter of a layer."""
    match network.type:
        case "lokr":
            return partial(LokrLinear, factor=network.lokr_factor, full=network.lokr_full_rank)
        case "dora":
            return DoraLinear
        case _:
            return LoraLinear

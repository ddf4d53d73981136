"""What AI Toolkit's own run of a job takes: the same dry run, with its way of training and of keeping things around.

Its blocks and LoRAs are predicted by `plafond.memory.plainly`; what lies on the device beside the phase at hand is
data of each family (`plafond.families._ai_toolkit`). Parts are measured by dry runs of this job's variants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from plafond.families import family_for
from plafond.families._ai_toolkit import DENSE_TEXT, DENSE_TRANSFORMER, TEXT, TRANSFORMER, VAE
from plafond.job.schema import ProcessConfig
from plafond.memory.gpus import Ceiling
from plafond.plan.changes import changed
from plafond.plan.forecast import Forecaster, Phase, Plan


class AiToolkit:
    """Plans one process as AI Toolkit would run it.

    Args:
        process: the job's process.
        ceiling: what may be taken.
        virtual: the device is a virtual GPU on the CPU.
        step: told each phase that is looked at, with how many there are.
    """

    def __init__(
        self,
        process: ProcessConfig,
        ceiling: Ceiling,
        *,
        virtual: bool = False,
        step: Callable[[str, int, int], None] | None = None,
    ):
        self.asked, self.ceiling, self.virtual, self.step = process, ceiling, virtual, step
        self.family = family_for(process.model.arch)
        self.process = changed(process, self._understood())

    def _understood(self) -> dict[str, Any]:
        """What AI Toolkit makes of settings that it does not know or that have no effect there."""
        values: dict[str, Any] = {"plafond.activation_plan": None, "plafond.tiled_previews": False}
        if self.asked.train.gradient_checkpointing == "auto":
            values["train.gradient_checkpointing"] = True
        if not self.family.residency.offloads:
            values["model.layer_offloading"] = False
        return values

    def plan(self) -> Plan:
        """Every phase."""
        found = self._forecaster({}).plan()
        phases = [self._with_residents(phase) for phase in found.phases if self._happens(phase)]
        return replace(found, process=self.asked, phases=tuple(phases))

    def _happens(self, phase: Phase) -> bool:
        """Captions that are not cached are encoded while training, by encoders that have come with the model."""
        return phase.phase != "encode_text" or self.process.caches_text

    def _with_residents(self, phase: Phase) -> Phase:
        match phase.phase:
            case "load":
                residency = self.family.residency
                moments = residency.load_low_vram if self.process.model.low_vram else residency.load
                most = max(sum(self._bytes[part] for part in moment) for moment in moments)
                there = replace(phase, summary=replace(phase.summary, moment="loading"))
                return self._larger(there, most - phase.summary.allocated_bytes)
            case "train" | "save":
                return self._larger(phase, sum(self._bytes[part] for part in self._beside))
            case "preview":
                # the autoencoder is there to decode; encoders that were only set aside come back
                back = (
                    (TEXT,) if self.process.train.unload_text_encoder and not self.process.caches_text else ()
                )
                parts = (*(part for part in self._beside if part != VAE), *back)
                return self._larger(phase, sum(self._bytes[part] for part in parts))
            case _:
                return phase

    def _larger(self, phase: Phase, more: int) -> Phase:
        """The phase with weights that lie there all the time."""
        if more <= 0:
            return phase
        summary = phase.summary
        kinds = {**summary.kinds, "weights": summary.kinds.get("weights", 0) + more}
        device = phase.device_bytes + more
        return replace(
            phase,
            summary=replace(
                summary,
                kinds=kinds,
                allocated_bytes=summary.allocated_bytes + more,
                reserved_bytes=summary.reserved_bytes + more,
            ),
            device_bytes=device,
            fits=device <= self.ceiling.bytes,
        )

    @property
    def _beside(self) -> tuple[str, ...]:
        """The parts that stay while training does not use them."""
        residency = self.family.residency
        stay = residency.stay_low_vram if self.process.model.low_vram else residency.stay
        cached = all(data.cache_latents or data.cache_latents_to_disk for data in self.process.datasets)
        return stay if cached or VAE in stay else (*stay, VAE)

    @cached_property
    def _bytes(self) -> Mapping[str, int]:
        """Weights of each part, by its name."""
        dense = {"model.quantize": False, "model.quantize_te": False, "model.layer_offloading": False}
        alone = {"train.cache_text_embeddings": True}

        def weights(name: str, values: Mapping[str, Any]) -> int:
            found = self._forecaster({**alone, **values}).plan(largest_only=True, only={name})
            return found.phases[0].summary.kinds.get("weights", 0)

        return {
            TRANSFORMER: weights("load", {}),
            DENSE_TRANSFORMER: weights("load", dense),
            TEXT: weights("encode_text", {}),
            DENSE_TEXT: weights("encode_text", dense),
            VAE: weights("cache_latents", {}),
        }

    def _forecaster(self, values: Mapping[str, Any]) -> Forecaster:
        process = changed(self.process, dict(values))
        return Forecaster(process, self.ceiling, virtual=self.virtual, step=self.step, plain=True)

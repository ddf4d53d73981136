"""Resume states: what a run needs to go on exactly where it was.

All randomness is a function of the step (see `plafond.training.randomness`), so a state is the trained weights, the
optimizer, the average and a few counters. Each state is a torch file with a small manifest beside it that holds its
checksum; the manifest is written last, so a state without one was interrupted and does not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plafond.errors import CheckpointError, ResumeMismatch
from plafond.language.said import N_, Said, listed
from plafond.training.run_folder import RunFolder, remove, write_atomically

DIFFERS = N_("{field} was {then} and is now {now}")
OTHER_RUN = N_(
    "{path} holds a run with other settings: {differences}; change the job back, or start anew with --fresh or another"
    " --name"
)
DAMAGED = N_("the saved state of step {step} is damaged: {path}")

STATES_KEPT = 2
"""The newest state and the one before it, in case the newest is damaged."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What must be the same for a saved state to fit a job."""

    model: str
    network: str
    rank: int | None
    tensors: int
    optimizer: str

    def differences(self, saved: Mapping[str, Any]) -> list[Said]:
        """One phrase for each field in which a saved state differs."""
        now = asdict(self)
        return [
            Said(DIFFERS, {"field": field, "then": str(saved[field]), "now": str(value)})
            for field, value in now.items()
            if field in saved and saved[field] != value
        ]


class Checkpoints:
    """The resume states of one run folder."""

    def __init__(self, folder: RunFolder):
        self.folder = folder

    def save(self, step: int, state: dict[str, Any], identity: Identity) -> None:
        """Write the state after `step` updates and drop the oldest beyond `STATES_KEPT`."""
        import torch

        target = self._state(step)
        write_atomically(target, lambda path: torch.save(state, path))
        manifest = {"step": step, "sha256": _sha256(target), **asdict(identity)}
        write_atomically(self._manifest(step), lambda path: _write_json(path, manifest))
        for old in self.steps()[:-STATES_KEPT]:
            remove(self._manifest(old))
            remove(self._state(old))

    def load_newest(self, identity: Identity) -> tuple[dict[str, Any] | None, list[Said]]:
        """The newest undamaged state, and a sentence for each damaged one that was passed over.

        Raises:
            ResumeMismatch: the newest state belongs to another rank, model or optimizer.
            CheckpointError: states exist and all are damaged.
        """
        import torch

        damaged: list[Said] = []
        steps = self.steps()
        for step in reversed(steps):
            manifest = self._read_manifest(step)
            problem = Said(DAMAGED, {"step": step, "path": self._state(step)})
            if manifest is None or not self._state(step).exists():
                damaged.append(problem)
                continue
            if differences := identity.differences(manifest):
                raise ResumeMismatch(OTHER_RUN, path=self.folder.path, differences=listed(differences))
            if _sha256(self._state(step)) != manifest["sha256"]:
                damaged.append(problem)
                continue
            return torch.load(self._state(step), map_location="cpu", weights_only=True), damaged
        if steps:
            raise CheckpointError(N_("{problems}; start anew with --fresh"), problems=listed(damaged))
        return None, []

    def steps(self) -> list[int]:
        """Steps that have a manifest, oldest first."""
        return sorted(int(path.stem.split("_")[1]) for path in self.folder.resume.glob("step_*.json"))

    def _state(self, step: int) -> Path:
        return self.folder.resume / f"step_{step:09d}.pt"

    def _manifest(self, step: int) -> Path:
        return self.folder.resume / f"step_{step:09d}.json"

    def _read_manifest(self, step: int) -> dict[str, Any] | None:
        try:
            manifest = json.loads(self._manifest(step).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return manifest if isinstance(manifest, dict) and "sha256" in manifest else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")

"""The fastest job that fits: changes down the ladder until it does, then every change that is not needed taken back.

A changed job is always read again from its changed text, so what is planned is what will be written.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plafond.errors import JobError, PlafondError, UsageError
from plafond.job.document import DocumentError, read_yaml
from plafond.job.editing import EditError, edit
from plafond.job.keys import SECTIONS, sections_of_keys
from plafond.job.reading import job_of
from plafond.job.schema import Job, ProcessConfig
from plafond.job.wording import hinted, nearest
from plafond.language.said import N_, Percent, Said, Speak, Value, all_of
from plafond.memory.gpus import Ceiling
from plafond.plan.changes import Values, changed
from plafond.plan.forecast import Forecaster, Plan, margin
from plafond.plan.pace import work
from plafond.plan.rungs import Rung
from plafond.plan.search import AUTO, FASTER, Search, Step, process_of
from plafond.plan.terminal import announced, ceiling_of, is_virtual
from plafond.training.run_folder import write_atomically

FASTER_ONE = N_("train.gradient_checkpointing: auto would make steps {gain} faster and still fit.")
FASTER_OF_SEVERAL = N_(
    "train.gradient_checkpointing: auto would make steps {gain} faster and still fit (process {process})."
)
UNWRITABLE = N_(
    "{file} does not let itself be changed for {remedies}: it shares these settings between places; write them out"
    " where they are shared."
)

INSTEAD = {"plafond.activation_plan": "train.gradient_checkpointing"}
"""Keys that take the place of another: who keeps that one keeps it from these."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What was found for a job.

    Args:
        job: the job as it was.
        before: its plan, for each process.
        text: the changed file; the same when nothing was changed.
        after: the plans of the changed job.
        steps: what was changed.
        missing: what would make it fit but was not allowed; empty when it fits.
        faster: what would make a job faster that fits as it is.
    """

    job: Job
    before: tuple[Plan, ...]
    text: str
    after: tuple[Plan, ...]
    steps: tuple[Step, ...]
    missing: tuple[Said, ...] = ()
    faster: tuple[Said, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the changed job fits."""
        return all(plan.verdict != "oom" for plan in self.after)


class Fitter:
    """Fits one job under a ceiling.

    Args:
        job: as it was read; its overrides are written into the changed file.
        ceiling: what may be taken.
        virtual: the device is a virtual GPU on the CPU.
        allow_quality: changes that may change the quality of what is learnt are allowed.
        keep: settings that stay as they are: dotted keys, sections or bare keys.
        step: told each phase that is looked at, with how many there are.

    Raises:
        UsageError: `keep` names no setting.
        JobError: the file cannot be changed.
    """

    def __init__(
        self,
        job: Job,
        ceiling: Ceiling,
        *,
        virtual: bool = False,
        allow_quality: bool = False,
        keep: Collection[str] = (),
        step: Callable[[str, int, int], None] | None = None,
    ):
        self.ceiling, self.virtual, self.step = ceiling, virtual, step
        self.allow_quality, self.keep = allow_quality, frozenset(map(_known_key, keep))
        self.job = job
        self.text = _with_overrides(job)
        self._plans: dict[tuple[str, bool], Plan] = {}

    def fit(self) -> Fitted:
        """Find the changes, for every process of the job."""
        count = len(self.job.processes)
        text = self.text
        steps: list[Step] = []
        missing: list[Said] = []
        faster: list[Said] = []
        before = tuple(self._first(process_of(self.job, text, index), index) for index in range(count))
        for index in range(count):
            if before[index].verdict == "fits":
                faster += self._faster(before[index], index)
                continue
            search = self._search(text, index)
            if search.over and before[index].verdict == "tight":
                continue  # it runs as it is, and nothing makes the margin larger
            text, steps = search.text, [*steps, *search.steps()]
            if self._too_much(search):
                missing += [said for said in self._missing(index) if said not in missing]
        after = tuple(self._plan(process_of(self.job, text, index), True) for index in range(count))
        return Fitted(
            job=self.job,
            before=before,
            text=text,
            after=after,
            steps=tuple(steps),
            missing=tuple(missing),
            faster=tuple(faster),
        )

    def _first(self, process: ProcessConfig, index: int) -> Plan:
        """The plan of a process as it is; smaller buckets are only looked at where the largest fits."""
        with self.job.placing(index):
            plan = self._plan(process, False)
            return plan if plan.verdict == "oom" else self._plan(process, True)

    def allowed(self, rung: Rung, values: Values) -> bool:
        """Whether a change is one of those that may be made."""
        if rung.quality != "same" and not self.allow_quality:
            return False
        return not any(_covers(kept, key) for key in values for kept in self.keep)

    def _search(self, text: str, index: int) -> Search:
        spare = margin(self.ceiling, virtual=self.virtual)
        return Search(
            self.job,
            text,
            index,
            plan_of=self._plan,
            allowed=self.allowed,
            limit=self.ceiling.bytes - spare,
        ).run()

    def _too_much(self, search: Search) -> bool:
        """Whether it does not even fit tightly."""
        return search.plan.peak.device_bytes > self.ceiling.bytes

    def _plan(self, process: ProcessConfig, full: bool) -> Plan:
        key = (process.model_dump_json(), full)
        if key not in self._plans:
            forecaster = Forecaster(process, self.ceiling, virtual=self.virtual, step=self.step)
            self._plans[key] = forecaster.plan(largest_only=not full)
        return self._plans[key]

    def _faster(self, plan: Plan, index: int) -> list[Said]:
        asked = plan.process.train.gradient_checkpointing
        pinned = plan.process.plafond.activation_plan
        if asked is not True or pinned is not None or not self.allowed(AUTO, AUTO.options[0].values):
            return []
        auto = self._plan(changed(plan.process, AUTO.options[0].values), True)
        ratio = work(auto) / work(plan)
        if auto.verdict != "fits" or ratio > FASTER:
            return []
        values: dict[str, Value] = {"gain": Percent(1 / ratio - 1), "process": index}
        return [Said(FASTER_ONE if len(self.job.processes) == 1 else FASTER_OF_SEVERAL, values)]

    def _missing(self, index: int) -> list[Said]:
        """What would have been enough, for each thing that stands in the way."""
        blocked = dict.fromkeys(self._search(self.text, index).unwritable)
        for quality, keep in ((True, self.keep), (self.allow_quality, frozenset()), (True, frozenset())):
            if (quality, keep) == (self.allow_quality, self.keep):
                continue
            freer = Fitter(
                self.job,
                self.ceiling,
                virtual=self.virtual,
                allow_quality=quality,
                keep=keep,
                step=self.step,
            )
            freer._plans = self._plans
            search = freer._search(self.text, index)
            if not self._too_much(search):
                return [self._sentence(search.steps())]
            blocked |= dict.fromkeys(search.unwritable)
        found = [Said(N_("No change that is known would be enough."))]
        if blocked:
            found.append(Said(UNWRITABLE, {"file": self.job.path.name, "remedies": tuple(blocked)}))
        return found

    def _sentence(self, steps: list[Step]) -> Said:
        needs = []
        if not self.allow_quality and any(step.quality != "same" for step in steps):
            needs.append(Said(N_("with {option}"), {"option": "--allow-quality"}))
        kept = sorted(
            {kept for step in steps for key in step.change for kept in self.keep if _covers(kept, key)}
        )
        needs += [Said(N_("without {option}"), {"option": f"--keep {key}"}) for key in kept]
        ids = tuple(dict.fromkeys(step.id for step in steps))
        return Said(N_("It would fit {needs}, by {remedies}."), {"needs": all_of(needs), "remedies": ids})


def fit(
    job: Job,
    *,
    vram: str | None = None,
    gpu: str | None = None,
    device: str = "auto",
    allow_quality: bool = False,
    keep: Collection[str] = (),
    speak: Speak = str,
) -> Fitted:
    """Find the fastest job that fits, see `plafond.fit`; `speak` puts the line that is shown meanwhile into words."""
    virtual = is_virtual(device)
    ceiling = ceiling_of(vram, gpu, virtual=virtual)
    with announced(speak) as step:
        fitter = Fitter(job, ceiling, virtual=virtual, allow_quality=allow_quality, keep=keep, step=step)
        return fitter.fit()


def write(fitted: Fitted, out: Path | None) -> Path | None:
    """Write a changed job that fits to `out`, by default beside the job as ``<name>.fit.yaml``.

    Returns:
        The file; None when there is nothing to write.

    Raises:
        OutOfSpaceError: the disk is full.
    """
    if not fitted.fits or (out is None and fitted.text == fitted.job.text):
        return None
    path = fitted.job.path
    target = out or path.with_name(f"{path.stem}.fit{path.suffix}")
    mark = codecs.BOM_UTF8 if path.read_bytes().startswith(codecs.BOM_UTF8) else b""
    data = mark + fitted.text.encode()

    def fill(file: Path) -> None:
        file.write_bytes(data)

    write_atomically(target, fill)
    return target


def _with_overrides(job: Job) -> str:
    """The job's text with the settings of the command line written into it.

    Raises:
        JobError: it does not let itself be changed.
    """
    text = job.text
    try:
        for index in range(len(job.processes)):
            for setting in dict.fromkeys(job.overrides.values()):
                key, _, value = setting.partition("=")
                text = edit(text, index, {key.strip(): _parsed(value)}, suffix=job.path.suffix)
        if job_of(text, job.path, name=job.name).processes == job.processes:
            return text
        reason = Said(N_("the settings of --set cannot be written into it"))
    except (EditError, PlafondError) as error:
        reason = error.said
    raise JobError(N_("{reason}; change the file by hand"), reason=reason, file=job.path)


def _parsed(value: str) -> Any:
    try:
        return read_yaml(value).data
    except DocumentError:
        return value.strip()


def _known_key(key: str) -> str:
    """A setting that is kept, under the name that changes know it by; with its section where that is given."""
    parts = [part for part in key.strip().split(".") if not part.isdecimal()]
    if parts[:2] == ["config", "process"]:
        parts = parts[2:]
    homes = sections_of_keys()
    name = parts.pop() if parts else ""
    section = ".".join(parts) if parts else homes.get(name, name)
    if section not in SECTIONS or name not in SECTIONS[section].all():
        near = nearest(name, homes)
        full = near and ".".join(filter(None, (homes[near], near)))
        raise UsageError(hinted(Said(N_("--keep {key}: no setting has that name"), {"key": key}), full))
    alias = SECTIONS[section].model.inputs.get(name)
    return ".".join([*parts, alias.into if alias else name])


def _covers(kept: str, key: str) -> bool:
    """Whether who keeps one key keeps another: the same, one inside of it, or one that takes its place."""
    plain = ".".join(part for part in key.split(".") if not part.isdecimal())
    names = {plain, INSTEAD.get(plain, plain)}
    return any(
        name == kept or name.startswith(f"{kept}.") or name.rpartition(".")[2] == kept for name in names
    )

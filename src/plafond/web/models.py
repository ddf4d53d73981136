"""What goes in and out of the REST API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from plafond.jobs.store import Entry

Text = Annotated[str, StringConstraints(max_length=1_000_000)]
Short = Annotated[str, StringConstraints(max_length=200)]
Resolution = Annotated[int, Field(ge=16, le=16384)]


class Asked(BaseModel):
    """A request's body; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")


class Place(Asked):
    """On what a job runs."""

    device: Short = Field("auto", description="auto, cpu, cuda or cuda:N.")
    vram: Short | None = Field(None, description="A ceiling, as 24GB.")
    gpu: Short | None = Field(None, description='The ceiling of a card, as "RTX 4090".')


class JobText(Place):
    """A job file and on what it runs."""

    text: Text = Field(description="The job file.")
    suffix: Literal[".yaml", ".yml", ".json", ".jsonc"] = Field(".yaml", description="What the text is.")


class NewText(Place):
    """A job's new text; the kind of its file stays."""

    text: Text


class StartOptions(Asked):
    """How a job is queued."""

    force: bool = Field(False, description="Run it although the plan says that it does not fit.")
    fresh: bool = Field(False, description="Start anew; an earlier run is set aside, not deleted.")
    front: bool = Field(False, description="In front of the others that wait.")


class StopOptions(Asked):
    """How a job is stopped."""

    now: bool = Field(False, description="End its process at once; what was saved last is kept.")


class FitOptions(JobText):
    """A job that shall fit."""

    quality: bool = Field(False, description="Allow changes that may change what is learnt.")


class JobInfo(BaseModel):
    """A job of the queue."""

    id: int
    name: str
    kind: str
    parent: int | None
    state: str
    device: str
    vram: str | None
    gpu: str | None
    overrides: list[str]
    force: bool
    steps: int
    step: int
    seconds_left: float | None
    attempts: int
    code: int | None
    message: str
    run_folder: str
    created: float
    queued: float | None
    started: float | None
    ended: float | None

    @classmethod
    def of(cls, entry: Entry) -> JobInfo:
        """A job as it is now."""
        from plafond.jobs.progress import seconds_left, step_of
        from plafond.jobs.store import RUNNING

        values = {name: getattr(entry, name) for name in cls.model_fields if hasattr(entry, name)}
        left = seconds_left(entry) if entry.state == RUNNING and entry.steps else None
        return cls(**values, step=step_of(entry), seconds_left=left)


class JobDetail(JobInfo):
    """A job with its text."""

    text: str
    suffix: str


class LogPart(BaseModel):
    """Part of a log."""

    text: str
    offset: int = Field(description="Where the next part begins.")


class SampleInfo(BaseModel):
    """A preview."""

    step: int
    index: int
    file: str
    url: str


class FileInfo(BaseModel):
    """A file to download."""

    name: str
    bytes: int
    modified: float
    url: str


class MetricsInfo(BaseModel):
    """A run's metrics."""

    rows: list[dict[str, Any]]
    recovered: dict[str, Any]


class DatasetInfo(BaseModel):
    """A data set in a list."""

    name: str
    pictures: int
    cover: str | None


class PictureInfo(BaseModel):
    """A picture of a data set."""

    name: str
    width: int
    height: int
    caption: str
    caption_file: str | None


class DatasetDetail(BaseModel):
    """What a data set holds."""

    name: str
    total: int
    pictures: list[PictureInfo]
    videos: list[str]
    problems: list[str]
    notes: list[str]


class NewDataset(Asked):
    """A data set to be made."""

    name: Short


class Caption(Asked):
    """A picture's caption."""

    caption: Text


class Replacement(Asked):
    """A text to be replaced in all captions."""

    find: Short
    replace: Short = ""
    case: bool = Field(True, description="Capital letters matter.")
    try_only: bool = Field(False, description="Change nothing, only say what would change.")


class Replaced(BaseModel):
    """Captions that have changed, or would."""

    captions: dict[str, str]


class TakenInfo(BaseModel):
    """What came of an upload."""

    added: list[str]
    same: list[str]
    refused: list[str]


class SessionInfo(BaseModel):
    """What a page in a browser has to know about its session."""

    header: str
    csrf: str


class Said(BaseModel):
    """Why something was not done."""

    message: str
    line: int | None = None
    key: str | None = None


class Refusal(BaseModel):
    """An error."""

    error: Said


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal} for status in (400, 401, 403, 404, 409, 413, 421, 422, 429, 507)
}
"""What every route may answer instead, for the API's description."""

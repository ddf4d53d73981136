"""The REST API of jobs: the queue, and what runs leave behind."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from fastapi import Path as InPath
from fastapi.responses import FileResponse, Response

from plafond.job.json_schema import json_schema
from plafond.jobs import queue
from plafond.jobs.devices import device_for
from plafond.jobs.queue import Where
from plafond.jobs.store import Entry
from plafond.language.said import N_
from plafond.memory.gpus import ceiling_for, gpus
from plafond.web import machine, runs
from plafond.web.asking import AskError, Question, only_answer
from plafond.web.datasets import NoSuchError
from plafond.web.models import (
    REFUSALS,
    FileInfo,
    FitOptions,
    JobDetail,
    JobInfo,
    JobText,
    LogPart,
    MetricsInfo,
    NewText,
    Place,
    SampleInfo,
    StartOptions,
    StopOptions,
)
from plafond.web.saving import checker, save
from plafond.web.site import Site

Number = Annotated[int, InPath(ge=1, le=2**31)]
Process = Annotated[int, Query(ge=0, le=1000, description="Of several processes of one job, which.")]


def where_of(place: Place) -> Where:
    """Where a request wants a job to run.

    Raises:
        UsageError: there is no such device, or the ceiling cannot be read.
    """
    if place.vram or place.gpu:
        ceiling_for(place.vram, place.gpu)
    return Where(device_for(place.device), place.vram or None, place.gpu or None)


def router(site: Site) -> APIRouter:
    """The routes below ``/api`` that concern jobs."""
    api = APIRouter(prefix="/api", responses=REFUSALS)
    store = site.store

    def detail(entry: Entry) -> JobDetail:
        return JobDetail(**JobInfo.of(entry).model_dump(), text=entry.text, suffix=entry.suffix)

    @api.get("/jobs", tags=["jobs"])
    def list_jobs() -> list[JobInfo]:
        """What runs, what waits in which order, and what is over."""
        return [JobInfo.of(entry) for entry in store.jobs()]

    @api.post("/jobs", status_code=201, tags=["jobs"])
    def add_job(body: JobText) -> JobDetail:
        """Add a job; it is not queued yet."""
        where = where_of(body)
        return detail(save(site, body.text, body.suffix, where))

    @api.get("/jobs/{number}", tags=["jobs"])
    def get_job(number: Number) -> JobDetail:
        """One job with its text."""
        return detail(store.job(number))

    @api.put("/jobs/{number}", tags=["jobs"])
    def change_job(number: Number, body: NewText) -> JobDetail:
        """Give a job another text or another place to run."""
        entry = store.job(number)
        where = where_of(body)
        return detail(save(site, body.text, entry.suffix, where, entry))

    @api.delete("/jobs/{number}", status_code=204, tags=["jobs"])
    def delete_job(
        number: Number, files: Annotated[bool, Query(description="Delete its run folder, too.")] = False
    ) -> Response:
        """Remove a job from the list."""
        queue.forget(store, store.job(number), files=files)
        return Response(status_code=204)

    @api.post("/jobs/{number}/start", tags=["jobs"])
    def start_job(number: Number, body: Annotated[StartOptions | None, Body()] = None) -> JobInfo:
        """Queue a job; one that was stopped or has failed goes on where it was saved."""
        options = body or StartOptions()
        entry = queue.start(store, store.job(number), **options.model_dump())
        site.work()
        return JobInfo.of(entry)

    @api.post("/jobs/{number}/stop", tags=["jobs"])
    def stop_job(number: Number, body: Annotated[StopOptions | None, Body()] = None) -> JobInfo:
        """Take a job out of the queue or, when it is running, let it save and stop."""
        act = queue.kill if body is not None and body.now else queue.stop
        return JobInfo.of(act(store, store.job(number)))

    @api.post("/jobs/{number}/front", tags=["jobs"])
    def put_in_front(number: Number) -> JobInfo:
        """Put a job that waits in front of the others."""
        return JobInfo.of(queue.to_front(store, store.job(number)))

    @api.post("/jobs/{number}/clone", status_code=201, tags=["jobs"])
    def clone_job(number: Number) -> JobDetail:
        """The same job under a free name."""
        return detail(queue.clone(store, store.job(number)))

    @api.post("/jobs/{number}/gc-test", tags=["jobs"])
    def test_checkpointing(number: Number) -> JobInfo:
        """Queue the experiment of turning gradient checkpointing off."""
        entry = queue.gc_test(store, store.job(number))
        site.work()
        return JobInfo.of(entry)

    @api.get("/jobs/{number}/report", tags=["runs"])
    def get_report(number: Number) -> dict[str, Any]:
        """What the job's command printed when it was done: results of a training, or of an experiment."""
        found = runs.report(site.home.run(store.job(number).id))
        if found is None:
            raise NoSuchError(N_("job {number} has no report yet"), number=number)
        return found

    @api.get("/jobs/{number}/log", tags=["runs"])
    def get_log(number: Number, offset: Annotated[int, Query(ge=0)] = 0, process: Process = 0) -> LogPart:
        """The log from an offset on; without one its last part."""
        entry = store.job(number)
        text, after = runs.log(site.home.run(entry.id), entry, process, offset=offset)
        return LogPart(text=text, offset=after)

    @api.get("/jobs/{number}/metrics", tags=["runs"])
    def get_metrics(
        number: Number, after: Annotated[int, Query(ge=0)] = 0, process: Process = 0
    ) -> MetricsInfo:
        """Loss, time and memory by step, measured and predicted."""
        entry = store.job(number)
        rows = runs.metrics(entry, process, after=after)
        return MetricsInfo(rows=rows, recovered=runs.recoveries(entry, process))

    @api.get("/jobs/{number}/samples", tags=["runs"])
    def list_samples(number: Number, process: Process = 0) -> list[SampleInfo]:
        """The previews by step and prompt."""
        entry = store.job(number)
        at = f"/api/jobs/{entry.id}/samples"
        return [
            SampleInfo(**vars(one), url=f"{at}/{one.file}?process={process}")
            for one in runs.samples(entry, process)
        ]

    @api.get("/jobs/{number}/samples/{file}", tags=["runs"], response_class=FileResponse)
    def get_sample(number: Number, file: str, process: Process = 0) -> FileResponse:
        """One preview."""
        path = runs.sample_path(store.job(number), file, process)
        return FileResponse(path, headers={"cache-control": "private, max-age=31536000, immutable"})

    @api.get("/jobs/{number}/files", tags=["runs"])
    def list_files(number: Number, process: Process = 0) -> list[FileInfo]:
        """What the run has written: weights, pictures, log."""
        entry = store.job(number)
        at = f"/api/jobs/{entry.id}/files"
        return [
            FileInfo(**vars(one), url=f"{at}/{one.name}?process={process}")
            for one in runs.files(entry, process)
        ]

    @api.get("/jobs/{number}/files/{name:path}", tags=["runs"], response_class=FileResponse)
    def get_file(number: Number, name: str, process: Process = 0) -> FileResponse:
        """Download a file of the run."""
        path = runs.file_path(store.job(number), name, process)
        return FileResponse(path, filename=path.name)

    @api.get("/jobs/{number}/diagnosis", tags=["runs"])
    async def diagnose(
        number: Number, language: Annotated[str, Query(pattern="^(en|fr)$")] = "en"
    ) -> dict[str, Any]:
        """Why a run failed, and what to change first, as `plafond doctor --json` says it."""
        question = runs.question_about(site.home.run(number), store.job(number), language)
        answer = await only_answer(site.fitter.ask(question), "diagnosis")
        return dict(answer["report"])

    @api.post("/forecast", tags=["plans"])
    async def forecast(
        body: JobText, remedies: Annotated[bool, Query(description="Look for what would help, too.")] = True
    ) -> list[dict[str, Any]]:
        """What a job will take, phase by phase, one object per process, as `plafond plan --json` says it."""
        where = where_of(body)
        checker(site)(queue.read(body.text, suffix=body.suffix, folder=site.home.path))
        question = Question(
            what="forecast",
            text=body.text,
            suffix=body.suffix,
            folder=str(site.home.path),
            where=where,
            remedies=remedies,
        )
        return await forecast_of(site, question)

    @api.post("/fit", tags=["plans"])
    async def fit(body: FitOptions) -> dict[str, Any]:
        """The fastest job that fits, as `plafond fit --json` says it, with the changed text."""
        where = where_of(body)
        checker(site)(queue.read(body.text, suffix=body.suffix, folder=site.home.path))
        question = Question(
            what="fit",
            text=body.text,
            suffix=body.suffix,
            folder=str(site.home.path),
            where=where,
            quality=body.quality,
        )
        answer = await only_answer(site.fitter.ask(question), "fitted")
        return {**answer["report"], "text": answer["text"]}

    @api.get("/schema", tags=["plans"])
    def get_schema() -> dict[str, Any]:
        """The JSON Schema of job files."""
        return json_schema()

    @api.get("/gpus", tags=["plans"])
    def list_gpus() -> list[dict[str, Any]]:
        """The cards that a ceiling can be named by."""
        return [{"name": gpu.name, "gb": gpu.marketed_gb, "usable_bytes": gpu.usable_bytes} for gpu in gpus()]

    @api.get("/machine", tags=["machine"])
    def get_machine() -> machine.Machine:
        """Devices, their memory, temperature and use, and main memory."""
        return machine.look(site.home.path)

    return api


async def forecast_of(site: Site, question: Question) -> list[dict[str, Any]]:
    """The whole forecast of a job, one object per process.

    Raises:
        AskError: the job cannot be planned as written.
    """
    plans: list[dict[str, Any]] = []
    async for answer in site.planner.ask(question):
        if answer["kind"] == "plan":
            plans.append(answer["plan"])
        elif answer["kind"] == "remedy":
            plans[answer["process"]]["remedies"].append(answer["remedy"])
        elif answer["kind"] == "error":
            raise AskError(answer)
    return plans

"""``plafond queue``: jobs that run in their order, with the terminal closed."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import plafond
from plafond.cli.lang import Lang, spoken
from plafond.language.said import N_, ExactSize, Said, Value

if TYPE_CHECKING:
    from plafond.jobs.cards import Wait
    from plafond.jobs.store import Entry, Store

queue = typer.Typer(
    help="Run jobs in their order with the terminal closed; a card takes several when their ceilings fit together.",
    invoke_without_command=True,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Number = Annotated[int, typer.Argument(metavar="ID", help="Number of the job, as the list shows it.")]


HEADINGS = (N_("id"), N_("job"), N_("state"), N_("step"), N_("device"), N_("ceiling"))
IS = N_("{number} {name}: {state} on {device}")
REMOVED = N_("{number} {name}: removed")
FOLDER_STAYS = N_("{number} {name}: removed; {folder} stays")


@queue.callback()
def overview(context: typer.Context, lang: Lang = None) -> None:
    """List the jobs, when nothing else is asked for."""
    if context.invoked_subcommand is None:
        list_()


@queue.command("list")
def list_(lang: Lang = None, json_: Json = False) -> None:
    """List what runs, what waits in which order, and what is over."""
    entries = _store().jobs()
    if json_:
        _print_json(entries)
        return
    if not entries:
        typer.echo(spoken()(Said(N_("Nothing is queued; plafond queue add JOB queues a job."))))
        return
    from rich.console import Console
    from rich.table import Table

    from plafond.jobs.cards import waits

    speak, waiting = spoken(), waits(entries)
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(speak(Said(heading)), no_wrap=True)
    table.add_column("", no_wrap=True)
    for entry in entries:
        where = entry.vram or entry.gpu or ""
        message = entry.message.splitlines()[0] if entry.message else ""
        if entry.id in waiting:
            message = speak(_waits_for(waiting[entry.id]))
        state = speak(Said(entry.state))
        table.add_row(str(entry.id), entry.name, state, _progress(entry), entry.device, where, message[:60])
    Console(width=120, highlight=False, markup=False).print(table)


@queue.command()
def add(
    jobs: Annotated[
        list[Path], typer.Argument(metavar="JOB...", help="AI Toolkit job files (YAML or JSON).")
    ],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    vram: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="A ceiling, as 24GB, beside which others may run; with --device cpu a virtual GPU of that size.",
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help='The ceiling of a card, as "RTX 4090".')
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; repeatable.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Run even when the plan says that it does not fit.")
    ] = False,
    hold: Annotated[bool, typer.Option("--hold", help="Only add; plafond queue start runs it.")] = False,
    lang: Lang = None,
    json_: Json = False,
) -> None:
    """Queue jobs and start working on them; relative paths in them start at this folder.

    A job that was queued before and is at rest goes on with the file as it is now.
    """
    from plafond.job.folders import missing_folders
    from plafond.jobs import queue as verbs
    from plafond.jobs.devices import device_for
    from plafond.memory.gpus import ceiling_for

    chosen = device_for(device)
    if vram or gpu:
        ceiling_for(vram, gpu)  # says what is wrong with them
    loaded = [plafond.load_job(path, overrides=set_ or ()) for path in jobs]
    for job in loaded:
        for error in missing_folders(job):
            raise error
    store = _store()
    added = []
    for job in loaded:
        entry = verbs.add(
            store,
            job.text,
            suffix=job.path.suffix,
            folder=Path.cwd(),
            where=verbs.Where(chosen, vram, gpu),
            overrides=tuple(set_ or ()),
        )
        added.append(entry if hold else verbs.start(store, entry, force=force))
    _work(store)
    _print(added, json_)


@queue.command()
def start(
    number: Number,
    force: Annotated[
        bool, typer.Option("--force", help="Run it even when the plan says that it does not fit.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew; an earlier run is set aside, not deleted.")
    ] = False,
    front: Annotated[bool, typer.Option("--front", help="Before the others that wait.")] = False,
    lang: Lang = None,
    json_: Json = False,
) -> None:
    """Queue a job again; it goes on where it was saved."""
    from plafond.jobs import queue as verbs

    store = _store()
    entry = verbs.start(store, store.job(number), force=force, fresh=fresh, front=front)
    _work(store)
    _print([entry], json_)


@queue.command()
def stop(
    number: Number,
    now: Annotated[
        bool, typer.Option("--now", help="End its process at once; what was saved last is kept.")
    ] = False,
    lang: Lang = None,
    json_: Json = False,
) -> None:
    """Take a job out of the queue or, when it is running, let it save and stop."""
    from plafond.jobs import queue as verbs

    store = _store()
    entry = (verbs.kill if now else verbs.stop)(store, store.job(number))
    _print([entry], json_)


@queue.command()
def remove(
    number: Number,
    files: Annotated[bool, typer.Option("--files", help="Delete its run folder, too.")] = False,
    lang: Lang = None,
) -> None:
    """Remove a job from the list; its run folder stays."""
    from plafond.jobs import queue as verbs

    store = _store()
    entry = store.job(number)
    verbs.forget(store, entry, files=files)
    values: dict[str, Value] = {"number": entry.id, "name": entry.name, "folder": entry.run_folder}
    typer.echo(spoken()(Said(REMOVED if files else FOLDER_STAYS, values)))


@queue.command()
def work(lang: Lang = None) -> None:
    """Go on with what is queued, as after a restart of the machine; the page does this by itself."""
    store = _store()
    _work(store)
    _print(store.jobs(states=("running", "stopping", "queued")), False)


def _store() -> Store:
    from plafond.jobs.home import Home
    from plafond.jobs.store import Store

    return Store(Home())


def _work(store: Store) -> None:
    from plafond.jobs.worker import start_workers

    start_workers(store.home, store)


def _print(entries: list[Entry], json_: bool) -> None:
    if json_:
        _print_json(entries)
        return
    speak = spoken()
    for entry in entries:
        values: dict[str, Value] = {"number": entry.id, "name": entry.name, "device": entry.device}
        typer.echo(speak(Said(IS, {**values, "state": Said(entry.state)})))


def _print_json(entries: list[Entry]) -> None:
    typer.echo(json.dumps({"schema": 1, "jobs": [as_json(entry) for entry in entries]}, indent=1))


def as_json(entry: Entry) -> dict[str, Any]:
    """A job of the queue for scripts, without its text."""
    from plafond.jobs.progress import step_of

    left_out = ("text", "position", "fruitless", "reached")
    names = [field.name for field in fields(entry) if field.name not in left_out]
    return {name: getattr(entry, name) for name in names} | {"step": step_of(entry)}


def _waits_for(wait: Wait) -> Said:
    if wait.bytes is None:
        return Said(N_("waits until {device} is free"), {"device": wait.device})
    values: dict[str, Value] = {"size": ExactSize(wait.bytes), "device": wait.device}
    return Said(N_("waits for {size} on {device}"), values)


def _progress(entry: Entry) -> str:
    from plafond.jobs.progress import step_of

    step = step_of(entry)
    return f"{step}/{entry.steps}" if entry.steps and step else ""

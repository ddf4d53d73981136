"""The queue: what can be done with jobs, and that no kill loses one or runs it twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import psutil
import pynvml
import pytest
from typer.testing import CliRunner

from conftest import JobMaker
from plafond.cli import app
from plafond.errors import JobError, PlafondError, UsageError
from plafond.jobs import cards, queue, worker
from plafond.jobs.home import Home
from plafond.jobs.progress import newest, seconds_left, step_of
from plafond.jobs.run import RunFiles
from plafond.jobs.store import DONE, DRAFT, FAILED, GC_TEST, QUEUED, RUNNING, STOPPED, STOPPING, Entry, Store
from plafond.memory.gpus import GIB, MIB
from runs import assert_same_weights, folder_of, run

CPU = queue.Where("cpu")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("PLAFOND_HOME", str(tmp_path / "home"))
    return Store(Home())


def added(store: Store, job: Path, where: queue.Where = CPU) -> Entry:
    return queue.add(store, job.read_text(), suffix=job.suffix, folder=job.parent, where=where)


def test_a_job_is_added_changed_cloned_and_forgotten(store: Store, make_job: JobMaker) -> None:
    job = make_job()
    entry = added(store, job)
    assert (entry.name, entry.state, entry.steps) == ("micro", DRAFT, 6)
    assert entry.run_folder == str(folder_of(job).path)
    # the same job again is the same job
    assert added(store, make_job(train={"steps": 9})).id == entry.id
    assert store.job(entry.id).steps == 9

    copy = queue.clone(store, entry)
    assert (copy.name, copy.device) == ("micro-2", "cpu") and copy.id != entry.id
    assert queue.clone(store, copy).name == "micro-3"
    renamed = copy.text.replace("micro-2", "micro")
    with pytest.raises(
        UsageError, match=rf"job {entry.id} \(draft\) writes into .*; give this one another name"
    ):
        queue.change(store, copy, renamed, CPU)
    changed = queue.change(store, copy, copy.text.replace("micro-2", "other"), queue.Where("cpu", "2GB"))
    assert (changed.name, changed.vram, Path(changed.run_folder).name) == ("other", "2GB", "other")
    with pytest.raises(JobError, match=r"train.steps: expected a whole number"):
        queue.change(store, copy, copy.text.replace("steps: 6", "steps: many"), CPU)

    kept = Path(entry.run_folder)
    kept.mkdir(parents=True)
    (kept / "micro.safetensors").touch()
    queue.forget(store, store.job(entry.id))
    assert (kept / "micro.safetensors").exists()
    with pytest.raises(UsageError, match="there is no job"):
        store.job(entry.id)
    queue.forget(store, added(store, job), files=True)
    assert not kept.exists()


def test_states_change_only_from_where_they_may(store: Store, make_job: JobMaker) -> None:
    entry = added(store, make_job())
    queue.start(store, entry)
    with pytest.raises(UsageError, match="is queued already"):
        queue.start(store, store.job(entry.id))
    with pytest.raises(UsageError, match="stop it first"):
        queue.forget(store, entry)
    assert queue.stop(store, store.job(entry.id)).state == DRAFT
    with pytest.raises(UsageError, match="is draft, not running"):
        queue.stop(store, entry)
    queue.start(store, store.job(entry.id))
    claimed = store.claim("cpu")
    assert claimed is not None and (claimed.state, claimed.attempts) == (RUNNING, 1)
    assert store.claim("cpu") is None
    with pytest.raises(UsageError, match="is running; stop it before it is changed"):
        queue.change(store, claimed, claimed.text, CPU)
    assert queue.stop(store, claimed).state == STOPPING
    assert RunFiles(store.home.run(entry.id)).stop.exists()


def test_the_queue_keeps_its_order_and_gives_each_job_once(store: Store, make_job: JobMaker) -> None:
    jobs = [queue.start(store, added(store, make_job(f"job-{n}"))) for n in range(6)]
    queue.start(store, added(store, make_job("first")), front=True)
    other = added(store, make_job("elsewhere"), queue.Where("cuda:1"))
    queue.start(store, other)
    waiting = [entry.name for entry in store.jobs(states=(QUEUED,), device="cpu")]
    assert waiting == ["first", *(f"job-{n}" for n in range(6))]
    with ThreadPoolExecutor(8) as pool:
        claimed = list(pool.map(lambda _: Store(store.home).claim("cpu"), range(12)))
    assert sorted(entry.id for entry in claimed if entry) == sorted([*(job.id for job in jobs), other.id - 1])
    assert store.job(other.id).state == QUEUED


@pytest.mark.parametrize(
    ("ended", "state", "after"),
    [
        ({"code": 0}, RUNNING, DONE),
        ({"code": 0}, STOPPING, DONE),
        ({"code": 130}, STOPPING, STOPPED),
        ({"code": 130}, RUNNING, QUEUED),  # the machine was shut down
        (None, RUNNING, QUEUED),  # kill -9
        (None, STOPPING, STOPPED),
        ({"code": 4}, RUNNING, FAILED),
        ({"code": 1}, STOPPING, STOPPED),
    ],
)
def test_what_a_worker_finds_is_settled(
    store: Store, make_job: JobMaker, ended: dict[str, int] | None, state: str, after: str
) -> None:
    entry = queue.start(store, added(store, make_job()))
    claimed = store.claim("cpu")
    assert claimed is not None
    files = RunFiles(store.home.run(entry.id))
    files.folder.mkdir()
    files.output.write_text("loading\nplafond: out of memory at step 3: 2 GiB\nmore\n")
    if ended is not None:
        files.ended.write_text(json.dumps(ended))
    store.change(entry.id, (RUNNING,), state=state)
    one = worker.Worker(store, "cpu")
    one._attempts = [worker.Attempt(claimed, None)]
    assert one._settle_ended() and not one._attempts
    found = store.job(entry.id)
    assert found.state == after
    assert found.message == ("out of memory at step 3: 2 GiB\nmore" if after == FAILED else "")


def test_a_job_that_is_always_killed_is_given_up(store: Store, make_job: JobMaker) -> None:
    entry = queue.start(store, added(store, make_job()))
    one = worker.Worker(store, "cpu")
    for _ in range(worker.FRUITLESS):
        assert store.job(entry.id).state == QUEUED
        claimed = store.claim("cpu")
        assert claimed is not None
        one._settle(claimed, mine=True)
    found = store.job(entry.id)
    assert found.state == FAILED and "killed 5 times in a row and got no further" in found.message


def test_a_traceback_is_known_by_its_last_line(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    assert worker.last_words(output) == ""
    output.write_text(
        "plafond: an earlier one\nTraceback (most recent call last):\n  File ...\nKeyError: 'x'\n"
    )
    assert worker.last_words(output) == "KeyError: 'x'"


def test_an_experiment_is_a_job_of_its_own(store: Store, make_job: JobMaker) -> None:
    entry = added(store, make_job(), queue.Where("cpu", "600MB"))
    test = queue.gc_test(store, entry)
    assert (test.kind, test.parent, test.state, test.vram) == (GC_TEST, entry.id, QUEUED, "600MB")
    assert worker.command(test, Path("job.yaml")) == (
        ["gc-test", "job.yaml", "--device", "cpu", "--json", "--vram", "600MB"]
    )
    with pytest.raises(UsageError, match="is queued already"):
        queue.gc_test(store, entry)
    assert store.job(entry.id).state == DRAFT


def test_a_database_of_a_later_version_is_refused(store: Store) -> None:
    with store._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA user_version = 9")
    with pytest.raises(PlafondError, match="was made by a later version of plafond"):
        Store(store.home)


# ---------------------------------------------------------------------------------------------------- several at once


class Workshop(worker.Worker):
    """A worker whose jobs do nothing until they are ended."""

    def _start(self, entry: Entry) -> subprocess.Popen[bytes]:
        self.store.home.run(entry.id).mkdir(exist_ok=True)
        return subprocess.Popen(["sleep", "600"])

    def running(self) -> list[str]:
        """Start what may start; the names of what runs."""
        self._start_those_with_room()
        return [attempt.entry.name for attempt in self._attempts]

    def end(self, *names: str, killed: bool = False) -> None:
        """Let jobs end at the same time."""
        for attempt in self._attempts:
            if attempt.entry.name in names and attempt.process is not None:
                if not killed:
                    ended = RunFiles(self.store.home.run(attempt.entry.id)).ended
                    ended.write_text('{"code": 0}')
                attempt.process.kill()
                attempt.process.wait()
        assert self._settle_ended()


@pytest.fixture
def shop(store: Store) -> Iterator[Workshop]:
    """On a virtual card of 100 MB."""
    made = Workshop(store, "cpu", lambda held: 100 * MIB)
    yield made
    for attempt in made._attempts:
        if attempt.process is not None:
            attempt.process.kill()
            attempt.process.wait()


def test_jobs_run_beside_each_other_where_their_ceilings_fit(
    store: Store, make_job: JobMaker, shop: Workshop
) -> None:
    def queued(name: str, vram: str | None = None, gpu: str | None = None, force: bool = False) -> Entry:
        return queue.start(store, added(store, make_job(name), queue.Where("cpu", vram, gpu)), force=force)

    a, b = queued("a", "40MB"), queued("b", "60MB")
    for name, vram in (("c", "40MB"), ("d", None), ("e", "1MB")):
        queued(name, vram)
    assert shop.running() == ["a", "b"]
    shop.end("a")
    assert shop.running() == ["b", "c"]  # d takes all of the card, and e does not pass it
    shop.end("b")
    assert shop.running() == ["c"]
    shop.end("c")
    assert shop.running() == ["d"]
    shop.end("d")
    # two that are killed stay in front in their order, and go on one at a time, since neither has got further
    f = queued("f", "99MB")
    assert shop.running() == ["e", "f"]
    shop.end("e", killed=True)
    queued("x", "1MB")
    shop.end("f", killed=True)
    assert [entry.name for entry in store.jobs(states=(QUEUED,))] == ["e", "f", "x"]
    assert shop.running() == ["e"]
    shop.end("e")
    assert shop.running() == ["f"]
    queue.stop(store, store.job(f.id))
    shop.end("f", killed=True)
    assert store.job(f.id).state == STOPPED
    assert shop.running() == ["x"]
    shop.end("x")
    # a ceiling above the card, one that the plan is forced past, and an experiment are alone; a job may try all
    queued("g", gpu="RTX 4090")
    queued("h", "1MB")
    assert shop.running() == ["g"]
    shop.end("g")
    assert shop.running() == ["h"]
    queued("i", "1MB", force=True)
    queue.gc_test(store, a)
    queue.gc_test(store, b)
    assert shop.running() == ["h"]
    shop.end("h")
    assert shop.running() == ["i"]
    shop.end("i")
    assert shop.running() == ["a · gc-test"]
    # without a card's capacity one at a time
    shop.capacity = None
    queue.start(store, store.job(a.id))
    shop.end("a · gc-test")
    assert shop.running() == ["b · gc-test"]


def test_a_job_is_claimed_as_it_was_looked_at(store: Store, make_job: JobMaker) -> None:
    entry = queue.start(store, added(store, make_job(), queue.Where("cpu", "1MB")))
    seen = []

    def may(found: Entry) -> bool:
        seen.append(found.vram)
        if len(seen) == 1:  # somebody edits it at this moment
            queue.change(store, found, found.text, queue.Where("cpu", "2MB"))
        return True

    assert (store.claim("cpu", may), seen) == (store.job(entry.id), ["1MB", "2MB"])


def test_what_waits_for_room_says_so(store: Store, make_job: JobMaker) -> None:
    from plafond.web.pages import jobs as jobs_page
    from plafond.web.words import words

    places = [("cuda:0", None), ("cuda:0", "8GB"), ("cuda:0", "1GB"), ("cuda:1", "1GB"), ("cpu", None)]
    jobs = [
        queue.start(store, added(store, make_job(f"job-{n}"), queue.Where(*place)))
        for n, place in enumerate(places)
    ]
    assert cards.waits(store.jobs()) == {}
    assert store.claim("cuda:0") is not None
    assert cards.waits(store.jobs()) == {jobs[1].id: ("cuda:0", 8 * GIB)}
    rows = json.loads(json.dumps(jobs_page._rows(SimpleNamespace(store=store))))
    assert [jobs_page._said(words("fr"), row)["message"] for row in rows[:3]] == [
        "",
        "attend 8,0 Gio sur cuda:0",
        "",
    ]
    assert "waits for 8.00 GiB on cuda:0" in CliRunner().invoke(app, ["queue", "list"]).stdout
    queue.to_front(store, jobs[2])
    queue.change(store, jobs[2], jobs[2].text, queue.Where("cuda:0"))
    assert cards.waits(store.jobs()) == {jobs[2].id: ("cuda:0", None)}


class Driver:
    """NVML as it answers about one card of 24 GiB: others have 1 GiB of it, and 0.5 GiB are the driver's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.jobs: dict[int, int] = {}
        self.others, self.tells, self.mode = 3 * GIB // 2, True, pynvml.NVML_COMPUTEMODE_DEFAULT
        self.asked: list[object] = []
        answers = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetHandleByIndex": self.asked.append,
            "nvmlDeviceGetHandleByUUID": self.asked.append,
            "nvmlDeviceGetComputeMode": lambda handle: self.mode,
            "nvmlDeviceGetMigMode": self._mig,
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetComputeRunningProcesses": self._processes,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, answer)
        monkeypatch.setattr(cards.Card, "_handle", lambda card: "handle")

    def _mig(self, handle: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def _memory(self, handle: object) -> SimpleNamespace:
        return SimpleNamespace(total=24 * GIB, free=24 * GIB - self.others - sum(self.jobs.values()))

    def _processes(self, handle: object) -> list[SimpleNamespace]:
        taken = self.jobs if self.tells else dict.fromkeys(self.jobs)
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in taken.items()]


def test_a_card_holds_what_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, card = Driver(monkeypatch), cards.Card("cuda:0")
    left = 24 * GIB - driver.others
    held = [(1, 8 * GIB), (2, 6 * GIB)]
    driver.jobs = {1: 5 * GIB}  # the second has just been started
    assert card.capacity(held) == left
    driver.tells = False
    assert card.capacity(held) == left - 5 * GIB  # nobody knows whose they are
    driver.jobs = {}
    assert card.capacity([]) == left
    driver.jobs = {1: 5 * GIB, 2: 6 * GIB}
    assert card.capacity(held) == left
    driver.others += 4 * GIB  # 3 GiB of them may be the first job's, as far as anybody knows
    assert card.capacity(held) == left - GIB
    driver.tells = True
    assert card.capacity(held) == left - 4 * GIB
    driver.jobs = {1: 9 * GIB, 2: 6 * GIB}  # a context that is larger than was planned
    assert card.capacity(held) == left - 5 * GIB
    driver.mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    assert card.capacity(held) == 0


def test_a_card_is_the_one_that_torch_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = cards.Card._handle
    driver = Driver(monkeypatch)
    for visible in (None, "3,2", "0,GPU-8932f937", "0"):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        handle(cards.Card("cuda:1"))
    assert driver.asked == [1, 2, "GPU-8932f937"]


# ---------------------------------------------------------------------------------------------------- processes


@pytest.fixture
def reaped(store: Store) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Workers that a test starts; whatever is left at its end is killed."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for entry in store.jobs(states=(RUNNING, STOPPING, QUEUED)):
        queue.kill(store, entry)
    for process in started:
        process.kill()
        process.wait()


def until(condition: Callable[[], object], seconds: float = 90) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "this takes too long"
        time.sleep(0.05)


def test_a_job_survives_kills_and_its_lora_is_the_same(
    store: Store, make_job: JobMaker, reaped: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    settings = {"train": {"steps": 120}, "save": {"save_every": 10, "max_step_saves_to_keep": 2}}
    undisturbed = run(make_job("undisturbed", **settings))
    job = make_job(**settings)
    entry = queue.start(store, added(store, job))
    files = RunFiles(store.home.run(entry.id))

    def work() -> None:
        reaped.extend(worker.start_workers(store.home, store))

    def step() -> int:
        return step_of(entry)

    # the worker alone: what it started goes on, and the next worker waits for it
    work()
    until(lambda: step() >= 20)
    reaped[-1].kill()
    reaped[-1].wait()
    first = files.read(files.process)
    assert first is not None and psutil.pid_exists(first["pid"])
    work()
    reaped.append(worker.start_worker(store.home, "cpu"))  # a second one is superfluous, and ends
    until(lambda: "taken over" in store.home.log("cpu").read_text())
    # the run alone: the same worker runs it again
    until(lambda: step() >= 45)
    os.kill(first["pid"], signal.SIGKILL)
    until(lambda: (files.read(files.process) or first)["pid"] != first["pid"])
    until(lambda: store.job(entry.id).state == DONE)

    folder = folder_of(job)
    assert_same_weights(folder.final, undisturbed.files[0])
    assert [row["step"] for row in folder.read_metrics()] == list(range(1, 121))
    history = [json.loads(line) for line in files.history.read_text().splitlines()]
    # one was killed, one came to its end
    assert [line["event"] for line in history] == ["start", "start", "end"]
    assert history[-1]["code"] == 0 and len({line["pid"] for line in history}) == 2
    until(lambda: all(process.poll() is not None for process in reaped))  # nothing is left to do
    assert json.loads(files.result.read_text())["runs"][0]["steps"] == 120


CARD = """
from plafond.jobs.home import Home
from plafond.jobs.store import Store
from plafond.jobs.worker import Worker
Worker(Store(Home()), "cpu", lambda held: 9 * 2**20 - 1).work()
"""


def test_jobs_that_share_a_card_survive_kills_and_give_the_same_loras(
    store: Store, make_job: JobMaker, reaped: list[subprocess.Popen[bytes]]
) -> None:
    settings = {"train": {"steps": 80}, "save": {"save_every": 10, "max_step_saves_to_keep": 2}}
    undisturbed = run(make_job("undisturbed", **settings))
    jobs = [make_job("first", **settings), make_job("second", **settings)]
    large = make_job("large", train={"gradient_checkpointing": False}, datasets={"resolution": [512]})
    entries = [
        queue.start(store, added(store, job, queue.Where("cpu", vram)))
        for job, vram in ((jobs[0], "4MB"), (jobs[1], "4MB"), (large, "1MB"))
    ]
    files = [RunFiles(store.home.run(entry.id)) for entry in entries]

    def work() -> None:
        reaped.append(subprocess.Popen([sys.executable, "-c", CARD]))

    def states() -> list[str]:
        return [store.job(entry.id).state for entry in entries]

    work()
    until(lambda: all(step_of(entry) >= 12 for entry in entries[:2]))
    assert states() == [RUNNING, RUNNING, QUEUED]  # no room for the third
    # the worker alone, then both of its jobs at once
    reaped[-1].kill()
    reaped[-1].wait()
    for one in files[:2]:
        found = one.read(one.process)
        assert found is not None
        os.kill(found["pid"], signal.SIGKILL)
    assert states() == [RUNNING, RUNNING, QUEUED]
    work()
    until(lambda: states() == [DONE, DONE, FAILED])

    for job in jobs:
        assert_same_weights(folder_of(job).final, undisturbed.files[0])
        assert [row["step"] for row in folder_of(job).read_metrics()] == list(range(1, 81))
    events = [[json.loads(line) for line in one.history.read_text().splitlines()] for one in files]
    assert [[event["event"] for event in one] for one in events] == [
        ["start", "start", "end"],
        ["start", "start", "end"],
        ["start", "end"],
    ]
    (_, began, ended), (_, other_began, other_ended), (last_began, _) = (
        [event["time"] for event in one] for one in events
    )
    # side by side again, in their order; then the third, which does not fit into its ceiling and so has run nothing
    assert began < other_ended and other_began < ended and last_began > min(ended, other_ended)
    claimed = [store.job(entry.id).started or 0.0 for entry in entries]
    assert claimed == sorted(claimed)
    refused = store.job(entries[2].id)
    assert refused.code == 3 and "Nothing was run" in refused.message
    assert not folder_of(large).path.exists()


def test_a_second_process_of_a_job_leaves_it_alone(store: Store, tmp_path: Path) -> None:
    from filelock import FileLock

    folder = tmp_path / "run"
    folder.mkdir()
    code = "from plafond.jobs import run; run.LOCK_SECONDS = 0.1; run.main()"
    with FileLock(folder / "lock"):
        command = [sys.executable, "-c", code, str(folder), "gpus"]
        assert subprocess.run(command, check=False, capture_output=True).returncode == 75
    assert not (folder / "ended.json").exists()
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert json.loads((folder / "ended.json").read_text())["code"] == 0


def test_the_terminal_adds_lists_and_stops(store: Store, make_job: JobMaker, tmp_path: Path) -> None:
    def cli(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "plafond", "queue", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    job = make_job()
    done = cli("add", job, "--device", "cpu", "--vram", "2GB", "--hold", "--set", "train.steps=5")
    assert (done.returncode, done.stdout) == (0, "1 micro: draft on cpu\n")
    (listed,) = json.loads(cli("list", "--json").stdout)["jobs"]
    assert (listed["name"], listed["vram"], listed["steps"], listed["step"]) == ("micro", "2GB", 5, 0)
    assert listed["overrides"] == ["train.steps=5"] and "text" not in listed
    refused = cli("stop", 1)
    assert (refused.returncode, refused.stderr) == (2, "plafond: job 1 is draft, not running\n")
    assert cli("remove", 1).stdout.startswith("1 micro: removed; ")
    assert "Nothing is queued" in cli().stdout


def test_progress_is_read_from_the_end_of_the_metrics(store: Store, make_job: JobMaker) -> None:
    entry = added(store, make_job(train={"steps": 9000}))
    assert step_of(entry) == 0 and seconds_left(entry) is None
    folder = Path(entry.run_folder)
    folder.mkdir(parents=True)
    rows = [json.dumps({"step": step, "seconds": 0.5, "loss": 0.1}) for step in range(1, 3001)]
    (folder / "metrics.jsonl").write_text("\n".join(rows) + '\n{"step": 30')
    assert step_of(entry) == 3000 and len(newest(folder, 20)) == 20
    assert seconds_left(entry) == pytest.approx(3000)

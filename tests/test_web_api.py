"""The page's REST API: what it can do, and what nobody can make it do."""

from __future__ import annotations

import io
import re
import socket
import struct
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from PIL import Image
from starlette.websockets import WebSocketDisconnect

import plafond
from plafond.errors import UsageError
from plafond.jobs.home import Home
from plafond.web import guard, uploads
from plafond.web.app import make_app
from plafond.web.guard import COOKIE, CSRF_HEADER, Access
from plafond.web.serve import access_for, serve
from plafond.web.site import Site

TOKEN = "a token that nobody guesses"
SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
TINY_FLUX = Path(plafond.__file__).parent / "assets" / "tiny-flux"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with pytest.MonkeyPatch.context() as patch:
        # jobs wait; the queue's own tests run them
        patch.setattr(Site, "work", lambda self: None)
        yield Site(Home(tmp_path_factory.mktemp("home")).make(), Access("127.0.0.1", 8675))


@pytest.fixture(scope="module")
def client(site: Site) -> Iterator[TestClient]:
    with TestClient(make_app(site), base_url="http://localhost:8675") as client:
        yield client


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[tuple[Site, TestClient]]:
    """A page that others can reach."""
    site = Site(Home(tmp_path / "home").make(), Access("0.0.0.0", 8675, TOKEN))
    yield site, TestClient(make_app(site), base_url="http://plafond.test", follow_redirects=False)


def job_text(name: str = "cat", **train: Any) -> str:
    lines = "".join(f"\n        {key}: {value}" for key, value in train.items())
    return f"""# mine
job: extension
config:
  name: {name}
  process:
    - type: sd_trainer
      training_folder: output
      network: {{type: lora, linear: 16}}
      datasets:
        - folder_path: datasets/cats
          resolution: [128]
      train:
        batch_size: 4
        steps: 6
        dtype: fp32
        cache_text_embeddings: true
        disable_sampling: true{lines}
      model:
        name_or_path: {TINY_FLUX}
        arch: flux
"""


def picture(kind: str = "PNG", size: tuple[int, int] = (160, 128)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (200, 120, 40)).save(file, kind)
    return file.getvalue()


def archive(files: dict[str, bytes], *, link: str = "") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data in files.items():
            opened.writestr(name, data)
        if link:
            entry = zipfile.ZipInfo(link)
            entry.external_attr = 0o120777 << 16
            opened.writestr(entry, "/etc/passwd")
    return file.getvalue()


def damaged(method: int) -> bytes:
    """An archive with one text, whose packed bytes are not what was packed."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as opened:
        opened.writestr("a.txt", "hello world " * 200)
    data = bytearray(file.getvalue())
    data[45:49] = bytes(255 - one for one in data[45:49])
    return bytes(data)


def put(client: TestClient, name: str, data: bytes, dataset: str = "cats", **query: Any) -> Any:
    return client.put(f"/api/datasets/{dataset}/files/{name}", content=data, params=query)


def test_a_job_is_added_changed_started_stopped_cloned_and_removed(client: TestClient, site: Site) -> None:
    added = client.post("/api/jobs", json={"text": job_text(), "device": "cpu", "vram": "75MB"})
    assert added.status_code == 201, added.text
    job = added.json()
    assert (job["name"], job["state"], job["vram"], job["steps"]) == ("cat", "draft", "75MB", 6)
    at = f"/api/jobs/{job['id']}"
    assert job["run_folder"] == str(site.home.output / "cat")

    changed = client.put(at, json={"text": job_text().replace("steps: 6", "steps: 9"), "device": "cpu"})
    assert changed.json()["steps"] == 9 and changed.json()["text"].startswith("# mine\n")
    assert client.post(f"{at}/start").json()["state"] == "queued"
    again = client.post(f"{at}/start")
    assert again.status_code == 400 and "is queued already" in again.json()["error"]["message"]
    assert client.delete(at).status_code == 400
    assert client.post(f"{at}/stop", json={"now": True}).json()["state"] == "draft"
    copy = client.post(f"{at}/clone").json()
    assert copy["name"] == "cat-2" and "name: cat-2" in copy["text"]
    assert {entry["id"] for entry in client.get("/api/jobs").json()} == {job["id"], copy["id"]}
    assert client.delete(f"/api/jobs/{copy['id']}").status_code == 204
    assert client.get(f"/api/jobs/{copy['id']}").status_code == 404


@pytest.mark.parametrize(
    ("old", "new", "key", "line", "message"),
    [
        ("steps: 6", "steps: many", "train.steps", 14, "expected a whole number"),
        ("arch: flux", "arch: fluks", "model.arch", 20, "did you mean flux?"),
        (
            "- folder_path: datasets/cats",
            "- folder_path: /etc",
            "datasets.0.folder_path",
            10,
            "/etc is elsewhere",
        ),
        (
            "- folder_path: datasets/cats",
            "- folder_path: datasets/../../x",
            "datasets.0.folder_path",
            10,
            "is elsewhere",
        ),
        ("training_folder: output", "training_folder: /tmp", "training_folder", 7, "writes runs only into"),
        ("name: cat", "name: ../cat", "config.name", 4, "a name that can be a folder's"),
        ("job: extension", "job: [", None, 2, "the bracket that opens here is not closed"),
    ],
)
def test_what_is_wrong_with_a_job_is_said_with_its_line(
    client: TestClient, old: str, new: str, key: str | None, line: int, message: str
) -> None:
    text = job_text()
    assert old in text
    found = client.post("/api/jobs", json={"text": text.replace(old, new), "device": "cpu"})
    assert found.status_code == 422, found.text
    said = found.json()["error"]
    assert message in said["message"] and said["line"] == line and said["key"] == key, said


def test_requests_that_make_no_sense_are_refused_in_one_sentence(client: TestClient) -> None:
    text = job_text("other")
    for body, message in [
        ({"text": text, "device": "tpu"}, "expected auto, cpu, cuda or cuda:N"),
        ({"text": text, "vram": "24 parsecs"}, "24 parsecs"),
        ({"text": text, "suffix": ".exe"}, "body.suffix"),
        ({"text": text, "shell": "rm"}, "body.shell"),
        ({}, "body.text"),
    ]:
        found = client.post("/api/jobs", json=body)
        assert found.status_code in (400, 422) and message in found.json()["error"]["message"], found.text
    assert client.get("/api/jobs/999").json()["error"]["message"].startswith("there is no job 999")
    assert client.get("/api/nothing").status_code == 404
    huge = client.post("/api/jobs", content=b" " * (5 * 2**20), headers={"content-type": "application/json"})
    assert huge.status_code == 413 and "larger than 4 MiB" in huge.json()["error"]["message"]


def test_a_forecast_names_what_helps_and_fit_writes_it(client: TestClient, site: Site) -> None:
    cats = site.datasets.create("forecast")
    for number in range(5):
        (cats / f"{number}.png").write_bytes(picture())
    text = job_text(gradient_checkpointing="false").replace("datasets/cats", "datasets/forecast")
    body = {"text": text, "device": "cpu", "vram": "60MB"}
    (plan,) = client.post("/api/forecast", json=body).json()
    assert plan["verdict"] == "oom" and plan["peak"]["phase"] == "train"
    first = plan["remedies"][0]
    assert first["id"] == "checkpointing_on" and first["saves_bytes"] > 0
    assert first["change"] == {"train.gradient_checkpointing": [False, True]}
    fitted = client.post("/api/fit", json=body).json()
    assert fitted["fits"] and fitted["text"].startswith("# mine\n")
    (after,) = client.post("/api/forecast", json={**body, "text": fitted["text"]}).json()
    assert after["verdict"] == "fits" and after["remedies"] == []
    wrong = client.post("/api/forecast", json={**body, "text": text.replace("steps: 6", "steps: -6")})
    assert wrong.status_code == 422 and wrong.json()["error"]["line"] == 14


def test_models_are_listed_with_their_cards(client: TestClient) -> None:
    found = {model["title"]: model for model in client.get("/api/models").json()}
    flux = found["FLUX.1-dev"]
    assert flux["weights_bytes"]["bf16"] == 2 * flux["transformer_parameters"]
    assert {fit["card_gb"] for fit in flux["lora"]} >= {32, 12}


def test_what_a_run_leaves_can_be_read_and_nothing_beside_it(client: TestClient, site: Site) -> None:
    job = client.post("/api/jobs", json={"text": job_text("left"), "device": "cpu"}).json()
    at, folder = f"/api/jobs/{job['id']}", Path(job["run_folder"])
    (folder / "samples").mkdir(parents=True)
    (folder / "resume").mkdir()
    (folder / "left.safetensors").write_bytes(b"weights")
    (folder / "resume" / "step_000000006.pt").write_bytes(b"state")
    (folder / "samples" / "1700000000000__000000004_1.jpg").write_bytes(picture("JPEG"))
    (folder / "log.txt").write_text("one\ntwo\n")
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.4}\n{"ste')
    (folder / "escape.txt").symlink_to("/etc/passwd")
    files = {file["name"]: file for file in client.get(f"{at}/files").json()}
    assert next(iter(files)) == "left.safetensors" and not any("resume" in name for name in files)
    weights = client.get(files["left.safetensors"]["url"])
    assert weights.content == b"weights" and "attachment" in weights.headers["content-disposition"]
    (sample,) = client.get(f"{at}/samples").json()
    assert (sample["step"], sample["index"]) == (4, 1)
    assert client.get(sample["url"]).headers["content-type"] == "image/jpeg"
    assert [row["loss"] for row in client.get(f"{at}/metrics").json()["rows"]] == [0.5, 0.4]
    log = client.get(f"{at}/log").json()
    assert log["text"] == "one\ntwo\n"
    assert client.get(f"{at}/log", params={"offset": log["offset"]}).json()["text"] == ""
    for name in (
        "escape.txt",
        "%2e%2e/%2e%2e/plafond.db",
        "..%2f..%2fplafond.db",
        "/etc/passwd",
        "%2Fetc%2Fpasswd",
        "resume/step_000000006.pt",
        ".lock",
        "a%00b",
    ):
        found = client.get(f"{at}/files/{name}")
        assert found.status_code in (403, 404), (name, found.status_code)
    assert client.get(f"{at}/samples/..%2Fleft.safetensors").status_code == 404
    assert client.get(f"{at}/files", params={"process": 3}).status_code == 404
    assert client.get(f"{at}/report").status_code == 404


def test_a_data_set_is_made_filled_captioned_and_emptied(client: TestClient, site: Site) -> None:
    assert client.post("/api/datasets", json={"name": "cats"}).status_code == 201
    assert client.post("/api/datasets", json={"name": "cats"}).status_code == 400
    assert put(client, "a.png", picture()).json()["added"] == ["a.png"]
    assert put(client, "a.png", picture()).json()["same"] == ["a.png"]
    other = picture(size=(64, 64))
    assert put(client, "a.png", other).status_code == 409
    assert put(client, "a.png", other, replace=True).json()["added"] == ["a.png"]
    several = archive({"sub/b.jpg": picture("JPEG"), "sub/b.txt": b"a red cat", "__MACOSX/._b.jpg": b"x"})
    assert put(client, "more.zip", several).json()["added"] == ["sub/b.jpg", "sub/b.txt"]

    caption = client.put("/api/datasets/cats/captions/a.png", json={"caption": " a cat,\nsleeping "})
    assert caption.json() == {"caption": "a cat,\nsleeping"}
    found = client.get("/api/datasets/cats").json()
    assert [(one["name"], one["caption"]) for one in found["pictures"]] == [
        ("a.png", "a cat,\nsleeping"),
        ("sub/b.jpg", "a red cat"),
    ]
    would = {"find": "CAT", "replace": "dog", "case": False}
    assert client.post("/api/datasets/cats/replace", json={**would, "try_only": True}).json() == {
        "captions": {"a.png": "a dog,\nsleeping", "sub/b.jpg": "a red dog"}
    }
    assert (site.datasets.root / "cats" / "sub" / "b.txt").read_text() == "a red cat"
    client.post("/api/datasets/cats/replace", json=would)
    assert (site.datasets.root / "cats" / "sub" / "b.txt").read_text() == "a red dog\n"

    small = client.get("/api/datasets/cats/thumbnails/sub/b.jpg")
    assert small.headers["content-type"] == "image/webp"
    assert client.get("/api/datasets/cats/files/sub/b.jpg").content == picture("JPEG")
    buckets = client.get("/api/datasets/cats/buckets", params={"resolution": [64, 128]}).json()
    assert buckets["64"] == {"64x64": 2} and sum(buckets["128"].values()) == 2
    assert client.get("/api/datasets").json()[0]["pictures"] == 2
    assert client.delete("/api/datasets/cats/files/sub/b.jpg").status_code == 204
    assert not (site.datasets.root / "cats" / "sub" / "b.txt").exists()
    assert client.delete("/api/datasets/cats").status_code == 204
    assert client.get("/api/datasets/cats").status_code == 404


@pytest.fixture
def dataset(client: TestClient, site: Site) -> Iterator[Path]:
    folder = site.datasets.create("checked")
    yield folder
    site.datasets.delete("checked")


def leftovers(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "name", ["..", "../x", "a/b", ".hidden", "_private", "con", "a:b", "x" * 101, "", "ta\tb", "end."]
)
def test_names_that_are_none_are_refused(client: TestClient, name: str) -> None:
    found = client.post("/api/datasets", json={"name": name})
    assert found.status_code == 403 and "cannot be a name here" in found.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "data", "status", "message"),
    [
        ("a.png", b"not a picture", 422, "a.png"),
        ("a.png", picture()[:60], 422, "a.png"),
        ("a.svg", b"<svg onload='x'/>", 422, ".svg is not taken"),
        ("a.html", b"<script>", 422, ".html is not taken"),
        ("a.txt", b"\0\1\2\3\4", 422, "not a text"),
        ("a.mp4", b"MZ" + bytes(60), 422, "not a video"),
        ("metadata.jsonl", b'{"file_name": "/etc/passwd", "text": "x"}', 403, "/etc/passwd"),
        ("..%2Fa.png", picture(), 405, ""),
        ("%2e%2e", picture(), 403, "cannot be a name"),
        ("a.zip", b"PK not", 422, "cannot be unpacked"),
        ("a.zip", archive({"x.zip": archive({"y.txt": b"y"})}), 201, "archives in archives"),
        ("a.zip", archive({"../out.png": picture()}), 201, "cannot be a name"),
        ("a.zip", archive({"/abs.png": picture()}), 201, "cannot be a name"),
        ("a.zip", archive({}, link="l.png"), 201, "links in archives"),
        ("a.zip", archive({"a.exe": b"MZ"}), 201, ".exe is not taken"),
        ("a.zip", damaged(zipfile.ZIP_STORED), 201, "damaged"),
        ("a.zip", damaged(zipfile.ZIP_DEFLATED), 201, "damaged"),
        ("a.zip", damaged(zipfile.ZIP_BZIP2), 201, "damaged"),
        ("a.zip", damaged(zipfile.ZIP_LZMA), 201, "damaged"),
    ],
)
def test_uploads_are_what_they_say_or_are_refused(
    client: TestClient, dataset: Path, name: str, data: bytes, status: int, message: str
) -> None:
    found = put(client, name, data, "checked")
    assert found.status_code == status, found.text
    said = "".join(found.json()["refused"]) if status == 201 else found.json()["error"]["message"]
    assert message in said
    assert leftovers(dataset) == [] and not (dataset.parent / "out.png").exists()


def test_refused_uploads_are_named_in_the_language_of_the_page(client: TestClient, dataset: Path) -> None:
    def answer(name: str, data: bytes) -> str:
        found = put(client, name, data, "checked", language="fr").json()
        return ("".join(found["refused"]) if "refused" in found else found["error"]["message"]).replace(
            "\u00a0", " "
        )

    assert answer("a.png", b"") == "a.png : le fichier est vide (0 octet) ; il faut une image."
    assert answer("m.json", b"{") == (
        "m.json : JSON non valide (Expecting property name enclosed in double quotes) ; il faut une liste d’images."
    )
    assert answer("a.zip", archive({"b/c": b"x"})) == (
        "c : un fichier sans extension n’est pas accepté ; il faut des images (JPEG, PNG, WebP et autres), des légendes"
        " (.txt), des vidéos (MP4, WebM) ou un .zip de ces fichiers"
    )
    assert answer(".a.png", b"").startswith("'.a.png' ne peut pas servir de nom ici : ")


def test_what_is_wrong_with_a_data_set_is_said_without_the_way_to_it(
    client: TestClient, dataset: Path
) -> None:
    (dataset / "sub").mkdir()
    (dataset / "sub/a.png").write_bytes(b"")
    said = "sub/a.png: the file is empty (0 bytes); expected a picture"
    assert client.get("/api/datasets/checked").json()["problems"] == [
        f"checked: none of its 1 pictures can be read ({said})."
    ]
    (dataset / "b.png").write_bytes(picture())
    found = client.get("/api/datasets/checked").json()
    assert found["problems"] == [f"{said}."]
    assert found["notes"] == [
        "checked: 1 of 1 pictures have no caption (for instance b.png, expected in b.txt)."
    ]


def test_uploads_are_limited(client: TestClient, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LIMITS", dict.fromkeys(uploads.LIMITS, 4096))
    monkeypatch.setattr(uploads, "MOST_ENTRIES", 3)
    assert put(client, "a.txt", b"x" * 5000, "checked").status_code == 413
    many = archive({f"{n}.txt": b"x" for n in range(4)})
    assert "at most 3 are taken" in put(client, "a.zip", many, "checked").json()["error"]["message"]
    bomb = archive({"a.txt": b"x" * 100_000})
    assert len(bomb) < 4096 and put(client, "a.zip", bomb, "checked").status_code == 413
    # a directory that lies about how much there is
    size = struct.pack("<I", 100_000)
    lying = bomb.replace(size, struct.pack("<I", 10))
    assert lying != bomb
    found = put(client, "a.zip", lying, "checked")
    assert found.status_code in (201, 413, 422) and leftovers(dataset) == []
    monkeypatch.setattr(uploads, "SPARE", 2**60)
    assert put(client, "b.txt", b"x", "checked").status_code == 507
    assert leftovers(dataset) == []


def test_links_out_of_a_data_set_are_not_followed(client: TestClient, dataset: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(picture())
    (dataset / "link.png").symlink_to(secret)
    (dataset / "way").symlink_to(tmp_path, target_is_directory=True)
    (dataset / "a.png").write_bytes(picture())
    (dataset / "a.txt").symlink_to(tmp_path / "caption.txt")
    for name in ("link.png", "way/secret.png"):
        assert client.get(f"/api/datasets/checked/files/{name}").status_code == 403
        assert client.get(f"/api/datasets/checked/thumbnails/{name}").status_code == 403
        assert client.delete(f"/api/datasets/checked/files/{name}").status_code == 403
    assert client.put("/api/datasets/checked/captions/a.png", json={"caption": "x"}).status_code == 403
    assert not (tmp_path / "caption.txt").exists() and secret.exists()
    assert [one["name"] for one in client.get("/api/datasets/checked").json()["pictures"]] == ["a.png"]


def test_foreign_pages_are_refused(client: TestClient) -> None:
    assert client.get("/api/jobs", headers={"host": "evil.test"}).status_code == 421
    for headers in (
        {"origin": "http://evil.test"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        found = client.post("/api/datasets", json={"name": "x"}, headers=headers)
        assert found.status_code == 403 and "another site" in found.json()["error"]["message"], headers
    own = client.get(
        "/api/jobs", headers={"origin": "http://localhost:8675", "sec-fetch-site": "same-origin"}
    )
    assert own.status_code == 200 and "access-control-allow-origin" not in own.headers
    assert "frame-ancestors 'none'" in own.headers["content-security-policy"]
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("/_nicegui_ws/socket.io/", headers={"origin": "http://evil.test"}),
    ):
        pass


def test_a_page_that_others_reach_asks_for_its_token(locked: tuple[Site, TestClient]) -> None:
    _, client = locked
    assert client.get("/api/jobs").status_code == 401
    assert client.get("/api/openapi.json").status_code == 401
    to_login = client.get("/", headers={"accept": "text/html"})
    assert (to_login.status_code, to_login.headers["location"]) == (303, "/login")
    page = client.get("/login", headers={"accept-language": "fr-FR"})
    assert page.status_code == 200 and "Jeton" in page.text and "plafond ui l’a affiché" in page.text
    right = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/api/jobs", headers=right).json() == []
    assert client.get("/api/jobs", headers={"authorization": TOKEN}).status_code == 401
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/_nicegui_ws/socket.io/"):
        pass


def test_who_logs_in_gets_a_session_that_only_the_page_can_use(locked: tuple[Site, TestClient]) -> None:
    _, client = locked
    wrong = client.post("/login", data={"token": "guess"})
    assert wrong.status_code == 401 and "not the token" in wrong.text and COOKIE not in client.cookies
    found = client.post("/login", data={"token": TOKEN})
    assert found.status_code == 303
    cookie = found.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert client.get("/api/jobs").status_code == 200
    assert client.post("/api/datasets", json={"name": "x"}).status_code == 403
    session = client.get("/api/session").json()
    mine = {session["header"]: session["csrf"]}
    assert session["header"] == CSRF_HEADER
    assert client.post("/api/datasets", json={"name": "x"}, headers=mine).status_code == 201
    assert client.delete("/api/datasets/x", headers={CSRF_HEADER: "0" * 64}).status_code == 403
    secret = client.cookies[COOKIE]
    client.post("/logout")
    client.cookies.set(COOKIE, secret)
    assert client.get("/api/jobs").status_code == 401


def test_guessing_is_slowed_down(locked: tuple[Site, TestClient], monkeypatch: pytest.MonkeyPatch) -> None:
    site, client = locked
    for _ in range(guard.TRIES):
        assert client.post("/login", data={"token": "guess"}).status_code == 401
    late = client.post("/login", data={"token": TOKEN})
    assert late.status_code == 429 and 0 < int(late.headers["retry-after"]) <= 61
    assert client.get("/api/jobs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 429
    assert site.throttle.wait("another address") == 0
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + guard.TRY_SECONDS + 1)
    assert client.post("/login", data={"token": TOKEN}).status_code == 303


def test_a_token_is_made_where_it_is_needed() -> None:
    assert access_for("127.0.0.1", 1, None).token is None and access_for("::1", 1, None).is_local
    made = access_for("0.0.0.0", 1, None)
    assert made.token is not None and len(made.token) >= 32 and not made.is_local
    assert access_for("192.168.1.5", 1, None).token != made.token
    assert access_for("127.0.0.1", 1, TOKEN).token == TOKEN
    with pytest.raises(UsageError, match="at least 12"):
        access_for("0.0.0.0", 1, "short")


def test_an_address_that_is_taken_is_said(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UsageError, match=f"cannot listen at 127.0.0.1, port {port}: .*try another --port"
        ):
            serve(site.home, Access("127.0.0.1", port))


def test_only_the_page_needs_its_libraries() -> None:
    source = Path(plafond.__file__).parent
    libraries = re.compile(r"^\s*(from|import) (fastapi|nicegui|starlette|uvicorn)\b", re.MULTILINE)
    found = {
        path.relative_to(source).parts[0]
        for path in source.rglob("*.py")
        if libraries.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"web"}
    top = re.compile(r"^(from|import) plafond\.web", re.MULTILINE)
    assert not any(top.search(path.read_text(encoding="utf-8")) for path in (source / "cli").glob("*.py"))


def test_no_request_makes_the_server_fail(client: TestClient, site: Site) -> None:
    """A short run of schemathesis over every route."""
    schema = schemathesis.openapi.from_dict(client.get("/api/openapi.json").json())
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 25
    for operation in operations:

        @settings(max_examples=4, deadline=None, database=None, derandomize=True, suppress_health_check=SLOW)
        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            request = case.as_transport_kwargs(base_url=str(client.base_url))
            request.pop("cookies")
            if isinstance(request.get("data"), bytes):
                request["content"] = request.pop("data")
            # the test client raises what a server would answer 500 to
            answer = client.request(**request)
            assert answer.status_code < 500 or answer.status_code == 507, (request, answer.text)

        check()

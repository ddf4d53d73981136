"""Two languages: every sentence that is printed is marked and translated, and numbers are written as each writes them."""

from __future__ import annotations

import ast
import importlib
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from babel.messages.extract import extract_from_file
from PIL import Image
from torch import OutOfMemoryError
from typer.testing import CliRunner

import plafond
from conftest import JobMaker
from job_files import change, write
from plafond.advice import regressions, sentences
from plafond.advice.diagnose import diagnose
from plafond.advice.experiment import AT_THE_LIMIT, Experiment, Trial, _conclusion
from plafond.cli import app, main
from plafond.cli.gc_test import text as gc_test_text
from plafond.cli.lang import spoken
from plafond.cli.train import OUT_OF_MEMORY
from plafond.data.buckets import Bucket
from plafond.data.folder import scan
from plafond.errors import DataError, UsageError
from plafond.job.dataset import DatasetConfig
from plafond.job.keys import SECTIONS
from plafond.job.schema import Job
from plafond.job.sentences import what
from plafond.language import speech
from plafond.language.said import ExactSize, Inside, Number, Percent, Said, Size, few
from plafond.language.speech import speaker
from plafond.memory.calibration import Calibration, Rates
from plafond.plan import trial
from plafond.plan.trial_report import text as calibration_text
from plafond.plan.words import NAMES, NO, place
from plafond.training.places import AT_STEP, BY_PHASE
from plafond.training.recovery import at_place

demo = importlib.import_module("plafond.cli.demo")  # the package has the command under that name

GIB = 2**30
SOURCE = Path(plafond.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
MARKS = re.compile(r"from plafond\.language\.said import (\([^)]*|.*)\bN_|^class Said\b", re.MULTILINE)
"""In a file that marks sentences which come as data; what the page itself says stands in a catalogue of its own."""


def marked() -> set[str]:
    """Everything that is marked outside of the page's own words."""
    files = (path for path in FILES if MARKS.search(path.read_text(encoding="utf-8")))
    return {
        str(message)
        for path in files
        for _, message, _, _ in extract_from_file("python", path, keywords={"N_": None})
    }


def test_no_translation_is_missing_and_none_is_left_over() -> None:
    required = [
        what(info)
        for section in SECTIONS.values()
        for info in section.model.model_fields.values()
        if info.is_required()
    ]
    wanted = marked() | {release.effect for release in regressions.releases()} | {*required}
    assert speech.languages() == ("en", "fr")
    for name in speech.languages()[1:]:
        known = speech.catalogue(name)
        assert set(known) == wanted, set(known) ^ wanted
        for source, translated in known.items():
            fields = re.compile(r"\{\w+\}")
            assert sorted(fields.findall(source)) == sorted(fields.findall(translated)), source


def test_french_is_set_as_french_is() -> None:
    for translated in speech.catalogue("fr").values():
        assert "'" not in translated and "..." not in translated, translated
        assert not re.search(r" [:;!?»%]|« |\S[;!?»]", translated), translated


def unmarked(node: ast.AST) -> Iterator[str]:
    """Texts in an expression that are not marked."""
    match node:
        case ast.Call(func=ast.Name(id="N_" | "Said")):
            return
        case ast.JoinedStr() | ast.Call(func=ast.Name(id="str") | ast.Attribute(attr="format" | "join")):
            yield ast.unparse(node)
        case ast.Constant(value=str(text)):
            yield from [text] if text else []
        case ast.Subscript(value=value):
            yield from unmarked(value)
        case ast.IfExp(body=one, orelse=other):
            yield from (*unmarked(one), *unmarked(other))
        case _:
            for child in ast.iter_child_nodes(node):
                yield from unmarked(child)


def test_every_sentence_is_marked() -> None:
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "Said(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Said":
                assert not [text for each in node.args[:1] for text in unmarked(each)], (
                    f"{path}:{node.lineno}"
                )
    known = marked()
    for name, value in vars(sentences).items():
        if name.isupper() and name != "N_":
            for sentence in value.values() if isinstance(value, dict) else (value,):
                assert sentence in known, name


def test_every_error_carries_a_marked_sentence() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
    errors = kinds_of_errors(trees.values())
    assert {"PlafondError", "JobError", "NoJobError", "ResumeMismatch"} <= errors
    for path, tree in trees.items():
        constants = assigned(tree.body)
        for scope in (tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))):
            known = constants if scope is tree else constants | assigned(ast.walk(scope))
            for node in ast.walk(scope):
                if isinstance(node, ast.Call) and name_of(node.func) in errors and node.args:
                    sentence = node.args[0]
                    values = known.get(sentence.id, []) if isinstance(sentence, ast.Name) else [sentence]
                    found = [text for value in values for text in unmarked(value)]
                    assert not found, f"{path}:{node.lineno}: {found}"


def kinds_of_errors(trees: Iterable[ast.Module]) -> set[str]:
    """Names of all classes of errors that carry sentences."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = {"SaidError"}
    while more := {one.name for one in classes if found & set(map(name_of, one.bases))} - found:
        found |= more
    return found


def name_of(node: ast.AST) -> str:
    """What a call or a base class names, without its module."""
    return ast.unparse(node).rpartition(".")[2]


def assigned(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """What is assigned to which name."""
    found: dict[str, list[ast.expr]] = {}
    for node in nodes:
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(node.value)
    return found


def test_numbers_are_written_as_the_language_writes_them() -> None:
    said = Said("{number} GiB", {"number": 3.5})
    en, fr = speaker("en"), speaker("fr")
    assert en(said) == str(said) == "3.5 GiB" and fr(said) == "3,5\u00a0Gio"
    assert fr(Said("saves {size}", {"size": Size(3 * GIB // 2)})) == "économise 1,5\u00a0Gio"
    sizes = (0, 16 * 2**10, 2**20 // 10 + 1, GIB // 10 + 1)
    assert [en(Size(size)) for size in sizes] == ["0.0 GiB", "16.0 KiB", "0.1 MiB", "0.1 GiB"]
    assert (en(ExactSize(3 * GIB // 2)), fr(ExactSize(2**20))) == ("1.50 GiB", "1,0\u00a0Mio")
    assert (en(Number(1.145, 2)), fr(Number(2, 1))) == (f"{1.145:.2f}", "2,0")
    assert (en(Percent(0.285)), fr(Percent(0.285))) == (f"{0.285:.0%}", "28\u00a0%")
    assert str(Said("{braces} without values")) == "{braces} without values"
    assert fr((Percent(1), "a", 2)) == "100\u00a0%, a, 2"


def test_a_sentence_inside_of_another_has_no_full_stop() -> None:
    inner = Said("{path}: gone.", {"path": Path("/data/a.png")})
    outer = Said(
        "{folder}: nothing ({problems}).", {"folder": "/data", "problems": few([Inside(inner)] * 3, 1)}
    )
    assert str(outer) == "/data: nothing (/data/a.png: gone and 2 more)."
    hidden = outer.rewritten(lambda text: text.replace("/data", "cats"))
    assert str(hidden) == "cats: nothing (cats/a.png: gone and 2 more)."
    assert str(Said("{names}", {"names": few(["a", "b", "c"], 3)})) == "a, b, c"


def test_language_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    assert speech.choose(None) == "en"
    monkeypatch.setenv("LANG", "fr_CA.UTF-8")
    monkeypatch.setenv("LC_CTYPE", "C.UTF-8")
    assert speech.choose(None) == "fr" and speech.choose("en") == "en"
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    assert speech.choose(None) == "en"


LEFT_IN_ENGLISH = re.compile(
    r"\b(the|it|at|of|and|or|not|with|without|would|fits?|steps?|batch|pictures?|peak|quality|memory|saves|caution)\b"
)


def french(*arguments: object, width: float = 100) -> str:
    """What a command prints in French, with line breaks as spaces; nothing in it is left in English."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--lang", "fr"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    said = re.sub(r"(?ms)^--- .*?\n\n", "", result.stdout)  # the file's changed lines
    said = re.sub(r"\S*/\S*|\S*[a-z]_[a-z]\S*|\w+\.\w+|--\S+", "", said)  # paths, settings, options
    assert not LEFT_IN_ENGLISH.search(said), said
    assert max(map(len, result.stdout.splitlines())) <= width
    return " ".join(result.stdout.split()).replace("\u00a0", " ")


def test_reports_in_french(make_job: JobMaker) -> None:
    train = {"gradient_checkpointing": False, "batch_size": 4, "disable_sampling": False}
    job = make_job(train=train, datasets={"resolution": [32, 512]})
    options = ("--device", "cpu", "--vram")

    plan = french("plan", job, *options, "1.8MB", "--frontier")
    assert "micro : " in plan and "plafond de 1,8 Mio sur une carte virtuelle" in plan
    assert "note : train.gradient_checkpointing est à false avec une résolution de 512, batch_size 4" in plan
    assert re.search(r"aperçu 64x64 1,3 Mio 1,3 Mio [█·]+ \d\d %", plan)
    refused = re.search(
        r"Ne tient pas : la phase entraînement en \S+ demande [\d,]+ Mio, soit [\d,]+ Mio de", plan
    )
    assert refused and "l’exécution échouerait à la mise en route sur le plus grand format" in plan
    assert "Que changer, du moins coûteux au plus coûteux" in plan
    assert re.search(
        r"économise [\d,]+ Mio ; demande encore [\d,]+ Mio, tient ; durée des étapes ×1,\d\d", plan
    )
    assert "Mémoire et vitesse en " in plan

    fitted = french("fit", job, *options, "1.8MB")
    assert "les blocs gardent tout ce qui a de la place, et recalculent le reste" in fitted
    assert "Tient : le pic est de " in fitted and "Écrit dans " in fitted
    kept = french("fit", job, *options, "1.8MB", "--keep", "train", "--keep", "model")
    assert "La tâche tiendrait avec --allow-quality, par " in kept

    other = make_job("other", train={**train, "batch_size": 2}, datasets={"resolution": [32, 512]})
    differs = french("diff", job, other, *options, "1.8MB")
    assert differs.startswith("Seul train.batch_size: 4 → 2 a changé : entraînement ")
    assert " ; le pic est de " in differs


def test_a_job_is_refused_in_french(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write(tmp_path, change("steps: 2000", "steps: '{many}'").replace("lr: 1e-4", "lrr: 1e-4"))
    monkeypatch.setattr(sys, "argv", ["plafond", "plan", str(job), "--lang", "fr"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.replace("\u00a0", " ") == (
        f'plafond: {job}, ligne 19 : train.steps : il faut un nombre entier d’au moins 1, et non "{{many}}"\n'
    )
    checked = french("check", job, "--set", "train.steps=5")
    assert (
        f"attention {job}, ligne 20 : train.lrr : clé inconnue, ignorée ; vouliez-vous dire lr ?" in checked
    )
    assert "étapes 5, lots de 1, gradient checkpointing activé" in checked


def test_what_is_wrong_with_a_folder_is_said_in_french(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    Image.new("RGB", (32, 32)).save(tmp_path / "b.png")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "gone.png"}\n{broken')
    fr = speaker("fr")
    found = scan(DatasetConfig(folder_path=str(tmp_path)))
    assert [fr(sentence).replace("\u00a0", " ") for sentence in (*found.problems, *found.notes)] == [
        f"{tmp_path}/metadata.jsonl, ligne 2 : JSON non valide (Expecting property name enclosed in double quotes) ;"
        " il faut un objet par ligne.",
        f"{tmp_path}/metadata.jsonl, ligne 1 : {tmp_path}/gone.png n’existe pas.",
        f"{tmp_path}/a.png : le fichier est vide (0 octet) ; il faut une image.",
        f"{tmp_path} : images sans légende : 1 sur 1 (par exemple b.png, dont la légende est attendue dans b.txt).",
    ]
    (tmp_path / "b.png").unlink()
    with pytest.raises(DataError) as error:
        scan(DatasetConfig(folder_path=str(tmp_path)))
    assert fr(error.value.said).replace("\u00a0", " ") == (
        f"{tmp_path} : aucune de ses 1 images ne peut être lue ({tmp_path}/metadata.jsonl, ligne 2 : JSON non valide"
        " (Expecting property name enclosed in double quotes) ; il faut un objet par ligne et 2 de plus)."
    )


def test_gc_test_in_french() -> None:
    failure = Said("not run: by plan {phase} does not fit", {"phase": Said("preview")})
    trials = (
        Trial(
            setting="true", verdict="fits", planned_bytes=GIB, left_bytes=GIB, seconds=1.5, buckets=("64x64",)
        ),
        Trial(setting="false", verdict="oom", planned_bytes=GIB, left_bytes=0, failure=failure),
    )
    best, why = _conclusion({trial.setting: trial for trial in trials})
    found = Experiment(trials=trials, cautions=(Said(AT_THE_LIMIT),), recommended=best, why=why)
    shown = gc_test_text(found, speaker("fr")).replace("\u00a0", " ").splitlines()
    assert shown[0].startswith("attention : même avec le gradient checkpointing, la tâche est à sa limite")
    assert shown[1].split() == ["gradient_checkpointing", "prévu", "reste", "mesuré", "s/étape", "formats"]
    assert shown[2].split() == ["true", "1,00", "Gio", "1,00", "Gio", "1,500", "64x64"]
    assert shown[3].endswith("pas lancé : selon le plan, la phase aperçu ne tient pas")
    assert shown[4] == (
        "Prenez gradient_checkpointing: true ; sans gradient checkpointing, la tâche ne tourne pas (pas lancé : selon"
        " le plan, la phase aperçu ne tient pas) ; les autres réglages ne sont pas plus rapides. Le fichier de la tâche"
        " est inchangé."
    )


@pytest.mark.parametrize("language", speech.languages())
@pytest.mark.parametrize("phase", NAMES)
def test_the_doctor_knows_a_refusal_in_every_language(language: str, phase: str) -> None:
    values = {
        "place": place(phase, Bucket(64, 64)),
        "needs": ExactSize(GIB),
        "over": ExactSize(GIB),
        "fails": "",
    }
    found = diagnose(f"plafond: {speaker(language)(Said(NO, values))}\n".encode())
    assert (found.cause, found.phase, found.confidence) == ("does_not_fit", phase, "high")


@pytest.mark.parametrize("language", speech.languages())
@pytest.mark.parametrize("phase", BY_PHASE)
def test_the_doctor_knows_where_a_run_failed_in_every_language(language: str, phase: str) -> None:
    place = Said(BY_PHASE[phase][-1], {"step": 3, "batch": 4, "bucket": "64x96"})
    error = "CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 has a total capacity of 23.51 GiB."
    said = Said(OUT_OF_MEMORY, {"place": place, "error": error})
    found = diagnose(f"plafond: {speaker(language)(said)}\n".encode())
    assert (found.cause, found.phase) == ("does_not_fit", phase)


def test_lists_in_french() -> None:
    cards = french("gpus", width=math.inf)
    assert cards.startswith("nom Go Gio utilisables calcul Go/s TFLOP/s ")
    assert re.search(r"RTX 4090 24 23,50 8\.9 1008 165,2 ", cards)
    assert cards.endswith(
        "Go/s : mémoire de la carte. TFLOP/s : bf16 dense (fp16 avant Ampere), d’après la fiche technique."
    )
    models = french("models", "sd15", width=math.inf)
    assert models.startswith("arch name_or_path encodeurs de texte VAE sd15 ")
    assert re.search(r" arch Md bf16 float8 uint4 512 768 1024 sd15 0,9( \d,\d){3} \d Go / \d Go ", models)
    assert " Md : milliards de paramètres" in models and "LoRA de rang 16 tient à cette résolution" in models


def test_the_queue_in_french(make_job: JobMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAFOND_HOME", str(tmp_path / "home"))
    assert french("queue") == "La file est vide ; plafond queue add TÂCHE y met une tâche."
    assert french("queue", "add", make_job(), "--device", "cpu", "--hold") == "1 micro : brouillon sur cpu"
    (first, *rest) = french("queue", "list").partition(" 1 micro ")
    assert first == "n° tâche état étape carte plafond" and rest[-1] == "brouillon cpu"
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(app, ["queue", "--lang", "fr", "stop", "1"], catch_exceptions=False)
    stopped = spoken()(caught.value.said).replace("\u00a0", " ")
    assert stopped == "la tâche 1 n’est pas en cours ; son état : brouillon"
    assert french("queue", "remove", 1, width=math.inf).startswith("1 micro : enlevée de la liste ; ")


def test_the_address_of_the_page_in_french(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(home: object, access: object, *, allowed: object, ready: Callable[[str], None]) -> None:
        ready("http://0.0.0.0:1/")

    monkeypatch.setattr("plafond.web.serve.serve", serve)
    said = french("ui", "--host", "0.0.0.0")
    assert re.fullmatch(
        r"plafond est à l’adresse http://0\.0\.0\.0:1/ jeton : \S+ Ctrl-C ferme la page ; les tâches continuent\.",
        said,
    )


def test_a_calibration_in_french() -> None:
    case = trial.Case(phase="train", bucket=Bucket(64, 96), batch=2, checkpointing=False)
    text = trial.Case(phase="encode_text")
    sizes = {"allocated": 3 * GIB // 2, "reserved": 2 * GIB, "device": 5 * GIB // 2}
    result = trial.Result(
        model=Said(trial.CUT, {"model": "FLUX.1-dev", "blocks": 3, "all": 57}),
        rows=(
            trial.Row(case=case, predicted=sizes, measured={**sizes, "reserved": 1999 * 2**20}),
            trial.Row(case=text, predicted={"allocated": 2**20}, measured={}),
        ),
        assumed_overhead=600 * 2**20,
        notes=(Said("{case}: memory ran out", {"case": text.said}),),
        record=Calibration(
            device="NVIDIA L4",
            driver="570.86",
            torch="2.13",
            measured_at="2026-01-01",
            overhead_bytes=450 * 2**20,
            rates=Rates(matmul_flops=61.2e12, memory_bandwidth=3e11, link_bandwidth=2.5e10),
        ),
    )
    lines = calibration_text(result, speaker("fr")).replace("\u00a0", " ").splitlines()
    assert max(map(len, lines[:-1])) <= 100
    assert lines[:2] == [
        "NVIDIA L4, torch 2.13, pilote 570.86",
        "FLUX.1-dev à pleine largeur, 3 blocs sur 57 pour tenir, poids aléatoires, bfloat16",
    ]
    assert lines[3].split() == [
        "phase",
        "format",
        "lot",
        "checkpointing",
        "octets",
        "prévu",
        "mesuré",
        "erreur",
    ]
    assert lines[4].split() == [
        "entraînement",
        "64x96",
        "2",
        "désactivé",
        "alloué",
        "1,50",
        "Gio",
        "1,50",
        "Gio",
        "+0,000",
        "%",
    ]
    assert lines[5].split() == ["réservé", "2,00", "Gio", "1,95", "Gio", "+2,451", "%"]
    assert lines[7].split() == ["encodage", "des", "textes", "alloué", "1,00", "Mio", "-"]
    assert lines[8] == "note : encodage des textes : la mémoire a manqué"
    assert lines[11] == (
        "Plus grande erreur (réservé) : +2,451 % (entraînement en 64x96, lots de 2, sans checkpointing)"
    )
    assert lines[13] == (
        "En dehors de l’allocateur (contexte, noyaux) : 450,00 Mio ; valeur supposée jusqu’ici : 600,00 Mio"
    )
    assert lines[14].startswith("Produits de matrices : 61,2 TFLOP/s ; estimé sans mesurer : ")
    assert lines[15].startswith("La mémoire de l’appareil : 300,0 Go/s ; estimé sans mesurer : ")


def test_the_demo_in_french(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ends(job: Job) -> None:
        with at_place(AT_STEP, step=1, batch=4, bucket="128x128"):
            raise OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(demo, "_run", ends)
    monkeypatch.setattr(demo, "fits_as_predicted", lambda job: None)
    said = french("demo", "--output", tmp_path, width=math.inf)
    assert said.startswith(
        "1 Un LoRA d’un chat, gradient_checkpointing: false, sur une carte virtuelle de 75MB plan "
    )
    assert " remède checkpointing_on " in said and " exécution quand même, comme avec --force " in said
    assert " prévu mémoire insuffisante dans la phase entraînement en 128x128 constaté " in said
    assert " constaté mémoire insuffisante à l’étape 1, sur un lot de 4 en 128x128 2 La même tâche, " in said

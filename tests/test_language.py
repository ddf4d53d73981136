"""Two languages: every sentence that is printed is marked and translated, and numbers are written as each writes them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from babel.messages.extract import extract_from_file
from PIL import Image
from typer.testing import CliRunner

import plafond
from conftest import JobMaker
from job_files import change, write
from plafond.advice import regressions, sentences
from plafond.advice.diagnose import diagnose
from plafond.advice.experiment import AT_THE_LIMIT, Experiment, Trial, _conclusion
from plafond.cli import app, main
from plafond.cli.gc_test import text as gc_test_text
from plafond.data.buckets import Bucket
from plafond.data.folder import scan
from plafond.errors import DataError
from plafond.job.dataset import DatasetConfig
from plafond.job.keys import SECTIONS
from plafond.job.sentences import what
from plafond.language import speech
from plafond.language.said import ExactSize, Inside, Number, Percent, Said, Size, few
from plafond.language.speech import speaker
from plafond.plan.words import NAMES, NO, place

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
        case ast.Call(func=ast.Name(id="N_")):
            return
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


def test_numbers_are_written_as_the_language_writes_them() -> None:
    said = Said("{number} GiB", {"number": 3.5})
    en, fr = speaker("en"), speaker("fr")
    assert en(said) == str(said) == "3.5 GiB" and fr(said) == "3,5\u00a0Gio"
    assert fr(Said("saves {size}", {"size": Size(3 * GIB // 2)})) == "économise 1,5\u00a0Gio"
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


def french(*arguments: object) -> str:
    """What a command prints in French, with line breaks as spaces; nothing in it is left in English."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--lang", "fr"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    said = re.sub(r"(?ms)^--- .*?\n\n", "", result.stdout)  # the file's changed lines
    said = re.sub(r"\S*/\S*|\S*[a-z]_[a-z]\S*|\w+\.\w+|--\S+", "", said)  # paths, settings, options
    assert not LEFT_IN_ENGLISH.search(said), said
    assert max(map(len, result.stdout.splitlines())) <= 100
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
    assert refused and "l’exécution échouerait à l’échauffement sur le plus grand format" in plan
    assert "Que changer, du moins coûteux au plus coûteux" in plan
    assert re.search(r"économise [\d,]+ Mio ; demande encore [\d,]+ Mio, tient ; durée des pas ×1,\d\d", plan)
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
    assert "pas 5, lots de 1, gradient checkpointing activé" in checked


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
    failure = Said("not run: the plan says {phase} does not fit", {"phase": Said("preview")})
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
    assert shown[1].split() == ["gradient_checkpointing", "prévu", "mesuré", "s/pas", "formats"]
    assert shown[2].split() == ["true", "1,00", "Gio", "1,500", "64x64"]
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

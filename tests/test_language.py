"""Two languages: every sentence that is printed is marked and translated, and numbers are written as each writes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from babel.messages.extract import extract_from_file

import plafond
from plafond.advice import regressions, sentences
from plafond.language import speech
from plafond.language.said import ExactSize, Number, Percent, Said, Size
from plafond.language.speech import speaker

GIB = 2**30
SOURCE = Path(plafond.__file__).parent
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if SOURCE / "web" not in path.parents]


def marked() -> set[str]:
    """Everything that is marked outside of the page, which has a catalogue of its own."""
    files = (path for path in FILES if "N_(" in path.read_text(encoding="utf-8"))
    return {
        str(message)
        for path in files
        for _, message, _, _ in extract_from_file("python", path, keywords={"N_": None})
    }


def test_no_translation_is_missing_and_none_is_left_over() -> None:
    wanted = marked() | {release.effect for release in regressions.releases()}
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
                assert not list(unmarked(node.args[0])), f"{path}:{node.lineno}"
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
    assert fr((Percent(1), "a", 2)) == "100\u00a0%, a, 2"


def test_language_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    assert speech.choose(None) == "en"
    monkeypatch.setenv("LANG", "fr_CA.UTF-8")
    assert speech.choose(None) == "fr" and speech.choose("en") == "en"
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    assert speech.choose(None) == "en"

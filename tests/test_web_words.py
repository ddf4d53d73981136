"""What the page says: every sentence in French, sizes and times as people write them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import plafond.web
from plafond.language.speech import catalogue
from plafond.web.draft import help_of
from plafond.web.fields import DATASET, PICTURES, PROMPT_FIELDS, every_field
from plafond.web.words import LANGUAGES, language_for, words

MARKS = {"N_", "t", "_t"}
OTHERS_MARK = re.compile(r"from plafond\.language\.said import (\([^)]*|.*)\bN_")
"""In files with this, N_ marks what comes as data: it stands in the other catalogue."""


def sentences() -> Iterator[str]:
    """Everything that is marked for translation, and the help of every field."""
    for path in Path(plafond.web.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        marks = MARKS - {"N_"} if OTHERS_MARK.search(text) else MARKS
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if name in marks and isinstance(node.args[0].value, str):
                    yield node.args[0].value
    for field in every_field():
        prefix = "datasets.0." if field in DATASET.fields else ""
        prefix = "sample.samples.0." if field in (*PROMPT_FIELDS, *PICTURES) else prefix
        yield field.help(prefix)


def test_every_sentence_is_translated_and_none_is_left_over() -> None:
    wanted = {sentence for sentence in sentences() if sentence}
    assert len(wanted) > 300
    for language in set(LANGUAGES) - {"en"}:
        known = catalogue(language, "plafond.web")
        assert set(known) == wanted, set(known) ^ wanted
        for source, translated in known.items():
            fields = re.compile(r"\{\w+\}")
            assert sorted(fields.findall(source)) == sorted(fields.findall(translated)), source
            assert '"' not in translated, "it stands in attributes"


def test_labels_are_those_of_ai_toolkit_and_help_comes_from_the_schema() -> None:
    labels = {field.key: field.label for field in every_field()}
    assert labels["train.batch_size"] == "Batch Size" and labels["model.qtype_te"] == "Text Encoder"
    assert labels["save.max_step_saves_to_keep"] == "Max Step Saves to Keep"
    assert labels["is_reg"] == "Is Regularization" and labels["trigger_word"] == "Trigger Word"
    assert help_of("train.steps") == "Number of steps in total."
    assert help_of("datasets.0.fps") == "Frame rate that clips are read at."


def test_the_language_is_the_chosen_one_or_the_browsers() -> None:
    assert language_for("fr", "en") == "fr" and language_for(None, "fr-CA,en;q=0.8") == "fr"
    assert language_for("xx", "de-DE, fr;q=0.5") == "fr" and language_for(None, "de") == "en"
    assert language_for(None, None) == "en"


def test_sizes_and_times_read_well() -> None:
    en, fr = words("en"), words("fr")
    assert (en.size(26.8 * 2**30), fr.size(26.8 * 2**30)) == ("26.8 GiB", "26,8 Gio")
    assert (en.size(75 * 2**20), fr.size(4.3 * 2**20)) == ("75 MiB", "4,3 Mio")
    assert (en.duration(59), en.duration(61), en.duration(7322)) == ("59 s", "1 min 01 s", "2 h 02 min")
    assert en.percent(0.5) == "50%" and fr.percent(0.5) == "50 %"
    assert en("step {number}", number=3) == "step 3" and fr("step {number}", number=3) == "étape 3"

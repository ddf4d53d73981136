import codecs
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plafond.data.captions import caption_for, possible_captions
from plafond.data.encodings import decode, read_text
from plafond.data.folder import Picture
from plafond.errors import DataError
from plafond.job.dataset import DatasetConfig

TEXT = "Ein Café, naïve façade"


def picture(caption, name="a.png"):
    return Picture(Path(name), name, Path(), 64, 64, caption, None, 1, 0)


def prompt(caption, *, seed=1, draw=0, variants=None, **keys):
    config = DatasetConfig(folder_path="data", **keys)
    return caption_for(picture(caption), config, seed=seed, draw=draw, variants=variants)


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (TEXT.encode(), "utf-8"),
        (codecs.BOM_UTF8 + TEXT.encode(), "utf-8"),
        (codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"), "utf-16-le"),
        (codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), "utf-16-be"),
        (codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"), "utf-32-le"),
        (TEXT.encode("utf-16-le"), "utf-16-le"),
        (TEXT.encode("utf-16-be"), "utf-16-be"),
        (TEXT.encode("cp1252"), "cp1252"),
    ],
)
def test_encodings(data, encoding):
    assert decode(data) == (TEXT, encoding)


@pytest.mark.parametrize("text", ["", "日本語、猫", "a", "“quoted” — 5 €", "ab", "🦊"])
def test_utf8_is_never_mistaken(text):
    assert decode(text.encode())[0] == text


@pytest.mark.parametrize("text", ["“quoted” – 5 €", "señor"])
def test_windows_1252_punctuation(text):
    assert decode(text.encode("cp1252"))[0] == text


@given(st.binary())
def test_any_bytes_decode(data):
    decode(data)


def test_line_ends_and_outer_space(tmp_path):
    path = tmp_path / "a.txt"
    for data in (b"  one\r\ntwo\r\n", b"one\rtwo", b"\n\none\ntwo\n", codecs.BOM_UTF8 + b"one\r\ntwo"):
        path.write_bytes(data)
        assert read_text(path) == ("one\ntwo", "utf-8")
    path.write_bytes(b"\r\n \r\n")
    assert read_text(path)[0] == ""


def test_binary_captions_are_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\x00\x00\x00\x01\x00")
    with pytest.raises(DataError) as error:
        read_text(path)
    assert str(error.value) == f"{path}: the caption holds binary data; expected a text file."


def test_unreadable_captions_are_named(tmp_path):
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(DataError) as error:
        read_text(tmp_path / "a.txt")
    assert str(error.value) == (
        f"{tmp_path / 'a.txt'}: the caption cannot be read (Is a directory); expected a text file."
    )


def test_a_plain_caption_stays_as_written():
    assert prompt("a man,standing.  1,000 birds,\n a tree") == "a man,standing.  1,000 birds,\n a tree"


def test_the_trigger_goes_in_front_when_absent():
    assert prompt("a cat", trigger_word="ohwx") == "ohwx a cat"
    assert prompt("a cat called ohwx", trigger_word="ohwx") == "a cat called ohwx"
    assert prompt("", trigger_word="ohwx") == "ohwx"
    assert prompt("a cat", trigger_word="ohwx", is_reg=True) == "a cat"
    assert prompt("a cat", trigger_word="") == "a cat"


def test_placeholders():
    assert prompt("a photo of [trigger]", trigger_word="ohwx") == "a photo of ohwx"
    assert prompt("[name], smiling", trigger_word="ohwx") == "ohwx, smiling"
    assert prompt("a photo of [trigger]") == "a photo of"


def test_replacements_come_before_the_trigger_test():
    assert prompt("a woman", replacements=["woman|ohwx woman"], trigger_word="ohwx") == "a ohwx woman"
    assert prompt("a red cat", replacements=("red|", "cat|dog")) == "a  dog"
    assert prompt("a cat", replacements=("nobar", "|x")) == "a cat"


def test_shuffling_keeps_the_first_tags_and_every_tag():
    tags = [f"t{i}" for i in range(10)]
    drawn = prompt(",".join(tags), shuffle_tokens=True, keep_tokens=2, draw=3).split(", ")
    assert drawn[:2] == tags[:2] and sorted(drawn) == sorted(tags) and drawn != tags
    assert prompt("a,, b \n,c", shuffle_tokens=True, keep_tokens=9) == "a, b, c"


def test_dropping_tags():
    caption = ", ".join(f"t{i}" for i in range(200))
    kept = prompt(caption, token_dropout_rate=0.5, keep_tokens=3).split(", ")
    assert kept[:3] == ["t0", "t1", "t2"] and 70 < len(kept) < 130
    assert prompt("a, b, c", token_dropout_rate=1.0, keep_tokens=1) == "a"


def test_the_trigger_stays_in_front_of_shuffled_tags():
    for draw in range(8):
        assert prompt("a, b, c, d", shuffle_tokens=True, trigger_word="ohwx", draw=draw).startswith("ohwx ")


def test_random_triggers(tmp_path):
    words = ("x", "y", "z")
    assert {prompt("a", random_triggers=words, draw=i) for i in range(40)} == {"a, x", "a, y", "a, z"}
    drawn = [prompt("", random_triggers=words, random_triggers_max=2, draw=i) for i in range(60)]
    assert {len([w for w in d.split(", ") if w]) for d in drawn} == {0, 1, 2}
    (tmp_path / "words.txt").write_text("one\n\ntwo words\n")
    file = str(tmp_path / "words.txt")
    assert {prompt("a", random_triggers=file, draw=i) for i in range(40)} == {"a, one", "a, two words"}


def test_dropout_is_about_as_frequent_as_asked_and_repeatable():
    drawn = [prompt("a cat", caption_dropout_rate=0.25, draw=i) for i in range(2000)]
    assert set(drawn) == {"", "a cat"} and 400 < drawn.count("") < 600
    assert drawn == [prompt("a cat", caption_dropout_rate=0.25, draw=i) for i in range(2000)]
    assert drawn != [prompt("a cat", caption_dropout_rate=0.25, draw=i, seed=2) for i in range(2000)]
    assert prompt("a cat", caption_dropout_rate=1.0, trigger_word="ohwx") == ""


@pytest.mark.parametrize("variants", [1, 4])
def test_possible_captions_are_all_that_is_ever_drawn(variants):
    keys = {"caption_dropout_rate": 0.1, "shuffle_tokens": True, "trigger_word": "ohwx"}
    config = DatasetConfig(folder_path="data", **keys)
    pictures = [(picture("a, b, c, d, e", name), config) for name in ("a.png", "b.png")]
    possible = possible_captions(pictures, seed=7, variants=variants)
    drawn = {
        caption_for(one, config, seed=7, draw=draw, variants=variants)
        for one, config in pictures
        for draw in range(200)
    }
    assert drawn == set(possible) and len(possible) == len(set(possible)) <= 2 * variants + 1


def test_fixed_captions_have_one_variant():
    config = DatasetConfig(folder_path="data")
    assert possible_captions([(picture("a, b"), config)] * 3, seed=1, variants=8) == ["a, b"]

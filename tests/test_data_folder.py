import json
import os
import time

import pytest
from PIL import Image

from plafond.data.folder import scan
from plafond.data.images import EXTENSIONS
from plafond.errors import DataError
from plafond.job.dataset import DatasetConfig


def save(path, width=40, height=30):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), "teal").save(path)
    return path


def look(folder, **keys):
    return scan(DatasetConfig(folder_path=str(folder), **keys))


def said(sentences):
    return tuple(map(str, sentences))


def names(result):
    return [picture.name for picture in result.pictures]


def captions(result):
    return {picture.name: picture.caption for picture in result.pictures}


def test_every_subfolder_in_the_order_of_names(tmp_path):
    for name in ("b.png", "A.JPG", "sub/c.WebP", "sub/deep/d.jpeg", "été/ü 1.png"):
        save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("nothing")
    result = look(tmp_path, default_caption="x")
    assert names(result) == ["A.JPG", "b.png", "sub/c.WebP", "sub/deep/d.jpeg", "été/ü 1.png"]
    assert result.problems == result.notes == ()
    assert (result.pictures[0].width, result.pictures[0].height) == (40, 30)


def test_hidden_and_foreign_folders_are_not_read(tmp_path):
    save(tmp_path / "a.png")
    for name in (
        "_latent_cache/x.png",
        "_controls/x.png",
        ".git/x.png",
        "__MACOSX/x.png",
        "_t_e_cache/x.png",
    ):
        save(tmp_path / name)
    for name in ("._a.png", ".DS_Store", "._x.jpg", "Thumbs.db"):
        (tmp_path / name).write_bytes(b"\0\5\26\7")
    result = look(tmp_path, default_caption="x")
    assert names(result) == ["a.png"] and result.problems == ()


def test_control_and_mask_folders_inside_are_not_targets(tmp_path):
    for name in ("a.png", "control/a.png", "masks/a.png"):
        save(tmp_path / name)
    result = look(tmp_path, control_path=str(tmp_path / "control"), mask_path=str(tmp_path / "masks"))
    assert names(result) == ["a.png"]
    assert names(look(tmp_path / "control", control_path=str(tmp_path / "control"))) == ["a.png"]


def test_links_that_form_a_loop(tmp_path):
    save(tmp_path / "sub/a.png")
    (tmp_path / "sub/loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "again").symlink_to(tmp_path / "sub", target_is_directory=True)
    assert len(look(tmp_path).pictures) == 1


def test_a_dead_link_is_named(tmp_path):
    save(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to(tmp_path / "gone.png")
    assert said(look(tmp_path).problems) == (
        f"{tmp_path / 'b.png'}: a link to a file that is not there; expected a picture.",
    )


def test_a_pipe_does_not_hang(tmp_path):
    save(tmp_path / "a.png")
    os.mkfifo(tmp_path / "b.png")
    assert names(look(tmp_path)) == ["a.png"]


def test_names_that_are_not_utf8(tmp_path):
    save(tmp_path / "a.png")
    (tmp_path / os.fsdecode(b"caf\xe9.png")).write_bytes(b"")
    result = look(tmp_path)
    str(result.problems[0]).encode("utf-8")
    assert "caf\N{REPLACEMENT CHARACTER}.png: the file is empty" in str(result.problems[0])


def test_caption_files(tmp_path):
    for name in ("a.png", "b.png", "c.png", "d.png", "e e.png", "x.1.png"):
        save(tmp_path / name)
    (tmp_path / "a.txt").write_bytes("\ufeffein Käfer\r\n".encode())
    (tmp_path / "b.txt").write_bytes("ein Käfer".encode("cp1252"))
    (tmp_path / "c.TXT").write_bytes("ein Käfer".encode("utf-16"))
    (tmp_path / "d.txt").write_text("")
    (tmp_path / "e e.txt").write_text("spaces")
    (tmp_path / "x.1.txt").write_text("dots")
    result = look(tmp_path)
    text = "ein Käfer"
    assert captions(result) == {
        "a.png": text,
        "b.png": text,
        "c.png": text,
        "d.png": "",
        "e e.png": "spaces",
        "x.1.png": "dots",
    }
    assert said(result.notes) == (
        f"{tmp_path / 'b.txt'}: not UTF-8, read as Windows-1252.",
        f"{tmp_path}: 1 of 6 pictures have no caption (for instance d.png, expected in d.txt).",
    )
    assert result.pictures[0].caption_file == tmp_path / "a.txt"


def test_default_caption_and_other_extensions(tmp_path):
    for name in ("a.png", "b.png"):
        save(tmp_path / name)
    (tmp_path / "a.caption").write_text("from caption")
    (tmp_path / "a.txt").write_text("from txt")
    (tmp_path / "a.json").write_text('{"scene": "a cat",\n "mood": "calm"}')
    assert captions(look(tmp_path, caption_ext=".caption", default_caption="none")) == {
        "a.png": "from caption",
        "b.png": "none",
    }
    assert captions(look(tmp_path, caption_ext=".json"))["a.png"] == '{"scene": "a cat",\n "mood": "calm"}'


def test_a_binary_caption_is_a_problem_and_the_picture_stays(tmp_path):
    save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_bytes(b"\0\0\1\0\0")
    result = look(tmp_path, default_caption="x")
    assert captions(result) == {"a.png": "x"}
    assert said(result.problems) == (
        f"{tmp_path / 'a.txt'}: the caption holds binary data; expected a text file.",
    )


def test_two_pictures_with_one_stem_are_named(tmp_path):
    for name in ("a.jpg", "a.png", "b.png", "sub/b.png"):
        save(tmp_path / name)
    result = look(tmp_path)
    assert len(result.pictures) == 4
    assert said(result.problems) == (
        f"{tmp_path}: a.jpg and a.png share one stem and so one caption file (a.txt); all are used,"
        " rename them"
        " if their captions differ.",
    )


def test_kohya_folders(tmp_path):
    for name in ("10_ohwx man/a.png", "3_cat/b.png", "3_cat/more/c.png", "2024_trip/d.png", "0_zero/e.png"):
        save(tmp_path / name)
    (tmp_path / "3_cat/b.txt").write_text("a sleeping cat")
    result = look(tmp_path, num_repeats=2)
    assert {picture.name: (picture.repeats, picture.caption) for picture in result.pictures} == {
        "0_zero/e.png": (2, ""),
        "10_ohwx man/a.png": (20, "ohwx man"),
        "2024_trip/d.png": (2, ""),
        "3_cat/b.png": (6, "a sleeping cat"),
        "3_cat/more/c.png": (6, "cat"),
    }
    assert str(result.notes[0]) == (
        f"{tmp_path / '10_ohwx man'}: each picture is seen 10 times per epoch, as its name says."
    )


def test_hugging_face_metadata(tmp_path):
    for name in ("a.png", "b.png", "train/c.png"):
        save(tmp_path / name)
    (tmp_path / "b.txt").write_text("the file wins")
    (tmp_path / "metadata.jsonl").write_text(
        '{"file_name": "a.png", "text": "one"}\n'
        "\n"
        '{"file_name": "b.png", "text": "two"}\n'
        "{broken\n"
        '{"file_name": "gone.png", "text": "three"}\n'
        '{"text": "nobody"}\n'
        '"only text"\n'
        '{"file_name": "a.png", "text": "again"}\n'
    )
    (tmp_path / "train/metadata.csv").write_text('file_name,text\nc.png,"four, five"\n')
    result = look(tmp_path)
    assert captions(result) == {"a.png": "one", "b.png": "the file wins", "train/c.png": "four, five"}
    file = tmp_path / "metadata.jsonl"
    keys = "expected one of the keys file_name, image_path, image, path."
    assert said(result.problems) == (
        f"{file}, line 4: not valid JSON (Expecting property name enclosed in double quotes); expected"
        " one object"
        " per line.",
        f"{file}, line 6: no picture is named; {keys}",
        f"{file}, line 7: no picture is named; {keys}",
        f"{file}, line 5: {tmp_path / 'gone.png'} is not there.",
        f"{file}, line 8: {tmp_path / 'a.png'} is listed twice; the first caption is used.",
    )


def test_a_broken_metadata_file_does_not_stop_the_scan(tmp_path):
    save(tmp_path / "a.png")
    (tmp_path / "metadata.json").write_text("[")
    result = look(tmp_path, default_caption="x")
    assert captions(result) == {"a.png": "x"}
    assert said(result.problems) == (
        f"{tmp_path / 'metadata.json'}: not valid JSON (Expecting value); expected a list of pictures.",
    )


def test_a_jsonl_file_as_the_data_set(tmp_path):
    save(tmp_path / "pics/a.png")
    save(tmp_path / "pics/sub/b.png")
    save(tmp_path / "pics/unlisted.png")
    rows = [
        {"image_path": "pics/a.png", "caption": "one"},
        {"image_path": "pics\\sub\\b.png", "caption": "two"},
        {"image_path": str(tmp_path / "pics/a.png"), "caption": "one again"},
        {"image_path": "pics/gone.png", "caption": "three"},
    ]
    file = tmp_path / "list.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    result = look(file)
    assert [(p.name, p.caption) for p in result.pictures] == [
        ("pics/a.png", "one"),
        ("pics/a.png", "one again"),
        ("pics/sub/b.png", "two"),
    ]
    assert said(result.problems) == (
        f"{file}, line 4: {tmp_path / 'pics/gone.png'} is not there; expected a picture.",
    )


def test_a_listed_picture_without_caption_has_its_file(tmp_path):
    for name in ("a.png", "b.png", "c.png"):
        save(tmp_path / name)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("from the file")
    file = tmp_path / "list.csv"
    file.write_text("image,prompt\na.png,from the list\nb.png,\nc.png,\n")
    expected = {"a.png": "from the list", "b.png": "from the file", "c.png": "default"}
    assert captions(look(file, default_caption="default")) == expected


def test_an_ai_toolkit_index_as_the_data_set(tmp_path):
    save(tmp_path / "a.png")
    save(tmp_path / "b.png")
    file = tmp_path / "index.json"
    file.write_text(
        json.dumps({"a.png": {"caption": "long words", "caption_short": "short"}, "b.png": "plain"})
    )
    assert captions(look(file)) == {"a.png": "long words", "b.png": "plain"}
    assert captions(look(file, use_short_captions=True)) == {"a.png": "short", "b.png": "plain"}


def test_a_broken_list_is_an_error(tmp_path):
    file = tmp_path / "index.json"
    file.write_text("3")
    with pytest.raises(DataError) as error:
        look(file)
    assert str(error.value) == f"{file}: found a bare int; expected a list of pictures."


def test_broken_pictures_are_named_and_skipped(tmp_path):
    save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"")
    (tmp_path / "c.heic").write_bytes(b"x")
    result = look(tmp_path)
    assert names(result) == ["a.png"]
    assert said(result.problems) == (
        f"{tmp_path / 'c.heic'}: .heic pictures cannot be opened; convert it to JPEG, PNG or WebP.",
        f"{tmp_path / 'b.png'}: the file is empty (0 bytes); expected a picture.",
    )


@pytest.mark.parametrize("files", [{}, {"readme.md": "x", ".hidden.png": "x"}])
def test_an_empty_folder_says_what_was_looked_for(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as error:
        look(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: no pictures were found; looked for .jpg, .jpeg, .png, .webp and"
        f" {len(EXTENSIONS) - 4} more"
        " extensions that Pillow opens, in all subfolders."
    )


def test_only_foreign_pictures(tmp_path):
    (tmp_path / "a.HEIC").write_bytes(b"x")
    with pytest.raises(
        DataError, match=r"in all subfolders \(.*a.HEIC: .heic pictures cannot be opened; con"
    ):
        look(tmp_path)


def test_only_broken_pictures(tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError) as error:
        look(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: none of its 2 pictures can be read ({tmp_path / 'a.png'}: the file is empty (0 bytes);"
        " expected a picture and 1 more)."
    )


def test_a_missing_folder_suggests_its_neighbour(tmp_path):
    (tmp_path / "cats").mkdir()
    with pytest.raises(DataError) as error:
        look(tmp_path / "cat")
    assert str(error.value) == (
        f"{tmp_path / 'cat'}: there is no such folder (did you mean {tmp_path / 'cats'}?); expected a"
        " folder of"
        " pictures."
    )
    with pytest.raises(DataError) as error:
        look(tmp_path / "zzz/zzz")
    assert (
        str(error.value) == f"{tmp_path / 'zzz/zzz'}: there is no such folder; expected a folder of pictures."
    )


@pytest.mark.parametrize("path", ["", " "])
def test_an_empty_path_is_not_the_working_directory(path):
    with pytest.raises(DataError) as error:
        scan(DatasetConfig(folder_path=path), 2)
    assert str(error.value) == (
        "datasets[2].folder_path: found an empty text; expected a folder of pictures."
    )


def test_a_picture_instead_of_a_folder(tmp_path):
    with pytest.raises(DataError) as error:
        look(save(tmp_path / "a.png"))
    assert str(error.value) == (
        f"{tmp_path / 'a.png'}: found a file; expected a folder of pictures or a list of them (.csv,"
        " .json, .jsonl)."
    )


def test_an_unreadable_subfolder_is_left_out(tmp_path, monkeypatch):
    save(tmp_path / "a.png")
    save(tmp_path / "closed/b.png")
    real = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    result = look(tmp_path)
    assert names(result) == ["a.png"]
    assert said(result.problems) == (
        f"{tmp_path / 'closed'}: cannot be read (Permission denied); the folder is left out.",
    )
    with pytest.raises(DataError) as error:
        look(tmp_path / "closed")
    assert str(error.value) == (
        f"{tmp_path / 'closed'}: cannot be read (Permission denied); expected a folder of pictures."
    )


def test_headers_of_a_thousand_pictures_take_seconds(tmp_path):
    data = save(tmp_path / "0.jpg", 640, 480).read_bytes()
    for number in range(1, 1000):
        (tmp_path / f"{number}.jpg").write_bytes(data)
    start = time.perf_counter()
    assert len(look(tmp_path).pictures) == 1000
    assert time.perf_counter() - start < 5

"""Lists, mappings and long texts of a job file are changed in place; all else stays as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plafond.job.blocks import add_item, put, remove_item
from plafond.job.editing import EditError
from plafond.job.text import parse

TEXT = """\
# a job
job: extension
config:
  name: "cat" # mine
  process:
    - type: sd_trainer
      trigger_word:
      datasets:
        # the cat
        - folder_path: data/cat
          resolution: [512, 768]  # two sizes
        # what stays
        - folder_path: data/reg
          is_reg: true
      train: {steps: 5, lr: 1e-4}
      sample:
        prompts:
          - a cat   # first
          - |
            a cat
            asleep
          - a dog
        neg: >
          blurry
          grey
        seed: 42
"""
PROCESS = ("config", "process", 0)


def read(text: str, suffix: str = ".yaml") -> Any:
    return parse(text, Path(f"job{suffix}"), {}).data["config"]["process"][0]


def changed_lines(after: str, before: str = TEXT) -> tuple[list[str], list[str]]:
    old, new = before.splitlines(), after.splitlines()
    return [line for line in old if line not in new], [line for line in new if line not in old]


def test_lists_gain_and_lose_items() -> None:
    prompts = (*PROCESS, "sample", "prompts")
    more = add_item(TEXT, prompts, "a cat: in the sun")
    assert changed_lines(more) == ([], ['          - "a cat: in the sun"'])
    fewer = remove_item(TEXT, prompts, 1)
    assert read(fewer)["sample"]["prompts"] == ["a cat", "a dog"] and "- a cat   # first\n" in fewer
    none = TEXT
    for _ in range(3):
        none = remove_item(none, prompts, 0)
    assert read(none)["sample"]["prompts"] == [] and "        prompts: []\n        neg: >" in none
    assert read(add_item(none, prompts, "x"))["sample"]["prompts"] == ["x"]
    sizes = (*PROCESS, "datasets", 0, "resolution")
    assert "[512, 768, 1024]  # two sizes" in add_item(TEXT, sizes, 1024)
    assert "[768]  # two sizes" in remove_item(TEXT, sizes, 0)
    assert "[512]  # two sizes" in remove_item(TEXT, sizes, 1)


def test_mappings_in_lists_keep_their_comments() -> None:
    datasets = (*PROCESS, "datasets")
    without = remove_item(TEXT, datasets, 0)
    assert "        # the cat\n        # what stays\n        - folder_path: data/reg" in without
    assert len(read(without)["datasets"]) == 1
    more = add_item(TEXT, datasets, {"folder_path": "data/new", "resolution": [512], "replacements": ["a|b"]})
    assert (
        changed_lines(more)
        == (
            [],
            [
                "        - folder_path: data/new",
                "          resolution: [512]",
                "          replacements:",
                "            - a|b",
            ],
        )
        or '            - "a|b"' in more
    )
    none = remove_item(without, datasets, 0)
    assert read(none)["datasets"] == []
    assert read(add_item(none, datasets, {"folder_path": "x"}))["datasets"] == [{"folder_path": "x"}]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("sample", "prompts", 1), "short"),
        (("sample", "prompts"), ["one", "two"]),
        (("sample", "neg"), ""),
        (("sample", "samples"), [{"prompt": "a", "width": 64}, {"prompt": "b"}]),
        (("datasets", 0, "resolution"), [256]),
        (("datasets", 0, "control_path"), ["a", "b"]),
        (("datasets",), []),
        (("train", "optimizer_params"), {"weight_decay": 0.1}),
        (("train", "optimizer_params", "weight_decay"), 1e-4),
        (("trigger_word",), "sks"),
        (("trigger_word",), None),
        (("save", "dtype"), "bf16"),
        (("sample",), {"seed": 1}),
    ],
)
def test_any_value_takes_the_place_of_any_other(path: tuple[str | int, ...], value: Any) -> None:
    after = put(TEXT, (*PROCESS, *path), value)
    found: Any = read(after)
    for part in path:
        found = found[part]
    assert found == value
    removed, _ = changed_lines(after)
    assert not any("#" in line and "first" not in line and path[0] != "datasets" for line in removed)
    json_text = '{"job": "extension", "config": {"name": "c", "process": [{"type": "sd_trainer", "a": []}]}}'
    assert read(put(json_text, (*PROCESS, path[0]), value, suffix=".json"), ".json")[path[0]] == value


def test_json_stays_json() -> None:
    text = '{"config": {"process": [{"datasets": [{"folder_path": "a"}, {"folder_path": "b"}], "n": null}]}}'
    datasets = (*PROCESS, "datasets")
    more = add_item(text, datasets, {"folder_path": "c"}, suffix=".json")
    assert [one["folder_path"] for one in read(more, ".json")["datasets"]] == ["a", "b", "c"]
    assert read(remove_item(more, datasets, 1, suffix=".json"), ".json")["datasets"][1] == {
        "folder_path": "c"
    }
    assert read(add_item(text, (*PROCESS, "n"), "x", suffix=".json"), ".json")["n"] == ["x"]


def test_what_others_share_is_left_alone() -> None:
    shared = """\
config:
  process:
    - sample: &s
        prompts: &p
          - a
      other: *s
      list: *p
"""
    for change in (
        lambda: add_item(shared, (*PROCESS, "sample", "prompts"), "b"),
        lambda: put(shared, (*PROCESS, "other", "prompts"), ["c"]),
        lambda: remove_item(shared, (*PROCESS, "sample", "prompts"), 0),
    ):
        with pytest.raises(EditError, match="cannot be changed by a program"):
            change()
    assert remove_item(shared, (*PROCESS, "list"), 0) == shared.replace("list: *p", "list: []")
    with pytest.raises(EditError, match="the file has no"):
        remove_item(TEXT, (*PROCESS, "datasets"), 7)
    with pytest.raises(EditError, match="is not a list"):
        add_item(TEXT, (*PROCESS, "sample", "seed"), 1)

"""What the page is made of, without a browser: curves, drafts, what a model starts with, where jobs may write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from plafond.errors import JobError
from plafond.job.archs import ALIASES
from plafond.job.editing import EditError
from plafond.job.reading import job_of
from plafond.jobs.home import Home
from plafond.training.run_folder import RunFolder
from plafond.web.curves import MOST_POINTS, Curves, recovered_steps, smoothed
from plafond.web.draft import Draft
from plafond.web.fields import DATASET, PANELS, PICTURES, SAMPLE, TARGET, TRAINING, every_field
from plafond.web.kinds import Control
from plafond.web.places import OutsideError, Places, inside
from plafond.web.starts import base_models, choose, chosen, defaults, new_text
from plafond.web.words import words


def write(path: Path, *steps: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps({"step": step, "loss": 1 / step}) + "\n" for step in steps)


def test_curves_follow_a_run_that_grows_goes_back_and_starts_anew(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "run")
    curves = Curves(folder)
    assert not curves.read() and curves.rows == []
    write(folder.metrics, 1, 2, 3)
    assert curves.read() and [row["step"] for row in curves.rows] == [1, 2, 3]
    assert not curves.read()
    with folder.metrics.open("a") as file:
        file.write('{"step": 4, "lo')
    assert not curves.read()
    with folder.metrics.open("a") as file:
        file.write('ss": 0.2}\n')
    assert curves.read() and curves.rows[-1] == {"step": 4, "loss": 0.2}
    folder.metrics.write_text("")
    write(folder.metrics, 1, 2)
    assert curves.read() and [row["step"] for row in curves.rows] == [1, 2]
    # a continued run repeats steps after its last save
    write(folder.metrics, 2, 3)
    assert curves.read() and [row["step"] for row in curves.rows] == [1, 2, 3]
    write(folder.metrics, *range(4, 5000))
    curves.read()
    thin = curves.thinned()
    assert (
        MOST_POINTS / 2 < len(thin) <= MOST_POINTS + 1 and thin[0]["step"] == 1 and thin[-1]["step"] == 4999
    )


def test_smoothing_has_no_bias_and_keeps_gaps() -> None:
    assert smoothed([2.0, 2.0, 2.0], 0.9) == pytest.approx([2.0, 2.0, 2.0])
    assert smoothed([1.0, None, 3.0], 0.0) == [1.0, None, 3.0]
    falling = smoothed([1.0, 0.0, 0.0], 0.5)
    assert falling == pytest.approx([1.0, 1 / 3, 1 / 7])


def test_recoveries_are_found_in_the_log() -> None:
    log = (
        "out of memory while warming up, which is repeated: blocks at 64x64 now keep: attention\n"
        "out of memory at step 7, which is repeated: batches at 64x64 are trained in 2 parts\n"
        "out of memory in the update of step 9; repeating from step 6\nCUDA out of memory. Tried to\n"
    )
    assert recovered_steps(log) == [0, 7, 9]


@pytest.mark.parametrize("repo", base_models())
def test_every_model_starts_with_a_job_that_can_be_read(repo: str) -> None:
    draft = Draft(new_text())
    choose(draft, repo)
    assert draft.problem is None and draft.job is not None and chosen(draft) == repo
    process = draft.job.processes[0]
    arch = base_models()[repo].arch.partition(":")[0]
    assert process.model.arch == ALIASES.get(arch, arch)
    for key, value in defaults(repo).items():
        place = key.replace("datasets.", "datasets.0.")
        assert draft.value(place) == value, key
    # every field of the form can be read, and written as it is
    before = draft.text
    for panel in (*PANELS, SAMPLE, DATASET):
        prefix = "datasets.0." if panel is DATASET else ""
        for field in panel.fields:
            value = field.read(draft, prefix)
            if field.kind in ("text", "whole", "number") and value:
                field.write(draft, value, prefix)
    assert draft.text == before
    # and back: nothing is left of the model but keys that say what holds anyway
    choose(draft, "black-forest-labs/FLUX.1-dev")
    assert draft.job is not None and draft.job.processes == job_of(new_text(), Path("job.yaml")).processes


def test_what_was_set_by_hand_survives_another_model() -> None:
    draft = Draft(new_text())
    draft.set("sample.sample_steps", 40)
    choose(draft, "Tongyi-MAI/Z-Image-Turbo")
    assert draft.value("sample.sample_steps") == 40 and draft.value("sample.guidance_scale") == 1


def test_a_draft_takes_wrong_values_and_says_what_is_wrong() -> None:
    draft = Draft(new_text())
    (lr,) = (field for field in TRAINING.fields if field.key == "train.lr")
    (rank,) = (field for field in TARGET.fields if field.key == "network.linear")
    lr.write(draft, "fast")
    assert draft.job is None and draft.problem is not None and draft.problem.key == "train.lr"
    said = words("fr").said(draft.problem.placed).replace("\u00a0", " ")
    assert re.fullmatch(r'ligne \d+ : train.lr : il faut un nombre supérieur à 0, et non "fast"', said)
    assert lr.read(draft) == "fast"
    draft.set("train.steps", 0)
    assert [problem.key for problem in draft.problems] == ["train.steps", "train.lr"]
    draft.set("train.steps", 1000)
    # the other fields still work
    rank.write(draft, "8")
    assert draft.value("network.linear") == draft.value("network.linear_alpha") == 8
    lr.write(draft, "2e-4")
    assert draft.problem is None and draft.value("train.lr") == 2e-4
    draft.write(draft.text.replace("job: extension", "job: [extension"))
    assert draft.data is None and draft.problem is not None and draft.problem.line is not None
    with pytest.raises(EditError, match="mend it first"):
        draft.set("train.steps", 5)
    assert draft.value("train.steps") == 1000 and draft.family is None


def test_a_setting_of_the_command_line_that_is_wrong_is_a_problem_of_the_draft() -> None:
    draft = Draft(new_text(), overrides=("train.steps=0",))
    assert draft.job is None and draft.problem is not None and draft.problem.line is None
    assert "--set train.steps=0" in words("en").said(draft.problem.placed)


def test_control_data_sets_are_a_list_or_have_names_of_their_own() -> None:
    fields = [field for field in DATASET.fields if isinstance(field, Control)]
    draft = Draft(new_text())
    choose(draft, "Qwen/Qwen-Image-Edit-2509")
    assert all(field.shown(draft, "datasets.0.") for field in fields)
    fields[0].write(draft, "datasets/a", "datasets.0.")
    fields[1].write(draft, "datasets/b", "datasets.0.")
    assert draft.value("datasets.0.control_path") == ["datasets/a", "datasets/b"]
    fields[0].write(draft, None, "datasets.0.")
    assert [field.read(draft, "datasets.0.") for field in fields] == ["datasets/b", None, None]
    named = Draft(new_text().replace("caption_ext: txt", "control_path_1: datasets/a"))
    fields[1].write(named, "datasets/b", "datasets.0.")
    assert "control_path_2: datasets/b" in named.text
    assert named.value("datasets.0.control_path") == ["datasets/a", "datasets/b"]


FLUX, SDXL = "black-forest-labs/FLUX.1-dev", "stabilityai/stable-diffusion-xl-base-1.0"
KONTEXT, EDIT = "black-forest-labs/FLUX.1-Kontext-dev", "Qwen/Qwen-Image-Edit-2509"
WAN, FLEX2 = "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers", "ostris/Flex.2-preview"


@pytest.mark.parametrize(
    ("key", "repos"),
    [
        ("network.conv", {SDXL}),
        ("train.min_snr_gamma", {SDXL}),
        ("inpaint_path", {FLEX2}),
        ("shrink_video_to_frames", {WAN}),
        ("ctrl_img", {KONTEXT, WAN}),
        ("ctrl_img_2", {EDIT, FLEX2}),
        ("mask_path", {FLUX, SDXL, KONTEXT, EDIT, WAN, FLEX2}),
        # these wait for another setting
        ("mask_min_value", set()),
        ("prior_reg", set()),
        ("train.inverted_mask_prior", set()),
    ],
)
def test_a_setting_is_shown_where_it_means_something(key: str, repos: set[str]) -> None:
    (field,) = (one for one in every_field() if one.key == key)
    prefix = "datasets.0." if field in DATASET.fields else "sample.samples.0." if field in PICTURES else ""
    for repo in (FLUX, SDXL, KONTEXT, EDIT, WAN, FLEX2):
        draft = Draft(new_text())
        choose(draft, repo)
        assert field.shown(draft, prefix) is (repo in repos), repo


def test_what_waits_for_another_setting_comes_with_it() -> None:
    draft = Draft(new_text())
    fields = {field.key: field for field in every_field()}
    fields["alpha_mask"].write(draft, True, "datasets.0.")
    assert fields["mask_min_value"].shown(draft, "datasets.0.")
    assert fields["train.inverted_mask_prior"].shown(draft, "")
    fields["trigger_word"].write(draft, "zork")
    fields["train.diff_output_preservation"].write(draft, True)
    fields["train.blank_prompt_preservation"].write(draft, True)
    assert draft.job is not None and not draft.value("train.diff_output_preservation")
    fields["mask_path"].write(draft, "datasets/masks", "datasets.0.")
    assert draft.job.processes[0].datasets[0].mask_path == "datasets/masks"
    fields["mask_path"].write(draft, None, "datasets.0.")
    assert draft.job is not None and draft.job.processes[0].datasets[0].mask_path is None


def job(folder: Path, **places: Any) -> Any:
    text = new_text().replace("datasets/pictures", str(places.get("reads", "datasets/pictures")))
    text = text.replace("training_folder: output", f"training_folder: {places.get('writes', 'output')}")
    return job_of(text, folder / "job.yaml")


def test_jobs_stay_where_the_page_may_be(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").make()
    places, elsewhere = Places(home), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (home.datasets / "link").symlink_to(elsewhere)
    places.check(job(home.path), home.path)
    for bad in (
        {"reads": elsewhere},
        {"writes": elsewhere},
        {"reads": "datasets/link"},
        {"writes": "datasets"},
    ):
        with pytest.raises(JobError, match="is elsewhere"):
            places.check(job(home.path, **bad), home.path)
    Places(home, (elsewhere,)).check(job(home.path, reads=elsewhere, writes=elsewhere), home.path)
    # a job of the terminal keeps what it came with, and gets nothing else
    known = job(tmp_path, reads=elsewhere, writes=elsewhere)
    places.check(job(tmp_path, reads=elsewhere, writes=elsewhere), tmp_path, known)
    with pytest.raises(JobError, match="is elsewhere"):
        places.check(job(tmp_path, reads="/etc", writes=elsewhere), tmp_path, known)
    for name in ("../x", "/etc/passwd", "a/../b", "", "a\0b", "link/x", "a\\b"):
        with pytest.raises(OutsideError):
            inside(home.datasets, name)

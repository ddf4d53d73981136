import pytest

from plafond.job.prompts import FlagError, read_flags

PROMPTS = [
    ("a fox", "a fox", {}),
    ("a fox --w 768 --h 512", "a fox", {"width": 768, "height": 512}),
    ("a fox --n blurry, ugly --d 3", "a fox", {"neg": "blurry, ugly", "seed": 3}),
    ("a fox --seed 3 --cfg 4.5 --steps 20", "a fox", {"seed": 3, "guidance_scale": 4.5, "sample_steps": 20}),
    (
        "a fox --l 4 --s 9 --m 0.5",
        "a fox",
        {"guidance_scale": 4.0, "sample_steps": 9, "network_multiplier": 0.5},
    ),
    ("run --frames 41 --fps 16", "run", {"num_frames": 41, "fps": 16}),
    (
        "edit --ctrl_img /my photos/a b.png --ctrl_idx 1",
        "edit",
        {"ctrl_img": "/my photos/a b.png", "ctrl_idx": 1},
    ),
    ("--w 64", "", {"width": 64}),
    ("a fox -- the red one -- sleeps", "a fox -- the red one -- sleeps", {}),
    ("a fox--w 64", "a fox--w 64", {}),
    ("the --wide shot", "the --wide shot", {}),
    ("a fox --  red --w 64", "a fox --  red", {"width": 64}),
    ("  spaces kept  ", "  spaces kept  ", {}),
    ("a fox --n", "a fox", {"neg": ""}),
]


@pytest.mark.parametrize(("prompt", "text", "values"), PROMPTS)
def test_flags(prompt, text, values):
    found = read_flags(prompt)
    assert (found.prompt, found.values, found.unused) == (text, values, [])


def test_unused_flags_are_cut_out():
    found = read_flags("a fox --p2 more --w 64 --ev 1,2")
    assert (found.prompt, found.values, found.unused) == ("a fox", {"width": 64}, ["--p2", "--ev"])


def test_a_flag_with_a_wrong_value():
    with pytest.raises(FlagError, match='--steps: expected a whole number, found "many"'):
        read_flags("a fox --steps many")

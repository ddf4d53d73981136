"""Expandable segments: what the plan replays is what the run asks torch for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plafond.memory.expandable import VARIABLES, add_to, mode_for

LINUX = "Linux-6.8.0-45-generic-x86_64-with-glibc2.39"
WSL = "Linux-5.15.153.1-microsoft-standard-WSL2-x86_64-with-glibc2.35"
WINDOWS = "Windows-11-10.0.22631-SP0"


@pytest.mark.parametrize(
    ("system", "before", "after", "mode"),
    [
        (LINUX, {}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "expandable"),
        (
            LINUX,
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64,"},
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"},
            "expandable",
        ),
        # torch reads only the first that is set, so that is where it has to stand
        (
            LINUX,
            {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:[256:1,>:2]", "PYTORCH_ALLOC_CONF": "a:b"},
            {
                "PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:[256:1,>:2],expandable_segments:True",
                "PYTORCH_ALLOC_CONF": "a:b",
            },
            "expandable",
        ),
        (LINUX, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments : False"}, None, "default"),
        (LINUX, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, None, "expandable"),
        (LINUX, {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, None, "default"),
        (WSL, {}, None, "default"),
        (WSL, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, None, "expandable"),
        (WINDOWS, {}, None, "default"),
        (WINDOWS, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, None, "default"),
    ],
)
def test_the_users_own_settings_stay(
    system: str, before: dict[str, str], after: dict[str, str] | None, mode: str
) -> None:
    environ = dict(before)
    assert mode_for(system, environ) == mode
    add_to(environ, system)
    assert environ == (before if after is None else after)
    assert mode_for(system, environ) == mode, "the same after it was set up"


@given(
    st.dictionaries(
        st.sampled_from(VARIABLES),
        st.lists(
            st.sampled_from(["expandable_segments:True", "expandable_segments:False", "max_split_size_mb:64"])
        ).map(",".join),
    ),
    st.sampled_from([LINUX, WSL, WINDOWS]),
)
def test_the_answer_does_not_depend_on_when_it_is_asked(environ: dict[str, str], system: str) -> None:
    mode = mode_for(system, environ)
    add_to(environ, system)
    assert mode_for(system, environ) == mode
    once = dict(environ)
    add_to(environ, system)
    assert environ == once


def test_torch_sees_it() -> None:
    code = (
        "from plafond.memory.expandable import set_up; set_up()\n"
        "import torch; print(torch._C._accelerator_getAllocatorSettings())"
    )
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    for environ, expected in (
        ({}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, "expandable_segments:False"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**clean, **environ},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected

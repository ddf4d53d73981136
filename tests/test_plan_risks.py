"""Combinations that a family says are risky with checkpointing off."""

import pytest

from job_files import JOB, process
from plafond.plan.risks import risk_warning

OFF = "train.gradient_checkpointing=false"


@pytest.mark.parametrize(
    ("arch", "settings", "said"),
    [
        ("zimage", ("resolution=[1024,1536]", "batch_size=4"), "resolution 1536, batch_size 4"),
        ("zimage", ("resolution=[1024]", "batch_size=1"), None),
        ("zimage", ("resolution=[768]", "batch_size=4"), None),
        (
            "qwen_image_edit_plus",
            ("resolution=[1024]", "control_path=[a,b]"),
            "resolution 1024, 2 control images",
        ),
        ("qwen_image_edit", ("resolution=[1024]", "batch_size=2"), "resolution 1024, batch_size 2"),
        ("flux", ("resolution=[768,1024]", "batch_size=1"), "resolution 1024, 2 resolutions"),
        ("flux", ("resolution=[512]", "batch_size=4"), "resolution 512, batch_size 4"),
        ("flux", ("resolution=[1024]", "batch_size=2"), None),
    ],
)
def test_risky_settings_are_named_where_checkpointing_is_off(tmp_path, arch, settings, said):
    keys = [f"{'train' if each.startswith('batch') else 'datasets.0'}.{each}" for each in settings]
    job = process(tmp_path, JOB, overrides=[f"model.arch={arch}", *keys, OFF])
    warning = risk_warning(job)
    assert warning is None if said is None else f"is false with {said}: on {arch}" in str(warning)
    on = process(tmp_path, JOB, overrides=[f"model.arch={arch}", *keys, OFF.replace("false", "true")])
    assert risk_warning(on) is None

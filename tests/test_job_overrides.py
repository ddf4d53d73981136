import pytest

from job_files import CORPUS, JOB, change, load, write
from plafond.errors import UsageError
from plafond.job.reading import load_job

SETTINGS = [
    ("train.steps=30", "train.steps", 30),
    ("train.lr=1e-5", "train.lr", 1e-5),
    ("train.gradient_checkpointing=off", "train.gradient_checkpointing", False),
    ("train.ema_config.use_ema=true", "train.ema_config.use_ema", True),
    ("train.optimizer_params.weight_decay=0.1", "train.optimizer_params", {"weight_decay": 0.1}),
    ("network.rank=4", "network.linear", 4),
    ("network.linear=4", "network.linear", 4),
    ("datasets.0.folder_path=/some/place", "datasets.0.folder_path", "/some/place"),
    ("datasets.0.resolution=[256]", "datasets.0.resolution", (256,)),
    ("datasets.0.resolution.1=1024", "datasets.0.resolution", (512, 1024)),
    ("sample.samples.0.prompt=a hare", "sample.samples.0.prompt", "a hare"),
    ("sample.samples.1.width=128", "sample.samples.1.width", 128),
    ("sample.prompts=[one]", "sample.samples.0.prompt", "one"),
    ("model.arch=qwen_image", "model.arch", "qwen_image"),
    ("logging.log_every=5", "logging.log_every", 5),
    ("trigger_word=hare", "datasets.0.trigger_word", "hare"),
    ("trigger_word=", "trigger_word", None),
    ("training_folder=[name]/out", "training_folder", "fox/out"),
]


@pytest.mark.parametrize(("setting", "key", "value"), SETTINGS, ids=[setting for setting, _, _ in SETTINGS])
def test_a_setting(tmp_path, setting, key, value):
    found = load(tmp_path, overrides=[setting]).processes[0]
    for part in key.split("."):
        found = found[int(part)] if part.isdecimal() else getattr(found, part)
    assert found == value


def test_a_setting_beats_other_spellings_in_the_file(tmp_path):
    text = change("linear: 16", "rank: 16").replace("steps: 2000", "gradient_accumulation_steps: 8")
    job = load(tmp_path, text, overrides=["network.linear=4", "train.gradient_accumulation=2"])
    assert job.processes[0].network.linear == 4
    assert job.processes[0].train.gradient_accumulation == 2


def test_settings_apply_to_every_process(tmp_path):
    start, end = JOB.index("    - type"), JOB.index("meta:")
    job = load(tmp_path, JOB[:end] + JOB[start:], overrides=["train.steps=3"])
    assert [one.train.steps for one in job.processes] == [3, 3]


BAD = [
    ("train.steps", "expected KEY=VALUE, as in train.steps=30"),
    ("=3", "expected KEY=VALUE, as in train.steps=30"),
    ("train.step=3", "unknown key train.step; did you mean train.steps?"),
    ("batch_size=3", "unknown key batch_size; did you mean train.batch_size?"),
    ("trian.steps=3", "unknown key trian; did you mean train?"),
    ("resolution=512", "unknown key resolution; did you mean datasets.0.resolution?"),
    ("datasets.0.resolutoin=512", "unknown key datasets.resolutoin; did you mean datasets.0.resolution?"),
    ("datasets.folder_path=x", "expected a number after datasets, as in datasets.0.folder_path"),
    ("datasets.3.folder_path=x", "datasets has 1 items, counted from 0"),
    ("config.process.0.train.steps=3", "unknown key config; did you mean train.steps?"),
    ("config.process.train.steps=3", "unknown key config; did you mean train.steps?"),
    ("config.process.0=3", "unknown key config"),
    ("qqqq=1", "unknown key qqqq"),
    ("train.steps=many", 'expected a whole number of at least 1, found "many"'),
    ("train=fast", 'expected a mapping, found "fast"'),
    ("train.steps.more=3", "unknown key train.steps.more"),
    ("config.name=x", "use --name instead"),
]


@pytest.mark.parametrize(("setting", "expected"), BAD, ids=[setting for setting, _ in BAD])
def test_a_setting_that_cannot_be_applied(tmp_path, setting, expected):
    with pytest.raises(UsageError) as error:
        load(tmp_path, overrides=[setting])
    assert str(error.value) == f"--set {setting}: {expected}"


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_examples_take_settings(path):
    job = load_job(path, overrides=["train.steps=30", "sample.samples.0.prompt=a fox", "network.rank=4"])
    (one,) = job.processes
    assert (one.train.steps, one.sample.samples[0].prompt, one.network.linear) == (30, "a fox", 4)


def test_the_file_is_left_alone(tmp_path):
    path = write(tmp_path)
    load_job(path, overrides=["train.steps=3"])
    assert path.read_text() == JOB

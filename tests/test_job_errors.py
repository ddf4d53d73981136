"""Every kind of bad job file and the exact sentence its owner reads."""

import os
from pathlib import Path

import pytest

from job_files import JOB, change, sentence
from plafond.errors import JobError
from plafond.job.reading import load_job


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


VALUES = [
    (
        "batch_size: 1",
        "batch_size: two",
        'line 18: train.batch_size: expected a whole number of at least 1, found "two"',
    ),
    (
        "batch_size: 1",
        "batch_size: 0",
        "line 18: train.batch_size: expected a whole number of at least 1, found 0",
    ),
    (
        "batch_size: 1",
        "batch_size: 1.5",
        "line 18: train.batch_size: expected a whole number of at least 1, found 1.5",
    ),
    (
        "batch_size: 1",
        'batch_size: "16"',
        'line 18: train.batch_size: expected a whole number of at least 1, found "16"; remove the quotes',
    ),
    (
        "batch_size: 1",
        "batch_size: on",
        "line 18: train.batch_size: expected a whole number of at least 1, found true "
        "(yes, no, on and off mean true and false)",
    ),
    (
        "batch_size: 1",
        "batch_size: [1, 2]",
        "line 18: train.batch_size: expected a whole number of at least 1, found a list",
    ),
    ("lr: 1e-4", "lr: 0", "line 20: train.lr: expected a number above 0, found 0"),
    ("lr: 1e-4", "lr: .nan", "line 20: train.lr: expected a finite number, found nan"),
    ("lr: 1e-4", "lr: 1e400", "line 20: train.lr: expected a finite number, found inf"),
    (
        "lr: 1e-4",
        "optimizer_params: {eps: .inf}",
        "line 20: train.optimizer_params.eps: expected a finite number, found inf",
    ),
    ("linear: 16", "linear: -4", "line 10: network.linear: expected a whole number of at least 1, found -4"),
    ("linear: 16", "rank: 0", "line 10: network.rank: expected a whole number of at least 1, found 0"),
    (
        "linear: 16",
        "dropout: 1",
        "line 10: network.dropout: expected a number of at least 0 and below 1, found 1",
    ),
    (
        "caption_ext: txt",
        "caption_dropout_rate: 5",
        "line 15: datasets.0.caption_dropout_rate: expected a number from 0 to 1, found 5",
    ),
    (
        "caption_ext: txt",
        "caption_ext: 1",
        "line 15: datasets.0.caption_ext: expected a text, found 1; put it in quotes",
    ),
    (
        "resolution: [512, 768]",
        "resolution: [512, big]",
        "line 16: datasets.0.resolution.1: expected a whole number of at least 16, or a list of them, "
        'found "big"',
    ),
    (
        "resolution: [512, 768]",
        "control_transparent_color: [0, 0, 256]",
        "line 16: datasets.0.control_transparent_color.2: expected three whole numbers from 0 to 255, "
        "found 256",
    ),
    (
        "resolution: [512, 768]",
        "control_path: 7",
        "line 16: datasets.0.control_path: expected a text or a list of texts, found 7",
    ),
    (
        "resolution: [512, 768]",
        "resolution: []",
        "line 16: datasets.0.resolution: expected a whole number of at least 16, or a list of them, "
        "found an empty list",
    ),
    (
        "resolution: [512, 768]",
        "resolution: [512, 768]\n          flip_x: sometimes",
        'line 17: datasets.0.flip_x: expected true or false, found "sometimes"',
    ),
    (
        "resolution: [512, 768]",
        "resolution: [512, 768]\n          flip_x: 'yes'",
        'line 17: datasets.0.flip_x: expected true or false, found "yes"; remove the quotes',
    ),
    (
        "steps: 2000",
        "gradient_checkpointing: maybe",
        'line 19: train.gradient_checkpointing: expected true, false or auto, found "maybe"',
    ),
    (
        "steps: 2000",
        "ema_config: {use_ema: true, ema_decay: 2}",
        "line 19: train.ema_config.ema_decay: expected a number from 0 to 1, found 2",
    ),
    ("steps: 2000", "ema_config: 0.99", "line 19: train.ema_config: expected a mapping, found 0.99"),
    (
        "steps: 2000",
        "optimizer_params: 1e-4",
        "line 19: train.optimizer_params: expected a mapping, found 0.0001",
    ),
    (
        "optimizer: adamw8bit",
        "optimizer: adamw8bits",
        "line 21: train.optimizer: expected one of adamw8bit, adamw, adam8bit, adam, adafactor, lion8bit, "
        'lion, prodigy, found "adamw8bits"; did you mean adamw8bit?',
    ),
    (
        "optimizer: adamw8bit",
        "optimizer: Automagic",
        'line 21: train.optimizer: "Automagic" is an optimizer of AI Toolkit that plafond does not have; '
        "the nearest it has is adafactor",
    ),
    (
        "optimizer: adamw8bit",
        "lr_scheduler: polynomial",
        'line 21: train.lr_scheduler: "polynomial" is a learning-rate schedule of AI Toolkit that plafond '
        "does not have; the nearest it has is linear",
    ),
    (
        "optimizer: adamw8bit",
        "loss_type: wavelet",
        'line 21: train.loss_type: "wavelet" is a loss of AI Toolkit that plafond does not have; it has '
        "mse, mae",
    ),
    (
        "optimizer: adamw8bit",
        "timestep_type: sigmoidal",
        "line 21: train.timestep_type: expected one of sigmoid, linear, weighted, shift, lognorm_blend, "
        'found "sigmoidal"; did you mean sigmoid?',
    ),
    (
        "optimizer: adamw8bit",
        "content_or_style: structure",
        'line 21: train.content_or_style: expected one of balanced, content, style, found "structure"',
    ),
    (
        "dtype: bf16",
        "dtype: bflot16",
        "line 22: train.dtype: expected one of float32, bfloat16, float16, "
        'found "bflot16"; did you mean bfloat16?',
    ),
    (
        "is_flux: true",
        "arch: qwen_imagee",
        'line 25: model.arch: expected the name of an architecture, found "qwen_imagee"; '
        "did you mean qwen_image?",
    ),
    (
        "is_flux: true",
        "is_flux: true\n        is_xl: true",
        "line 26: model.is_xl: is_flux and is_xl are both true; write one arch instead",
    ),
    ("is_flux: true", "is_flux: maybe", 'line 25: model.is_flux: expected true or false, found "maybe"'),
    ("quantize: false", "quantize: 8", "line 26: model.quantize: expected true or false, found 8"),
    (
        "quantize: false",
        "qtype: qfloat9",
        "line 26: model.qtype: expected a number format such as qfloat8, uint4 or nf4, "
        'found "qfloat9"; did you mean qfloat8?',
    ),
    ("width: 1024", "width: 10", "line 28: sample.width: expected a whole number of at least 64, found 10"),
    ("width: 1024", "neg: 3", "line 28: sample.neg: expected a text or false, found 3"),
    (
        "a [trigger] in the snow",
        "a fox --w wide",
        'line 31: sample.prompts.0: --w: expected a whole number, found "wide"',
    ),
    (
        "a [trigger] in the snow",
        "a fox --w 10",
        "line 31: sample.prompts.0: --w: expected a whole number of at least 64, found 10",
    ),
    (
        "a [trigger] in the snow",
        "12",
        "line 31: sample.prompts.0: expected a text, found 12; put it in quotes",
    ),
    (
        "trigger_word: f0x",
        "trigger_word: 7",
        "line 7: trigger_word: expected a text, found 7; put it in quotes",
    ),
    (
        "trigger_word: f0x",
        "training_seed: -1",
        "line 7: training_seed: expected a whole number from 0 to 9223372036854775807, found -1",
    ),
    (
        "save_every: 250",
        "save_format: pickle",
        'line 12: save.save_format: expected one of safetensors, diffusers, found "pickle"',
    ),
    (
        "type: lora",
        "type: fullrank",
        'line 9: network.type: "fullrank" is a network type of AI Toolkit that plafond does not '
        "have; the nearest it has is lokr",
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), VALUES, ids=[f"{new}" for _, new, _ in VALUES])
def test_a_wrong_value(old, new, expected):
    assert sentence(change(old, new)) == f"job.yaml, {expected}"


SHAPES = [
    ("", "job.yaml: the file is empty"),
    ("# nothing yet\n", "job.yaml: the file is empty"),
    ("just words\n", 'job.yaml: expected a mapping with job and config, found "just words"'),
    ("- job: extension\n", "job.yaml: expected a mapping with job and config, found a list"),
    ("config: {}\n", 'job.yaml: expected a key "job" at the top of the file'),
    ("job: extension\n", 'job.yaml: expected a key "config" at the top of the file'),
    (
        change("job: extension", "job: extention"),
        'job.yaml, line 1: job: expected extension, found "extention"; did you mean extension?',
    ),
    (
        change("job: extension", "job: extract"),
        'job.yaml, line 1: job: the job "extract" of AI Toolkit is not supported; supported: extension',
    ),
    (
        change("type: sd_trainer", "type: concept_slider"),
        'job.yaml, line 5: type: the process type "concept_slider" of AI Toolkit is not '
        "supported; supported: sd_trainer, diffusion_trainer, ui_trainer",
    ),
    (
        change("type: sd_trainer", "type: sd_trainr"),
        "job.yaml, line 5: type: expected one of sd_trainer, diffusion_trainer, ui_trainer, "
        'found "sd_trainr"; did you mean sd_trainer?',
    ),
    (
        change("    - type: sd_trainer\n      training_folder: output", "    - training_folder: output"),
        "job.yaml, line 5: config.process.0: expected a type, one of sd_trainer, diffusion_trainer, "
        "ui_trainer",
    ),
    (
        "job: extension\nconfig:\n  name: x\n  process: []\n",
        "job.yaml, line 4: config.process: expected a list of processes, found an empty list",
    ),
    (
        "job: extension\nconfig:\n  name: x\n  process: [sd_trainer]\n",
        'job.yaml, line 4: config.process.0: expected a mapping, found "sd_trainer"',
    ),
    (
        "job: extension\nconfig: none\n",
        'job.yaml, line 2: config: expected a mapping with name and process, found "none"',
    ),
    (
        change('meta:\n  name: "[name]"', "meta: 3"),
        "job.yaml, line 33: meta: expected a mapping, found 3",
    ),
    (
        change("  name: fox\n", ""),
        "job.yaml, line 2: config: expected a name for the job, as name or with --name",
    ),
    (
        change("name: fox", "name: 2024"),
        "job.yaml, line 3: config.name: expected a text, found 2024; put it in quotes",
    ),
    (
        change("name: fox", "name: a/b"),
        'job.yaml, line 3: config.name: expected a name that can be a folder\'s, found "a/b"',
    ),
    (
        change("name: fox", 'name: "[name]"'),
        "job.yaml, line 3: config.name: [name] stands for the job's name; give one with --name",
    ),
    (
        change("        name_or_path: black-forest-labs/FLUX.1-dev\n", ""),
        "job.yaml, line 23: model.name_or_path: required, but not given (Hugging Face name, folder or "
        "file of the base model)",
    ),
    (
        change("- folder_path: photos\n          caption_ext", "- caption_ext"),
        "job.yaml, line 14: datasets.0.folder_path: required, but not given (Folder of pictures or clips, "
        "read with its subfolders)",
    ),
    (
        JOB[: JOB.index("      model:")],
        "job.yaml, line 5: config.process.0: expected a model with name_or_path",
    ),
    (
        change("      datasets:\n        - folder_path", "      datasets:\n          folder_path"),
        "job.yaml, line 13: datasets: expected a list of datasets, found a mapping",
    ),
    (
        change("      save:\n        save_every: 250", "      save: 250"),
        "job.yaml, line 11: save: expected a mapping, found 250",
    ),
    (
        change("        prompts:\n          - a", "        prompts: a fox\n        samples:\n          - a"),
        'job.yaml, line 32: sample.samples.0: expected a mapping, found "a [trigger] in the snow"',
    ),
    (
        change(
            "        prompts:\n          - a [trigger] in the snow\n",
            "        prompts: a fox\n        fps:\n",
        ),
        'job.yaml, line 30: sample.prompts: expected a list of prompts, found "a fox"',
    ),
]


@pytest.mark.parametrize(("text", "expected"), SHAPES, ids=[expected for _, expected in SHAPES])
def test_a_wrong_shape(text, expected):
    assert sentence(text) == expected


SYNTAX = [
    (
        change("name_or_path: black-forest-labs/FLUX.1-dev", 'name_or_path: "black-forest-labs/FLUX.1-dev'),
        "job.yaml, line 24: the quote that opens here is not closed on its line",
    ),
    ("job: 'extension\n", "job.yaml, line 1: the quote that opens here is never closed"),
    (
        change("      network:", "\t  network:"),
        "job.yaml, line 8: a tab is used for indentation; YAML allows only spaces",
    ),
    (
        change("        steps: 2000", "      steps: 2000\n        cat: 1"),
        'job.yaml, line 20: a ":" is not allowed here; check the indentation, or quote the text',
    ),
    (
        change("      network:", "     network:"),
        "job.yaml, line 8: the indentation does not match the lines above",
    ),
    (
        change("resolution: [512, 768]", "resolution: [512, 768"),
        "job.yaml, line 16: the bracket that opens here is not closed, or a comma is missing",
    ),
    (
        change("lr: 1e-4", "lr: 1e-4\n        lr: 2e-4"),
        "job.yaml, line 21: train.lr: written twice, first on line 20",
    ),
    (JOB + "---\n" + JOB, 'job.yaml, line 35: a second document starts here; remove the "---"'),
    (change("lr: 1e-4", "lr: *fast"), "job.yaml, line 20: *fast has no anchor &fast above it"),
    (change("lr: 1e-4", "lr: !rate 1"), "job.yaml, line 20: the tag !rate is not supported; remove it"),
    (
        change("trigger_word: f0x", "trigger_word: @f0x"),
        'job.yaml, line 7: an unquoted text cannot begin with "@"; put it in quotes',
    ),
    (change("f0x", "f\x070x"), "job.yaml, line 7: the character '\\x07' is not allowed in YAML"),
    (
        change("f0x", '"f\\q"'),
        'job.yaml, line 7: "\\q" means nothing in double quotes; use single quotes, or "/" in paths',
    ),
    ("[" * 5000, "job.yaml, line 1: nested more than 60 levels deep"),
    (
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
            for old, new in zip("abcde", "bcdef", strict=True)
        ),
        "job.yaml, line 1: more than 100000 values",
    ),
]


@pytest.mark.parametrize(("text", "expected"), SYNTAX, ids=[expected for _, expected in SYNTAX])
def test_invalid_yaml(text, expected):
    assert sentence(text) == expected


CONTRADICTIONS = [
    (
        "steps: 2000",
        "gradient_accumulation: 4\n        gradient_accumulation_steps: 2",
        "line 20: train.gradient_accumulation_steps: gradient_accumulation (4) and "
        "gradient_accumulation_steps (2) are both set; keep only gradient_accumulation",
    ),
    (
        "steps: 2000",
        "train_text_encoder: true\n        cache_text_embeddings: true",
        "line 19: train.train_text_encoder: the text encoder cannot be trained with "
        "cache_text_embeddings: true, which removes it",
    ),
    (
        "steps: 2000",
        "train_text_encoder: true\n        unload_text_encoder: true",
        "line 19: train.train_text_encoder: the text encoder cannot be trained with "
        "unload_text_encoder: true, which removes it",
    ),
    (
        "resolution: [512, 768]",
        "cache_text_embeddings: true\n        - folder_path: more",
        "line 16: datasets.0.cache_text_embeddings: expected all datasets or none to cache text embeddings; "
        "set train.cache_text_embeddings instead",
    ),
    (
        "quantize: false",
        "qtype: uint3|some/adapter.safetensors\n        assistant_lora_path: some/lora",
        "line 27: model.assistant_lora_path: an assistant LoRA cannot be combined with the accuracy recovery "
        "adapter in qtype",
    ),
    (
        "steps: 2000",
        "min_denoising_steps: 800\n        max_denoising_steps: 200",
        "line 19: train.min_denoising_steps: expected at most max_denoising_steps (200), found 800",
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "expected"), CONTRADICTIONS, ids=[new for _, new, _ in CONTRADICTIONS]
)
def test_a_contradiction(old, new, expected):
    assert sentence(change(old, new)) == f"job.yaml, {expected}"


def test_unloading_a_text_encoder_that_sees_images():
    text = change("is_flux: true", "arch: qwen_image_edit").replace(
        "steps: 2000", "unload_text_encoder: true"
    )
    assert sentence(text) == (
        "job.yaml, line 19: train.unload_text_encoder: the text encoder of qwen_image_edit reads the control "
        "images; use cache_text_embeddings instead"
    )
    assert sentence(text.replace("lr: 1e-4", "cache_text_embeddings: true")) == "no error"


def test_only_the_first_problem_by_line_is_reported():
    text = JOB.replace("width: 1024", "width: 3").replace("linear: 16", "linear: none").replace("1e-4", "-1")
    assert sentence(text) == (
        'job.yaml, line 10: network.linear: expected a whole number of at least 1, found "none"'
    )


def test_an_unset_variable():
    text = change("folder_path: photos", "folder_path: ${DATA}/photos  # or ${HOME_DATA}")
    assert sentence(text) == (
        "job.yaml, line 14: datasets.0.folder_path: the environment variable DATA is not set"
    )
    assert sentence(text, env={"DATA": "/data"}) == "no error"


def test_a_file_that_is_not_there():
    Path("jobs").mkdir()
    Path("jobs/portrait.yaml").write_text(JOB)
    with pytest.raises(JobError) as error:
        load_job(Path("jobs/potrait.yaml"))
    assert str(error.value) == "jobs/potrait.yaml: no such file; did you mean jobs/portrait.yaml?"
    with pytest.raises(JobError) as error:
        load_job("nowhere/at/all.yaml")
    assert str(error.value) == "nowhere/at/all.yaml: no such file"
    with pytest.raises(JobError) as error:
        load_job("jobs")
    assert str(error.value) == "jobs: expected a job file, found a folder"


def test_a_file_that_is_not_utf_8():
    Path("job.yaml").write_bytes("job: extension\nconfig:\n  name: f\u00fcchse\n".encode("latin-1"))
    with pytest.raises(JobError) as error:
        load_job("job.yaml")
    assert str(error.value) == "job.yaml, line 3: expected text in UTF-8; save the file in that encoding"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the reader may read everything")
def test_a_file_that_may_not_be_read():
    Path("job.yaml").write_text(JOB)
    Path("job.yaml").chmod(0)
    with pytest.raises(JobError) as error:
        load_job("job.yaml")
    assert str(error.value) == "job.yaml: cannot be opened: Permission denied"


JSON = [
    ("{", "job.json, line 1: not valid JSON: expecting property name enclosed in double quotes"),
    ('{"job": "extension"\n "config": {}}', "job.json, line 2: not valid JSON: expecting ',' delimiter"),
    ('{\n"job": "extension}', "job.json, line 2: the quote that opens on this line is never closed"),
    (
        '{"job": "extension", // the usual\n"config": {}}',
        "job.json, line 1: comments are not allowed in .json; name the file .jsonc",
    ),
    ('{"job": "extension",\n"job": "extension"}', "job.json, line 2: job: written twice, first on line 1"),
    ("[" * 100_000, "job.json: a number is too long, or the brackets are nested too deep"),
]


@pytest.mark.parametrize(("text", "expected"), JSON, ids=[expected for _, expected in JSON])
def test_invalid_json(text, expected):
    Path("job.json").write_text(text)
    with pytest.raises(JobError) as error:
        load_job("job.json")
    assert str(error.value) == expected

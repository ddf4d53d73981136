"""What a job file means: spellings, aliases, defaults, replacements."""

import json

import pytest

import plafond
from job_files import CORPUS, JOB, change, load, process, write
from plafond.job.folders import missing_folders
from plafond.job.keys import SECTIONS
from plafond.job.not_yet import NOT_YET
from plafond.job.reading import load_job
from plafond.job.schema import Job

ARCHS = {
    "full-fine-tune-flex": "flux",
    "full-fine-tune-lumina": "lumina2",
    "lora-chroma-24gb": "chroma",
    "lora-flex-24gb": "flux",
    "lora-flex2-24gb": "flex2",
    "lora-flux-24gb": "flux",
    "lora-flux-kontext-24gb": "flux_kontext",
    "lora-flux-schnell-24gb": "flux",
    "lora-hidream-48": "hidream",
    "lora-lumina": "lumina2",
    "lora-qwen-image-24gb": "qwen_image",
    "lora-qwen-image-edit-2509-32gb": "qwen_image_edit_plus",
    "lora-qwen-image-edit-32gb": "qwen_image_edit",
    "lora-sd35-large-24gb": "sd3",
    "lora-wan21-14b-24gb": "wan21",
    "lora-wan21-1b-24gb": "wan21",
    "lora-wan22-14b-24gb": "wan22_14b",
}


def test_the_corpus_is_complete():
    assert [path.stem for path in CORPUS] == sorted(ARCHS)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_ai_toolkits_examples_load_unchanged(path):
    job = load_job(path)
    (one,) = job.processes
    assert job.name == "job" and job.meta["name"] == "job" and job.text == path.read_text()
    assert one.model.arch == ARCHS[path.stem]
    assert isinstance(one.train.lr, float) and one.train.lr in (1e-4, 2e-4, 3e-5)
    assert one.train.dtype == "bfloat16" and one.train.gradient_accumulation == 1
    assert all(dataset.caption_ext == ".txt" for dataset in one.datasets)
    assert len(one.sample.samples) >= 1
    # generated control images, and previews of 40 frames where the model takes 37 or 41
    odd = ("lora-flex2-24gb", "lora-wan21-1b-24gb", "lora-wan21-14b-24gb")
    expected = 1 if path.stem in odd else 0
    assert len([text for text in job.warnings if NOT_YET not in text]) == expected
    assert (one.network is None) == path.stem.startswith("full")


def test_a_small_job(tmp_path):
    job = load(tmp_path)
    (one,) = job.processes
    assert isinstance(job, Job) and job.warnings == ()
    assert (job.name, job.meta) == ("fox", {"name": "fox"})
    assert one.network.linear == 16 and one.network.linear_alpha == 1.0
    assert one.datasets[0].resolution == (512, 768) and one.datasets[0].caption_ext == ".txt"
    assert one.datasets[0].trigger_word == "f0x"
    assert one.model.arch == "flux" and one.model.quantize_te is False
    assert one.training_seed == 42
    first, second = one.sample.samples
    assert (first.prompt, first.width, first.height, first.seed) == ("a f0x in the snow", 1024, 512, 42)
    assert second.prompt == "fox at night"


def test_the_public_function_reads_the_same(tmp_path):
    assert plafond.load_job(write(tmp_path)).name == "fox"


SPELLINGS = [
    ("lr: 1e-4", "lr: 1E-4", "train.lr", 1e-4),
    ("lr: 1e-4", "lr: 0.0001", "train.lr", 1e-4),
    ("lr: 1e-4", "lr: 1", "train.lr", 1.0),
    ("lr: 1e-4", "unet_lr: 5e-5", "train.lr", 5e-5),
    ("lr: 1e-4", "lr: null", "train.lr", 1e-6),
    ("lr: 1e-4", "lr: 2e-4\n        unet_lr: 5e-5", "train.lr", 2e-4),
    ("dtype: bf16", "dtype: fp32", "train.dtype", "float32"),
    ("dtype: bf16", "dtype: Float16", "train.dtype", "float16"),
    ("optimizer: adamw8bit", "optimizer: AdamW", "train.optimizer", "adamw"),
    ("optimizer: adamw8bit", "optimizer: prodigyopt", "train.optimizer", "prodigy"),
    ("optimizer: adamw8bit", "timestep_type: lumina2_shift", "train.timestep_type", "shift"),
    ("steps: 2000", "gradient_accumulation: 4", "train.gradient_accumulation", 4),
    ("steps: 2000", "gradient_accumulation_steps: 4", "train.gradient_accumulation", 4),
    (
        "steps: 2000",
        "gradient_accumulation: 1\n        gradient_accumulation_steps: 4",
        "train.gradient_accumulation",
        4,
    ),
    (
        "steps: 2000",
        "gradient_accumulation: 4\n        gradient_accumulation_steps: 1",
        "train.gradient_accumulation",
        4,
    ),
    ("steps: 2000", "gradient_checkpointing: auto", "train.gradient_checkpointing", "auto"),
    ("steps: 2000", "gradient_checkpointing: off", "train.gradient_checkpointing", False),
    ("steps: 2000", "gradient_checkpointing: 1", "train.gradient_checkpointing", True),
    ("steps: 2000", "steps: 2_000", "train.steps", 2000),
    ("steps: 2000", "ema_config: {use_ema: true}", "train.ema_config.ema_decay", 0.999),
    ("linear: 16", "rank: 8", "network.linear", 8),
    ("linear: 16", "linear: 16\n        rank: 8", "network.linear", 8),
    ("linear: 16", "alpha: 8", "network.linear_alpha", 8.0),
    ("linear: 16", "alpha: 8\n        linear_alpha: 2", "network.linear_alpha", 2.0),
    ("type: lora", "type: lierla", "network.type", "lora"),
    (
        "type: lora",
        "network_kwargs: {ignore_if_contains: [ff_i.gate]}",
        "network.network_kwargs.ignore_if_contains",
        ("ff_i.gate",),
    ),
    ("caption_ext: txt", "caption_type: caption", "datasets.0.caption_ext", ".caption"),
    ("caption_ext: txt", "caption_ext: .json", "datasets.0.caption_ext", ".json"),
    ("resolution: [512, 768]", "resolution: 1024", "datasets.0.resolution", (1024,)),
    ("resolution: [512, 768]", "control_path: a", "datasets.0.control_path", ("a",)),
    ("resolution: [512, 768]", "control_path: [a, b]", "datasets.0.control_path", ("a", "b")),
    (
        "resolution: [512, 768]",
        "control_path: a\n          control_path_1: b\n          control_path_2: null\n"
        "          control_path_3: c",
        "datasets.0.control_path",
        ("a", "b", "c"),
    ),
    ("resolution: [512, 768]", "trigger_word: own", "datasets.0.trigger_word", "own"),
    ("folder_path: photos", "dataset_path: photos", "datasets.0.folder_path", "photos"),
    ("is_flux: true", "arch: flex1", "model.arch", "flux"),
    ("is_flux: true", "arch: zimage:turbo", "model.arch", "zimage"),
    ("is_flux: true", "arch: zimage:turbo", "model.arch_tag", "turbo"),
    ("is_flux: true", "arch: qwen_image\n        is_flux: true", "model.arch", "qwen_image"),
    ("is_flux: true", "is_xl: true\n        is_ssd: true", "model.arch", "ssd"),
    ("is_flux: true", "is_v3: 1", "model.arch", "sd3"),
    ("is_flux: true", "is_flux: false", "model.arch", "sd1"),
    ("quantize: false", "quantize: true", "model.quantize_te", True),
    ("quantize: false", "quantize: true\n        quantize_te: false", "model.quantize_te", False),
    ("quantize: false", "auto_memory: true", "model.layer_offloading", True),
    ("quantize: false", "qtype: uint3|a/b.safetensors", "model.qtype", "uint3|a/b.safetensors"),
    ("trigger_word: f0x", "training_seed: 7", "training_seed", 7),
    ("trigger_word: f0x", "logging: {log_every: null}", "logging.log_every", 1),
    ("trigger_word: f0x", "logging: {}", "logging.log_every", 100),
    ("trigger_word: f0x", "plafond: {latent_cache_dir: cache}", "plafond.latent_cache_dir", "cache"),
    ("type: sd_trainer", "type: ui_trainer", "type", "ui_trainer"),
    ("width: 1024", "neg: false", "sample.neg", ""),
    ("width: 1024", 'network_multiplier: "0.5"', "sample.network_multiplier", 0.5),
]


@pytest.mark.parametrize(
    ("old", "new", "key", "value"), SPELLINGS, ids=[f"{new} {key}" for _, new, key, _ in SPELLINGS]
)
def test_a_spelling(tmp_path, old, new, key, value):
    found = process(tmp_path, change(old, new))
    for part in key.split("."):
        found = found[int(part)] if part.isdecimal() else getattr(found, part)
    assert found == value and type(found) is type(value)


def test_text_embeddings_are_cached_for_every_dataset(tmp_path):
    text = change("folder_path: photos", "folder_path: photos\n        - folder_path: more")
    one = process(tmp_path, text.replace("steps: 2000", "cache_text_embeddings: true"))
    assert [dataset.cache_text_embeddings for dataset in one.datasets] == [True, True]


def test_a_job_without_a_trigger_word(tmp_path):
    one = process(tmp_path, change("      trigger_word: f0x\n", ""))
    assert one.trigger_word is None and one.datasets[0].trigger_word is None
    assert one.sample.samples[0].prompt == "a  in the snow"


def test_name_from_the_command_line(tmp_path):
    job = load(tmp_path, change("name: fox", 'name: "[name]"'), name="hare")
    assert job.name == "hare" and job.meta["name"] == "hare"
    assert job.processes[0].sample.samples[1].prompt == "hare at night"


def test_variables_in_values_and_comments(tmp_path):
    text = change("folder_path: photos", "folder_path: ${DATA}/fox # not ${THIS}")
    job = load(tmp_path, text, env={"DATA": "/data"})
    assert job.processes[0].datasets[0].folder_path == "/data/fox"
    assert job.text == text


def test_the_defaults_written_out_are_the_defaults(tmp_path):
    short = {"type": "sd_trainer", "model": {"name_or_path": "x"}, "datasets": [{"folder_path": "y"}]}
    job = {"job": "extension", "config": {"name": "fox", "process": [short]}}
    first = load(tmp_path, json.dumps(job))
    long = json.loads(first.processes[0].model_dump_json())
    del long["model"]["arch_tag"]
    job["config"]["process"] = [long]
    second = load(tmp_path, json.dumps(job))
    assert second.processes == first.processes and second.warnings == ()


def test_later_stages_name_the_line_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    job = load_job("job.yaml", overrides=["train.steps=3"])
    assert str(job.error("model.name_or_path", "no such model")) == (
        "job.yaml, line 24: model.name_or_path: no such model"
    )
    assert str(job.error("datasets.0.fps", "x")) == "job.yaml, line 14: datasets.0.fps: x"
    assert str(job.error("train.steps", "too few")) == "--set train.steps=3: too few"


def test_several_processes(tmp_path):
    start = JOB.index("    - type")
    end = JOB.index("meta:")
    text = JOB[:end] + JOB[start:end].replace("steps: 2000", "steps: 10") + JOB[end:]
    assert [one.train.steps for one in load(tmp_path, text).processes] == [2000, 10]


def test_samples_win_over_prompts_and_inherit(tmp_path):
    text = change(
        "        prompts:",
        "        samples:\n          - {prompt: one, width: 64, ctrl_img: a.png}\n          - {}\n"
        "        prompts:",
    )
    first, second = process(tmp_path, text).sample.samples
    assert (first.prompt, first.width, first.height, first.control_images) == ("one", 64, 512, ("a.png",))
    assert (second.prompt, second.width, second.control_images) == ("", 1024, ())


@pytest.mark.parametrize(
    ("section", "own", "expected"),
    [
        ("seed: 42", [None, None, None], [42, 42, 42]),
        ("seed: 42\n        walk_seed: true", [None, None, None], [42, 43, 44]),
        ("seed: 42", [None, 7, None], [42, 7, 7]),
        ("seed: 42\n        walk_seed: true", [None, 7, None], [42, 7, 44]),
        ("seed: -1\n        walk_seed: true", [None, None, None], [-1, -1, -1]),
    ],
)
def test_the_seed_of_each_preview(tmp_path, section, own, expected):
    items = "".join(f"          - {{prompt: x{'' if seed is None else f', seed: {seed}'}}}\n" for seed in own)
    start = JOB.index("        prompts:")
    end = JOB.index("meta:")
    text = JOB[:start].replace("seed: 42", section) + "        samples:\n" + items + JOB[end:]
    assert [item.seed for item in process(tmp_path, text).sample.samples] == expected


@pytest.mark.parametrize("suffix", [".json", ".jsonc"])
def test_json(tmp_path, suffix):
    data = {
        "job": "extension",
        "config": {
            "name": "fox",
            "process": [
                {"type": "sd_trainer", "train": {"lr": 1e-4}, "model": {"name_or_path": "x", "arch": "flux"}}
            ],
        },
    }
    text = json.dumps(data, indent=1)
    if suffix == ".jsonc":
        text = "// a fox\n" + text.replace("}\n  ]", "}, /* last */\n  ]")
    job = load_job(write(tmp_path, text, f"job{suffix}"))
    assert job.processes[0].train.lr == 1e-4


def test_a_name_inside_the_config_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    write(tmp_path / "config", name="fox.yml")
    assert load_job("fox").path.as_posix() == "config/fox.yml"


def test_a_byte_order_mark_and_windows_line_ends(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + JOB.replace("\n", "\r\n").encode())
    job = load_job(path)
    assert job.processes[0].model.name_or_path == "black-forest-labs/FLUX.1-dev"
    assert job.lines[("config", "process", 0, "train", "lr")] == 20


def test_anchors_and_merge_keys(tmp_path):
    text = change("- folder_path: photos", "- &photos\n          folder_path: photos").replace(
        "      train:", "        - <<: *photos\n          resolution: 256\n      train:"
    )
    first, second = process(tmp_path, text).datasets
    assert (first.resolution, second.resolution, second.folder_path) == ((512, 768), (256,), "photos")


WARNINGS = [
    (
        "batch_size: 1",
        "bacth_size: 1",
        "line 18: train.bacth_size: unknown key, ignored; did you mean batch_size?",
    ),
    (
        "linear: 16",
        "gradient_checkpointing: true",
        "line 10: network.gradient_checkpointing: unknown key, ignored; gradient_checkpointing belongs "
        "under train",
    ),
    (
        "batch_size: 1",
        "trigger_word: x",
        "line 18: train.trigger_word: unknown key, ignored; trigger_word belongs one level up, beside train",
    ),
    (
        "linear: 16",
        "name_or_pth: x",
        "line 10: network.name_or_pth: unknown key, ignored; did you mean model.name_or_path?",
    ),
    (
        "lr: 1e-4",
        "lr: 2e-4\n        unet_lr: 5e-5",
        "line 21: train.unet_lr: not used, because lr is given as well",
    ),
    (
        "linear: 16",
        "linear: 16\n        rank: 8",
        "line 10: network.linear: not used, because rank is given as well",
    ),
    (
        "is_flux: true",
        "arch: qwen_image\n        is_flux: true",
        "line 26: model.is_flux: not used, because arch is given as well",
    ),
    (
        "seed: 42",
        "samples: [{prompt: a hare}]",
        "line 30: sample.prompts: not used, because samples is given as well",
    ),
    ("batch_size: 1", "zzz: 1", "line 18: train.zzz: unknown key, ignored"),
    (
        "batch_size: 1",
        "noise_offset: 0.05",
        "line 18: train.noise_offset: known to AI Toolkit, not used by plafond",
    ),
    (
        "save_every: 250",
        "push_to_hub: true",
        "line 12: save.push_to_hub: known to AI Toolkit, not used by plafond; upload the saved file yourself",
    ),
    (
        "name: fox",
        "name: fox\n  device: cuda",
        "line 4: config.device: known to AI Toolkit, not used by plafond; it belongs inside the process",
    ),
    ("job: extension", "job: extension\nmeat: {}", "line 2: meat: unknown key, ignored; did you mean meta?"),
    (
        "a [trigger] in the snow",
        "a fox --gr 0.7",
        "line 31: sample.prompts.0: --gr: known to AI Toolkit, not used by plafond",
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), WARNINGS, ids=[new for _, new, _ in WARNINGS])
def test_a_warning(tmp_path, monkeypatch, old, new, expected):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, change(old, new))
    assert load_job("job.yaml").warnings == (f"job.yaml, {expected}",)


def test_options_of_the_architecture_are_checked_by_its_family(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arch = "arch=qwen_image_edit_plus"
    write(tmp_path, change("quantize: false", "model_kwargs: {match_target_res: true}"))
    assert not any(
        "model_kwargs" in each for each in load_job("job.yaml", overrides=[f"model.{arch}"]).warnings
    )
    write(tmp_path, change("quantize: false", "model_kwargs: {match_target_size: true}"))
    (warning,) = (
        each for each in load_job("job.yaml", overrides=[f"model.{arch}"]).warnings if "model_kwargs" in each
    )
    assert warning.endswith("the architecture qwen_image_edit_plus; did you mean match_target_res?")


def test_known_keys_at_their_default_ask_for_nothing(tmp_path):
    text = change("batch_size: 1", "noise_offset: 0.0\n        do_cfg: false\n        snr_gamma: null")
    assert load(tmp_path, text).warnings == ()


def test_known_keys_that_are_switched_off_ask_for_nothing(tmp_path):
    text = change("batch_size: 1", "do_guidance_loss: false\n        guidance_loss_schedule: sigma")
    assert load(tmp_path, text).warnings == ()
    assert len(load(tmp_path, text.replace("guidance_loss: false", "guidance_loss: true")).warnings) == 2


def test_comments_and_a_document_mark(tmp_path):
    text = "---\n# a fox\n" + JOB.replace("\n      ", '\n#      old: 1 # - "x"\\\n      ', 5) + "...\n"
    assert load(tmp_path, text).processes == load(tmp_path).processes


def test_warnings_come_in_the_order_of_the_file(tmp_path):
    text = JOB.replace("width: 1024", "wdth: 1024").replace("linear: 16", "liner: 16")
    first, second = load(tmp_path, text).warnings
    assert "network.liner" in first and "sample.wdth" in second


def test_no_key_is_both_implemented_and_known():
    for name, keys in SECTIONS.items():
        assert not set(keys.model.keys()) & set(keys.known), name


def test_missing_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo").mkdir()
    (tmp_path / "masks").mkdir()
    text = change(
        "resolution: [512, 768]",
        "mask_path: masks\n          control_path: [photo, edges]\n          control_path_1: lines",
    ).replace("night", "night --ctrl_img night.png")
    write(tmp_path, text)
    assert [str(error) for error in missing_folders(load_job("job.yaml"))] == [
        "job.yaml, line 14: datasets.0.folder_path: no such folder: photos; did you mean photo?",
        "job.yaml, line 17: datasets.0.control_path.1: no such folder: edges",
        "job.yaml, line 18: datasets.0.control_path_1: no such folder: lines",
        "job.yaml, line 34: sample.prompts.1: no such image: night.png",
    ]
    job = load_job("job.yaml", overrides=["datasets.0.folder_path=photo/deep"])
    assert str(missing_folders(job)[0]) == (
        "--set datasets.0.folder_path=photo/deep: no such folder: photo/deep"
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "quantize: false",
            "vae_path: ae.safetensors",
            "line 26: model.vae_path: known to AI Toolkit, not used by plafond yet; the VAE comes from the model",
        ),
        (
            "quantize: false",
            "model_kwargs: {match_target_res: true}",
            "line 26: model.model_kwargs.match_target_res: not used by plafond for the architecture flux",
        ),
    ],
)
def test_settings_that_wait_for_the_trainer_give_one_warning(tmp_path, monkeypatch, old, new, expected):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, change(old, new))
    assert load_job("job.yaml").warnings == (f"job.yaml, {expected}",)

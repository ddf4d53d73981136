"""The doctor on logs of other trainers and of plafond: phase, cause, first remedy, and both languages."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from conftest import JobMaker
from plafond.advice import regressions, sentences
from plafond.advice.allocation import read
from plafond.advice.diagnose import diagnose
from plafond.advice.diagnosis import Cause, Confidence, Diagnosis
from plafond.advice.facts import facts
from plafond.advice.ladder import PHASES
from plafond.advice.log import Log
from plafond.advice.phases import PHASES as ALL_PHASES
from plafond.advice.report import as_json, text
from plafond.language.speech import speaker

LOGS = Path(__file__).parent / "logs"
GIB = 1024**3

EXPECTED = {
    "load_accelerate_137": ("load", "host_ram", "more_host_ram"),
    "load_aitk_transformer": ("load", "does_not_fit", "stream_blocks"),
    "load_diffusionpipe_killed": ("load", "host_ram", "more_host_ram"),
    "load_onetrainer_setup": ("load", "does_not_fit", "stream_blocks"),
    "load_paging_file": ("load", "host_ram", "more_host_ram"),
    "load_plafond": ("load", "does_not_fit", "stream_blocks"),
    "load_sdscripts_old_form": ("load", "does_not_fit", "stream_blocks"),
    "load_windows_3221225477": ("load", "host_ram", "more_host_ram"),
    "quantize_aitk_krea": ("quantize", "does_not_fit", "stream_blocks"),
    "quantize_bare_pinned": ("quantize", "host_ram", "update_or_pin"),
    "quantize_musubi_fp8": ("quantize", "does_not_fit", "stream_blocks"),
    "quantize_simpletuner_quanto": ("quantize", "does_not_fit", "stream_blocks"),
    "text_aitk_umt5": ("encode_text", "does_not_fit", "cache_text_unload_te"),
    "text_cublas": ("encode_text", "does_not_fit", "cache_text_unload_te"),
    "text_diffusionpipe": ("encode_text", "does_not_fit", "cache_text_unload_te"),
    "text_musubi_cache": ("encode_text", "does_not_fit", "cache_text_unload_te"),
    "latents_kohya_rich": ("cache_latents", "does_not_fit", "tiled_vae"),
    "latents_musubi_video": ("cache_latents", "video_frames", "tiled_vae"),
    "latents_simpletuner_missing_file": ("cache_latents", "does_not_fit", "tiled_vae"),
    "latents_torch291_regression": ("cache_latents", "regression", "update_or_pin"),
    "latents_windows_commit": ("cache_latents", "host_ram", "more_host_ram"),
    "train_aitk_first_step": ("train", "does_not_fit", "expandable_segments"),
    "train_aitk_three_times": ("train", "does_not_fit", "checkpointing_on"),
    "train_allocator_warning": ("train", "does_not_fit", "cache_text_unload_te"),
    "train_bucket_peak_hours_later": ("train", "bucket_peak", "smaller_batch"),
    "train_bucket_peak_resumed": ("train", "bucket_peak", "expandable_segments"),
    "train_container_sees_itself": ("train", "does_not_fit", "smaller_batch"),
    "train_fragmentation": ("train", "fragmentation", "expandable_segments"),
    "train_hip": ("train", "does_not_fit", "smaller_batch"),
    "train_host_killed_dmesg": ("train", "host_ram", "more_host_ram"),
    "train_krea_torch213": ("train", "regression", "update_or_pin"),
    "train_other_process": ("train", "other_process", "free_other_process"),
    "train_other_process_old_form": ("train", "other_process", "free_other_process"),
    "train_plafond": ("train", "does_not_fit", "checkpointing_on"),
    "train_plafond_refused": ("train", "does_not_fit", "checkpointing_on"),
    "train_sdscripts_no_checkpointing": ("train", "does_not_fit", "checkpointing_on"),
    "train_shm": ("train", "host_ram", "more_host_ram"),
    "train_spill_aitk": ("train", "spill", "cap_below_spill"),
    "train_spill_windows": ("train", "spill", "cap_below_spill"),
    "train_tiny_request_gigabytes_free": ("train", "host_ram", "more_host_ram"),
    "train_video_diffusionpipe": ("train", "video_frames", "fewer_frames"),
    "train_video_musubi": ("train", "video_frames", "fewer_frames"),
    "preview_aitk_baseline": ("preview", "does_not_fit", "cheaper_preview"),
    "preview_aitk_step_250": ("preview", "does_not_fit", "cheaper_preview"),
    "preview_onetrainer_skipped": ("preview", "does_not_fit", "cheaper_preview"),
    "preview_simpletuner_validation": ("preview", "does_not_fit", "cheaper_preview"),
    "latents_head_cut_off": ("cache_latents", "does_not_fit", "tiled_vae"),
    "latents_cudnn_algorithm": ("cache_latents", "does_not_fit", "tiled_vae"),
    "load_commit_limit": ("load", "host_ram", "more_host_ram"),
    "load_fluxgym": ("load", "does_not_fit", "stream_blocks"),
    "load_killed_french": ("load", "host_ram", "more_host_ram"),
    "load_two_processes": ("load", "does_not_fit", "stream_blocks"),
    "quantize_killed_behind_a_bar": ("quantize", "host_ram", "more_host_ram"),
    "train_pictures_with_a_third_number": ("train", "does_not_fit", "checkpointing_on"),
    "train_pin_memory_thread": ("train", "host_ram", "more_host_ram"),
    "train_beyond_the_card": ("train", "does_not_fit", "checkpointing_on"),
    "train_bitsandbytes": ("train", "does_not_fit", "checkpointing_on"),
    "train_inductor_mapping": ("train", "bucket_peak", "checkpointing_on"),
    "train_mps_buffer": ("train", "does_not_fit", "checkpointing_on"),
    "train_nccl": ("train", "does_not_fit", "checkpointing_on"),
    "train_notebook": ("train", "does_not_fit", "checkpointing_on"),
    "train_spill_sparse": ("train", "spill", "cap_below_spill"),
    "save_panic": ("save", "host_ram", "more_host_ram"),
    "save_aitk": ("save", "does_not_fit", "expandable_segments"),
    "save_diffsynth": ("save", "does_not_fit", "expandable_segments"),
    "save_diffusionpipe_host": ("save", "host_ram", "more_host_ram"),
    "save_onetrainer": ("save", "does_not_fit", "expandable_segments"),
}
"""Logs of memory problems: phase, cause and first remedy."""

NOT_MEMORY = {
    "other_after_a_skipped_batch": "configuration",
    "other_attention": "operation",
    "other_caption_encoding": "UTF-8",
    "other_collective_timeout": "reach each other",
    "other_container_prefix": "number formats",
    "other_ctrl_c_windows": "stopped",
    "other_dll_french": "package",
    "other_disk_full_french": "disk",
    "other_file_named_like_it": "file or folder",
    "other_kernel_too_large": "operation",
    "other_launcher_ends_the_rest": "RuntimeError",
    "other_open_files": "RuntimeError",
    "other_rank_shut_down": "configuration",
    "other_rocm_fault": "fault",
    "other_second_run": "package",
    "other_state_dict": "another model",
    "other_unknown_model": "no model of this name",
    "other_corrupt_image": "picture",
    "other_disk_full": "disk",
    "other_driver": "driver",
    "other_dtype": "number formats",
    "other_gated": "gated",
    "other_illegal_access": "fault",
    "other_install": "package",
    "other_keyerror": "configuration",
    "other_memory_words_only": "configuration",
    "other_missing_file": "file or folder",
    "other_nan": "no longer a number",
    "other_network": "download",
    "other_recovered_then_missing": "file or folder",
    "other_shape": "RuntimeError",
    "other_stopped": "stopped",
    "other_weights": "weights",
}
"""Logs of other problems, and a word of what they are called."""

NO_FAILURE = {
    "fine_after_a_note": "not_memory",
    "fine_completed": "not_memory",
    "fine_one_nan_loss": "not_memory",
    "fine_skipped_batches": "not_memory",
    "unclear_after_a_note": "unclear",
    "unclear_crash": "unclear",
    "unclear_launcher_only": "unclear",
    "unclear_log_ends": "unclear",
    "unclear_slower_linux": "unclear",
}

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["schema", "memory", "phase", "cause", "confidence", "evidence", "remedies", "summary"],
    "properties": {
        "schema": {"const": 1},
        "memory": {"type": "boolean"},
        "phase": {"enum": [*ALL_PHASES, None]},
        "cause": {"enum": list(Cause.__args__)},  # type: ignore[attr-defined]
        "confidence": {"enum": list(Confidence.__args__)},  # type: ignore[attr-defined]
        "evidence": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["line", "text"],
                "properties": {"line": {"type": "integer", "minimum": 1}, "text": {"type": "string"}},
            },
        },
        "remedies": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["id", "change", "saves_bytes", "why"],
                "properties": {
                    "id": {"enum": list(sentences.WHY)},
                    "change": {"type": ["object", "null"]},
                    "saves_bytes": {"type": ["integer", "null"]},
                    "why": {"type": "string", "minLength": 10},
                },
            },
        },
        "summary": {"type": "string", "minLength": 10},
    },
}


def of(name: str) -> bytes:
    return (LOGS / f"{name}.log").read_bytes()


def test_every_log_is_in_a_table_and_every_phase_often_enough() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == {*EXPECTED, *NOT_MEMORY, *NO_FAILURE}
    assert len(EXPECTED) >= 40 and len(NOT_MEMORY) >= 10
    phases = Counter(phase for phase, _, _ in EXPECTED.values())
    assert all(phases[phase] >= 3 for phase in ALL_PHASES), phases


@pytest.mark.parametrize("name", EXPECTED)
def test_memory_problems(name: str) -> None:
    found = diagnose(of(name))
    assert found.memory
    assert (found.phase, found.cause, found.remedies[0].id) == EXPECTED[name]


@pytest.mark.parametrize("name", NOT_MEMORY)
def test_other_problems_are_not_blamed_on_memory(name: str) -> None:
    found = diagnose(of(name))
    assert not found.memory and found.cause == "not_memory"
    assert [advice.id for advice in found.remedies] == ["not_memory"]
    assert NOT_MEMORY[name] in as_json(found, speaker("en"))["summary"]


@pytest.mark.parametrize("name", NO_FAILURE)
def test_without_a_failure_nothing_is_recommended(name: str) -> None:
    found = diagnose(of(name))
    assert not found.memory and found.cause == NO_FAILURE[name] and not found.remedies


@pytest.mark.parametrize("name", [*EXPECTED, *NOT_MEMORY, *NO_FAILURE])
def test_json_is_as_promised_and_quotes_lines_that_stand_there(name: str) -> None:
    for language_ in ("en", "fr"):
        shown = as_json(diagnose(of(name)), speaker(language_))
        jsonschema.validate(json.loads(json.dumps(shown)), SCHEMA)
        lines = of(name).decode().split("\n")
        assert shown["evidence"]
        for quote in shown["evidence"]:
            assert quote["text"].rstrip("…")[:60] in lines[quote["line"] - 1]


def test_evidence_of_what_came_first_and_what_followed() -> None:
    quoted = [line.text for line in diagnose(of("latents_simpletuner_missing_file")).evidence]
    assert "out of memory" in quoted[0] and any("not correctly cached" in line for line in quoted)
    quoted = [line.text for line in diagnose(of("train_allocator_warning")).evidence]
    assert "memory allocation failed" in quoted[0] and "AttributeError" in quoted[-1]


ENGLISH = re.compile(r"\b(the|was|were|memory|while|card|steps?|free|of|and|not|with)\b(?!_)", re.IGNORECASE)


@pytest.mark.parametrize("name", [*EXPECTED, *NOT_MEMORY, *NO_FAILURE])
def test_french_is_french(name: str) -> None:
    shown = as_json(diagnose(of(name)), speaker("fr"))
    if name in ("other_shape", "other_launcher_ends_the_rest", "other_open_files"):  # quotes the error
        return
    for sentence in (shown["summary"], *(advice["why"] for advice in shown["remedies"])):
        plain = re.sub(r"https?://\S+|PYTORCH\S+|/dev/shm|--shm-size", "", sentence)
        assert not ENGLISH.search(plain), plain


def test_every_remedy_has_a_sentence_and_every_release_a_source() -> None:
    for names in PHASES.values():
        assert set(names) <= set(sentences.WHY)
    assert all(release.source.startswith("https://") for release in regressions.releases())


def test_figures_of_all_message_forms() -> None:
    new = read(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacty of 23.51 GiB of which 98.31 MiB is"
        " free. Process 12 has 9.80 GiB memory in use. Including non-PyTorch memory, this process has 13.00 GiB memory"
        " in use. Of the allocated memory 12.00 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but"
        " unallocated."
    )
    assert (new.requested, new.total, new.idle) == (20 * 2**20, round(23.51 * GIB), GIB // 2)
    assert new.others == ((12, round(9.8 * GIB)),) and new.foreign == round(9.8 * GIB)
    old = read(
        "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 24.00 GiB total capacity; 21.50 GiB already allocated;"
        " 1.45 GiB free; 22.00 GiB reserved in total by PyTorch)"
    )
    assert (old.requested, old.idle, old.allocated) == (2 * GIB, GIB // 2, round(21.5 * GIB))
    other = read(
        "Allocation on device 0 would exceed allowed memory. (out of memory) Currently allocated : 12.00 GiB Requested"
        " : 1.00 GiB Device limit : 16.00 GiB Free (according to CUDA): 0 bytes"
    )
    assert (other.requested, other.total, other.free) == (GIB, 16 * GIB, 0)
    assert read("nothing of the kind").foreign == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n\r\r\n",
        b"\x00\xff\xfe" * 2000,
        b"\xff\xfe" + "CUDA out of memory".encode("utf-16-le")[:-1],
        b"CUDA out of memory. Tried to allocate ... GiB. GPU 0 has a total capacity of 1.2.3 GiB",
        b"137 -9 " * 50_000,
        b"1/2 [00:00<00:00, .s/it, loss=]\r" * 50,
        b"Traceback (most recent call last):\n",
        b"x" * 3_000_000 + b"CUDA out of memory",
    ],
    ids=[
        "empty",
        "blank",
        "binary",
        "half a character",
        "no numbers",
        "numbers",
        "odd bars",
        "head",
        "one line",
    ],
)
def test_odd_logs_are_read_too(data: bytes) -> None:
    jsonschema.validate(as_json(diagnose(data), speaker("fr")), SCHEMA)
    assert text(diagnose(data), speaker("en"))


def test_random_cuts_of_logs_are_read_too() -> None:
    chance = random.Random(7)
    for name in EXPECTED:
        data = of(name)
        start, end = sorted(chance.sample(range(len(data) + 1), 2))
        jsonschema.validate(as_json(diagnose(data[start:end]), speaker("en")), SCHEMA)


@pytest.mark.parametrize(
    "data",
    [
        b"ImportError: no xformers, going on\nsteps:  3%|#  | 3/100 [00:03<00:00, 1.0s/it, avr_loss=0.1]\n",
        b"dlerror: cannot open shared object file: No such file or directory\n2/2 [00:03<00:00, 1.0s/it, loss=0.1]\n",
        b'{"OOMKilled": false}\n100/100 [01:00<00:00, 1.0s/it, loss=0.1]\n',
        b"I ran out of memory of what I did\n",
        b"Epoch 1, code step 137/2000\n" * 3,
    ],
)
def test_notes_are_not_failures(data: bytes) -> None:
    found = diagnose(data)
    assert not found.memory and not found.failed


PREFIXES = {
    "container": lambda line: f"trainer-1  | {line}",
    "process": lambda line: f"[rank0]: {line}",
    "output of another": lambda line: f"Training STDERR: {line}",
    "kept without indent": lambda line: f"[2025-06-01 12:00:00] [INFO] {line.strip(' ')}",
}
LAUNCHERS = {
    "accelerate": """
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/accelerate/commands/launch.py", line 763, in simple_launcher
    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)
subprocess.CalledProcessError: Command '['/venv/bin/python', 'train.py']' returned non-zero exit status 1.
""",
    "deepspeed": """
[2025-06-01 12:00:22,499] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 55184
[2025-06-01 12:00:22,499] [ERROR] [launch.py:325:sigkill_handler] ['/venv/bin/python'] exits with return code = 1
""",
}
BEFORE = """WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. Memory-efficient attention won't be available.
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/xformers/__init__.py", line 57, in _is_triton_available
    import triton  # noqa
ModuleNotFoundError: No module named 'triton'
|   0  NVIDIA GeForce RTX 4090  |  24100MiB / 24564MiB |    100%      Default |
# tip: if you run out of memory (CUDA out of memory), lower the batch size
INFO: PYTORCH_CUDA_ALLOC_CONF is not set; set it to expandable_segments:True to avoid OOM
"""
"""What logs of any trainer begin with, and what has nothing to do with how a run ends."""


def _known(found: Diagnosis) -> tuple[object, ...]:
    return found.memory, found.cause, found.phase, *(advice.id for advice in found.remedies)


@pytest.mark.parametrize(
    "name", ["other_dtype", "preview_aitk_baseline", "text_aitk_umt5", "train_fragmentation"]
)
def test_what_stands_around_a_failure_does_not_matter(name: str) -> None:
    log = of(name).decode()
    expected = _known(diagnose(log.encode()))
    for what, prefix in PREFIXES.items():
        assert _known(diagnose("\n".join(map(prefix, log.split("\n"))).encode())) == expected, what
    for what, lines in LAUNCHERS.items():
        assert _known(diagnose((log + lines).encode())) == expected, what
    assert _known(diagnose((BEFORE + log).encode())) == expected


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (
            "  batch size per device / バッチサイズ: 2\nuse 8-bit AdamW optimizer | {}\n",
            {"batch": 2, "eight_bit": True},
        ),
        ("['--train_batch_size', '3', '--optimizer_type', 'adamw8bit']", {"batch": 3, "eight_bit": True}),
        (
            "activation_checkpointing = true\nmicro_batch_size_per_gpu = 1",
            {"checkpointing": True, "batch": 1},
        ),
        ('"gradient_checkpointing": "CPU_OFFLOADED",', {"checkpointing": True}),
        ("FLUX: Gradient checkpointing enabled.", {"checkpointing": True}),
        ("INFO:musubi_tuner.hv_train_network:preparing accelerator", {"cached_text": True}),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python run.py", {"expandable": True}),
        ("try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid", {"expandable": None}),
        ("bucket: (512, 512, 33), count: 8", {"frames": 33}),
        ("image shape (1024, 1024, 3)", {"frames": None}),
        ("saving to O:/output/fox.safetensors", {"system": "windows"}),
    ],
)
def test_what_a_log_tells_of_the_job(log: str, expected: dict[str, object]) -> None:
    found = facts(Log(log.encode()))
    assert {name: getattr(found, name) for name in expected} == expected


def test_the_end_of_a_log_is_enough() -> None:
    found = diagnose(
        b"RuntimeError: MPS backend out of memory (MPS allocated: 25.00 GB). Tried to allocate 2.00 GB\n"
    )
    assert found.memory and found.cause == "does_not_fit"
    found = diagnose(b"some lines\nRuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling x\n")
    assert not found.memory and found.cause == "not_memory" and found.confidence == "medium"


def test_windows_logs_say_the_same() -> None:
    for name in ("train_spill_windows", "latents_windows_commit", "quantize_bare_pinned"):
        shown = of(name).decode()
        for data in (shown.replace("\n", "\r\n").encode(), shown.encode("utf-16")):
            found = diagnose(data)
            assert (found.phase, found.cause, found.remedies[0].id) == EXPECTED[name]


def test_of_several_runs_the_last_one_counts() -> None:
    both = of("preview_aitk_baseline") + of("other_dtype")
    assert diagnose(both).cause == "not_memory"
    assert diagnose(of("other_dtype") + of("preview_aitk_baseline")).phase == "preview"


def test_fifty_megabytes_take_seconds() -> None:
    data = of("train_bucket_peak_hours_later")
    bars = data.index(b"fox_v3:"), data.rindex(b"fox_v3:")
    many = data[bars[0] : bars[1]]
    huge = data[: bars[0]] + (many + b"\n") * (50_000_000 // len(many)) + data[bars[1] :]
    started = time.process_time()
    found = diagnose(huge)
    assert time.process_time() - started < 10
    assert (found.phase, found.cause) == ("train", "bucket_peak")


def doctor(*arguments: object, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "plafond", "doctor", *map(str, arguments)]
    return subprocess.run(
        command, input=stdin, capture_output=True, timeout=300, check=False, env={**os.environ, **environment}
    )


def test_command_reads_a_file_or_standard_input() -> None:
    path = LOGS / "train_fragmentation.log"
    from_file = doctor("--log", path, "--json", "--lang", "en")
    piped = doctor("--log", "-", "--json", "--lang", "en", stdin=path.read_bytes())
    assert from_file.stdout == piped.stdout
    assert json.loads(piped.stdout)["remedies"][0]["id"] == "expandable_segments"
    shown = doctor("--log", path, LANGUAGE="", LC_ALL="fr_FR.UTF-8").stdout.decode()
    assert "Que faire" in shown and "What" not in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_command_line_mistakes_are_one_sentence() -> None:
    for arguments, expected in (
        ((), "--log FILE"),
        (("--log", "nowhere.log"), "No such file"),
        (("--log", "-", "--lang", "xx"), "expected one of en, fr"),
    ):
        done = doctor(*arguments)
        assert done.returncode == 2 and expected in done.stderr.decode()
        assert len(done.stderr.splitlines()) == 1


def test_log_alone_does_not_import_torch() -> None:
    code = (
        "import sys; from plafond.advice.diagnose import diagnose; from plafond.advice.report import text;"
        "import plafond.language.speech, plafond.cli.doctor;"
        "print([name for name in ('torch', 'pydantic', 'numpy', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_run_without_a_failure_gets_the_guide_s_answer() -> None:
    done = doctor("--log", LOGS / "fine_completed.log", "--json", "--lang", "en")
    summary = json.loads(done.stdout)["summary"]
    assert summary.startswith("Nothing failed") and "checkpointing never changes quality" in summary
    unclear = doctor("--log", LOGS / "unclear_log_ends.log", "--json", "--lang", "en")
    assert "checkpointing never" not in json.loads(unclear.stdout)["summary"]


def test_with_a_job_the_plan_is_asked_and_remedies_get_bytes(make_job: JobMaker) -> None:
    job = make_job(train={"gradient_checkpointing": False, "batch_size": 1, "optimizer": "adamw8bit"})
    options = ("--log", LOGS / "train_plafond.log", "--device", "cpu", "--json", "--lang", "en")
    done = doctor(job, *options, "--vram", "2MB")
    assert done.returncode == 0, done.stderr.decode()[-1500:]
    small = json.loads(done.stdout)
    jsonschema.validate(small, SCHEMA)
    assert "plan" in small["summary"] and small["cause"] == "does_not_fit"
    first = small["remedies"][0]
    assert first["id"] == "checkpointing_on" and first["saves_bytes"] > 0
    assert first["change"] == {"train.gradient_checkpointing": [False, True]}
    # what the job has taken is not advised again
    assert not {"smaller_batch", "eight_bit_optimizer", "smaller_rank"} & {
        one["id"] for one in small["remedies"]
    }
    # the card's own message gives the ceiling
    large = json.loads(doctor(job, *options).stdout)
    assert "the job fits" in large["summary"] and large["confidence"] == "medium"
    assert "of 23.5 GiB" in large["summary"]


def test_a_log_of_ai_toolkit_is_held_against_its_own_run(make_job: JobMaker) -> None:
    job = make_job(train={"gradient_checkpointing": False, "batch_size": 1})
    options = ("--log", LOGS / "train_aitk_first_step.log", "--device", "cpu", "--json", "--lang")
    found = json.loads(doctor(job, *options, "en", "--vram", "1GB").stdout)
    assert "By the plan of AI Toolkit's run the job fits" in found["summary"]
    french = json.loads(doctor(job, *options, "fr", "--vram", "1GB").stdout)
    assert "Selon le plan de l’exécution par AI Toolkit" in french["summary"]


def test_without_any_ceiling_remedies_still_name_their_change(make_job: JobMaker) -> None:
    job = make_job(train={"batch_size": 4, "gradient_checkpointing": True})
    done = doctor(job, "--log", LOGS / "train_aitk_three_times.log", "--json")
    found = {remedy["id"]: remedy for remedy in json.loads(done.stdout)["remedies"]}
    assert "checkpointing_on" not in found
    assert found["smaller_batch"]["change"]["train.batch_size"] == [4, 2]
    assert found["smaller_batch"]["saves_bytes"] is None


def test_a_problem_that_is_not_memory_is_not_planned(make_job: JobMaker) -> None:
    done = doctor(make_job(), "--log", LOGS / "other_dtype.log", "--vram", "2MB", "--device", "cpu", "--json")
    assert json.loads(done.stdout)["cause"] == "not_memory"


def test_a_job_s_own_log_is_the_default(make_job: JobMaker, tmp_path: Path) -> None:
    job = make_job()
    done = doctor(job)
    assert done.returncode == 2 and b"name it with --log FILE" in done.stderr
    folder = tmp_path / "out" / "micro"
    folder.mkdir(parents=True)
    (folder / "log.txt").write_bytes(of("other_disk_full"))
    assert json.loads(doctor(job, "--json").stdout)["evidence"][0]["text"].startswith("OSError: [Errno 28]")


def test_of_several_processes_the_one_that_failed_is_meant(make_job: JobMaker, tmp_path: Path) -> None:
    job = make_job(train={"batch_size": 1})
    document = YAML(typ="safe").load(job)
    (first,) = document["config"]["process"]
    second = {**first, "name": "large", "train": {**first["train"], "batch_size": 16}}
    second["train"]["gradient_checkpointing"] = False
    second["datasets"] = [{**first["datasets"][0], "resolution": [256]}]
    document["config"]["process"].append(second)
    with job.open("w") as file:
        YAML(typ="safe").dump(document, file)
    for name, log in (("large", "train_plafond"), ("micro", "fine_completed")):
        folder = tmp_path / "out" / name
        folder.mkdir(parents=True)
        (folder / "log.txt").write_bytes(of(log))
    os.utime(tmp_path / "out" / "micro" / "log.txt", (1, 1))  # the first process was done before
    found = json.loads(doctor(job, "--device", "cpu", "--vram", "1MB", "--json", "--lang", "en").stdout)
    # the first process fits into it
    assert found["phase"] == "train" and "The plan agrees: train takes 2.0 MiB of 1.0 MiB" in found["summary"]

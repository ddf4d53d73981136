"""However a job file is damaged, its owner reads a sentence and never a traceback."""

import json
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from job_files import CORPUS, JOB
from plafond.errors import JobError, UsageError
from plafond.job.document import read_yaml
from plafond.job.folders import missing_folders
from plafond.job.json_text import read_json
from plafond.job.keys import SECTIONS
from plafond.job.reading import load_job

FOLDER = Path(tempfile.mkdtemp())
TEXTS = [JOB, *(path.read_text() for path in CORPUS[::4])]
SNIPPETS = st.sampled_from(
    (
        *(
            ": ",
            "- ",
            "\n",
            "\t",
            "'",
            '"',
            "[",
            "]",
            "{",
            "}",
            "#",
            "&a ",
            "*a",
            "!x ",
            "|\n",
            "<<: ",
            "---\n",
        ),
        *("${X}", "[name]", "[trigger]", "null", "yes", "1e-4", "-1", ".nan", "1e999", "!!int ", "\\u0000"),
        *("\ufeff", "--w 3", "é", "\x00", "\ud7ff", "0x", "? ", "%YAML 1.2\n", "@", "`", "0" * 500),
    )
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "bf16", "a --w 3", "[name]", "1e-4", "flux", "a|b", "../x", "\x00"])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = sorted({key for keys in SECTIONS.values() for key in keys.all()})

few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def try_to_load(text, name, **options):
    path = FOLDER / name
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    try:
        job = load_job(path, env={}, **options)
    except (JobError, UsageError) as error:
        assert "\n" not in str(error) and str(error).isprintable(), str(error)
        return
    missing_folders(job)


@few
@given(st.data())
def test_damaged_text(data):
    text = data.draw(st.sampled_from(TEXTS))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 12))
        text = text[:start] + data.draw(SNIPPETS) + text[end:]
    try_to_load(text, "job.yaml")


def places(value, path=()):
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*path, key))


@few
@given(st.data())
def test_wrong_values_at_any_key(data):
    job = read_yaml(data.draw(st.sampled_from(TEXTS))).data
    for _ in range(data.draw(st.integers(1, 3))):
        target = job
        for part in data.draw(st.sampled_from(list(places(job)))):
            target = target[part]
        if isinstance(target, dict):
            target[data.draw(st.sampled_from(sorted(target) + KEYS))] = data.draw(VALUES)
        elif target:
            target[data.draw(st.integers(0, len(target) - 1))] = data.draw(VALUES)
    try_to_load(json.dumps(job), data.draw(st.sampled_from(["job.json", "job.jsonc", "job.yaml"])))


@few
@given(st.sampled_from(KEYS), st.sampled_from(sorted(SECTIONS)), st.text(max_size=10), st.integers(0, 3))
def test_any_setting(key, section, value, index):
    dotted = ".".join(part for part in (section.replace("s", f"s.{index}", 1), key) if part)
    try_to_load(JOB, "job.yaml", overrides=[f"{dotted}={value}"])
    try_to_load(JOB, "job.yaml", overrides=[f"{section}.{key}={value}"])


@few
@given(st.text(max_size=30))
def test_any_text(text):
    try_to_load(text, "job.yaml")
    try_to_load(text, "job.jsonc")


@few
@given(VALUES)
def test_json_reads_the_same_as_python_does(value):
    text = json.dumps(value, indent=1)
    assert json.dumps(read_json(text).data) == json.dumps(json.loads(text))

import jsonschema
import pytest

from job_files import CORPUS, JOB, change
from plafond.job.document import read_yaml
from plafond.job.json_schema import json_schema
from plafond.job.keys import SECTIONS

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_it_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_ai_toolkits_examples_are_valid(path):
    assert not [error.message for error in VALIDATOR.iter_errors(read_yaml(path.read_text()).data)]


def test_every_key_has_a_description():
    for name, definition in SCHEMA["$defs"].items():
        for key, schema in definition["properties"].items():
            assert schema["description"].endswith("."), f"{name}.{key}"


def test_every_key_of_every_section_is_there():
    for keys in SECTIONS.values():
        assert set(SCHEMA["$defs"][keys.model.__name__]["properties"]) == set(keys.all())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batch_size: 1", "bacth_size: 1"),
        ("batch_size: 1", "batch_size: two"),
        ("lr: 1e-4", "lr: 0"),
        ("optimizer: adamw8bit", "optimizer: automagic"),
        ("resolution: [512, 768]", "resolution: big"),
        ("type: sd_trainer", "type: concept_slider"),
        ("is_flux: true", "arch: flxu"),
    ],
)
def test_mistakes_are_found(old, new):
    assert not list(VALIDATOR.iter_errors(read_yaml(JOB).data))
    assert list(VALIDATOR.iter_errors(read_yaml(change(old, new)).data))


def test_known_keys_are_marked():
    found = SCHEMA["$defs"]["TrainConfig"]["properties"]["noise_offset"]
    assert found == {
        "description": "Known to AI Toolkit, not used by plafond.",
        "default": 0,
        "deprecated": True,
    }

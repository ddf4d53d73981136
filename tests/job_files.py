"""A small job that tests change in one place."""

from pathlib import Path

from plafond.errors import PlafondError
from plafond.job.reading import load_job

CORPUS = sorted(Path(__file__).parent.joinpath("jobs").glob("*.yaml"))

JOB = """\
job: extension
config:
  name: fox
  process:
    - type: sd_trainer
      training_folder: output
      trigger_word: f0x
      network:
        type: lora
        linear: 16
      save:
        save_every: 250
      datasets:
        - folder_path: photos
          caption_ext: txt
          resolution: [512, 768]
      train:
        batch_size: 1
        steps: 2000
        lr: 1e-4
        optimizer: adamw8bit
        dtype: bf16
      model:
        name_or_path: black-forest-labs/FLUX.1-dev
        is_flux: true
        quantize: false
      sample:
        width: 1024
        seed: 42
        prompts:
          - a [trigger] in the snow
          - "[name] at night"
meta:
  name: "[name]"
"""


def write(folder, text=JOB, name="job.yaml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def change(old, new):
    assert JOB.count(old) == 1, f"{old!r} must occur once"
    return JOB.replace(old, new)


def load(folder, text=JOB, **options):
    return load_job(write(folder, text), env=options.pop("env", {}), **options)


def process(folder, text=JOB, **options):
    return load(folder, text, **options).processes[0]


def sentence(text, **options):
    """The error for a job file named job.yaml in the current folder."""
    Path("job.yaml").write_text(text, encoding="utf-8")
    try:
        load_job("job.yaml", env=options.pop("env", {}), **options)
    except PlafondError as error:
        assert error.exit_code == 2
        return str(error)
    return "no error"

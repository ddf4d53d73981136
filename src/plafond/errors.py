"""Every error that plafond raises on purpose.

The tree::

    PlafondError                exit code 1   something failed while running
    ├── UsageError              exit code 2   a command line that asks for the impossible
    ├── JobError                exit code 2   a job file that cannot be run as written
    ├── DataError               exit code 2   a data folder that cannot be trained on
    ├── CheckpointError         exit code 1   weights or a saved state that cannot be read or do not match
    │   └── ResumeMismatch      exit code 2   the saved run and the job file disagree
    ├── NonFiniteError          exit code 1   loss or gradients stayed non-finite
    ├── OutOfSpaceError         exit code 1   the disk is full
    ├── DoesNotFitError         exit code 3   the plan says that the job takes more than the ceiling
    ├── DeviceMemoryError       exit code 4   the device ran out of memory
    └── Interrupted             exit code 130 the user stopped the run; its state is saved

A message is one sentence that names the place (file, line, key), what was found and the nearest valid thing; it
is shown to the user in their language, without a traceback; logs and programs get it in English. Errors of other
types are bugs and do show a traceback.
"""

from __future__ import annotations

from pathlib import Path

from plafond.language.said import N_, Said, SaidError, Value


class PlafondError(SaidError):
    """Base of all errors meant for the user.

    Attributes:
        exit_code: what the command returns.
        others: mistakes that were found with this one, which is the first.
    """

    exit_code = 1
    others: tuple[PlafondError, ...] = ()


class UsageError(PlafondError):
    """The command line asks for something that cannot be done."""

    exit_code = 2


class JobError(PlafondError):
    """The job file cannot be run as written.

    Args:
        text: what was found and what is expected, without the place.
        file: the job file.
        line: 1-based line in `file`, when one is to blame.
        key: dotted key as the user writes it, for instance ``train.batch_size``.
        values: what stands in the sentence.

    Attributes:
        message: the sentence without the place.
    """

    exit_code = 2

    def __init__(
        self,
        text: str | Said,
        /,
        *,
        file: Path | None = None,
        line: int | None = None,
        key: str | None = None,
        **values: Value,
    ):
        self.message, self.file, self.line, self.key = Said.of(text, values), file, line, key
        said = self.message if key is None else Said(BEHIND, {"place": key, "text": self.message})
        place: Value | None = file
        if line is not None:
            at = Said(N_("line {number}"), {"number": line})
            place = at if file is None else Said(N_("{file}, {line}"), {"file": file, "line": at})
        super().__init__(said if place is None else Said(BEHIND, {"place": place, "text": said}))


BEHIND = N_("{place}: {text}")


class DataError(PlafondError):
    """The data folder holds nothing to train on, or something that is ambiguous."""

    exit_code = 2


class CheckpointError(PlafondError):
    """Weights or a saved state cannot be read, or do not fit the model."""


class ResumeMismatch(CheckpointError):
    """The saved run was made with other settings than the job file now asks for."""

    exit_code = 2


class NonFiniteError(PlafondError):
    """Loss or gradients were not finite for too many steps in a row."""


class OutOfSpaceError(PlafondError):
    """The disk is full; the last complete save is intact."""


class DoesNotFitError(PlafondError):
    """The plan says that the job takes more than the ceiling."""

    exit_code = 3


class DeviceMemoryError(PlafondError):
    """The device ran out of memory while the job was running, and there is no leaner way to run it."""

    exit_code = 4


class Interrupted(PlafondError):
    """The user stopped the run; its state is saved and the same command continues it."""

    exit_code = 130

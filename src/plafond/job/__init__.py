"""The job file: AI Toolkit's format, typed, with line numbers and did-you-mean."""

from __future__ import annotations

from plafond.job.folders import missing_folders
from plafond.job.reading import load_job
from plafond.job.schema import Job, ProcessConfig

__all__ = ["Job", "ProcessConfig", "load_job", "missing_folders"]

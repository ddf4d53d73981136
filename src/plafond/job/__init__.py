"""The job file: AI Toolkit's format, typed, with line numbers and did-you-mean."""

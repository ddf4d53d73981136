"""``python -m plafond``."""

from plafond.cli import main

main()

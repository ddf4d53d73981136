# make demo   run out of memory as predicted, then train a LoRA under the same ceiling (sets everything up)
# make test   run the tests (sets everything up)
# make lint   check style and types
# make screens   take the pictures of the page in docs/screens anew (needs Chromium)

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint screens clean

demo: .venv/ready
	$(BIN)/plafond demo

test: .venv/ready-dev
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

screens: .venv/ready-dev
	$(BIN)/python docs/screens/take.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/ready: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/ready-dev: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist output

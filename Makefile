# make demo   run out of memory as predicted, then train a LoRA under the same ceiling (sets everything up)
# make test   run the tests (sets everything up)
# make lint   check style and types

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/ready
	$(BIN)/plafond demo

test: .venv/ready-dev
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

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

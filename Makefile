# make demo   a fresh clone -> a classifier trained on the spot, and its audit: a verdict and a page
# make images-demo   500 faces (or drawn pictures, where the archives are not there) -> pairs side by side
# make docs   a fresh clone -> the documentation as pages, in site/
# make test   a fresh clone -> style, types and the tests that a contributor runs
# make test-slow   the other tests: documents, notebooks, browser, clusters, wheels, fuzzing, kills
# make coverage   the tests, and which lines they reach
# make test-oldest   the tests with the oldest versions that pyproject.toml allows, in .venv-oldest
# All make .venv and install what they need; a second call does not install again.

PYTHON ?= python3
BIN := .venv/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal
OUT := out
# The larger data sets and the published weights, where they lie beside the checkout.
ifneq ($(wildcard ../shared/data),)
export NEURONFAIR_DATA ?= $(abspath ../shared/data)
export NEURONFAIR_MODELS ?= $(abspath ../shared/models)
endif

.PHONY: demo images-demo docs test test-slow coverage test-oldest format clean

demo: .venv/installed
	@mkdir -p $(OUT)
	$(BIN)/neuronfair audit --out $(OUT)/audit
	@echo "Open the page: $(abspath $(OUT)/audit/report.html)"

# Photographs where they lie beside the checkout, drawn pictures elsewhere: minutes on two cores.
PICTURES := $(if $(wildcard $(NEURONFAIR_DATA)/images/utkface_faces.zip),utk_in --sensitive gender,drawn --sensitive cast)

images-demo: .venv/installed-images
	@mkdir -p $(OUT)
	rm -rf $(OUT)/images
	$(BIN)/neuronfair audit-images $(PICTURES) --faces 500 --out $(OUT)/images
	@echo "Pairs side by side: $(OUT)/images/report.html"

test: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -m "not slow"

test-slow: .venv/installed-dev
	$(PYTEST) -m slow

# All tests, and which lines they reach: slower.
coverage: .venv/installed-dev
	$(PYTEST) --cov --cov-report=term:skip-covered

# What our requirements bring with them is the newest that fits, and may warn of them. OLDEST=torch==2.13.0 takes that
# torch instead, where the index has the oldest with CUDA packages only.
OLDEST ?=

test-oldest: .venv-oldest/installed
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest -n auto --dist worksteal \
	  -W ignore::DeprecationWarning -W ignore::FutureWarning -W "ignore:The given buffer is not writable"

.venv-oldest/installed: pyproject.toml
	$(PYTHON) -m venv .venv-oldest
	$(PYTHON) tests/oldest.py $(OLDEST) > .venv-oldest/oldest.txt
	.venv-oldest/bin/python -m pip install --quiet --constraint .venv-oldest/oldest.txt --editable '.[dev]'
	@touch $@

docs: .venv/installed-dev
	$(BIN)/python docs/reference/make.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Open the documentation: $(abspath site/index.html)"

format: .venv/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-oldest $(OUT) site

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "neuronfair needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/installed-images: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[images]'
	@touch $@

# Everything at once, the package itself too.
.venv/installed-dev: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch .venv/installed $@

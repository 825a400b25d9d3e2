# make demo | make test | make check; everything is installed into .venv by these targets themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
UV_VERSION := 0.13.9
PIP_AUDIT_VERSION := 2.10.1
CYCLONEDX_VERSION := 7.5.0

# Without compiled modules, each of the many processes of a stack or a test run would compile Dagster
# and Spark's client again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo ui test test-all unit check lint types format lock audit sbom jars docs wheel clean

help:  ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo "topicberg needs Python 3.11 to 3.13; 'make PYTHON=/path/to/python3.12 …' chooses another one" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(VENV)/.installed: $(BIN)/uv requirements.lock pyproject.toml platform/deploy/pyproject.toml \
  platform/local/pyproject.toml platform/topicberg/version.py
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation \
	  --editable . --editable platform/deploy --editable platform/local
	@touch $@

$(VENV)/.compiled: $(VENV)/.installed
	$(BIN)/python -c "from topicberg.tableflow.values.compiling import wait_ready; wait_ready()"
	@touch $@

site/index.html: $(VENV)/.installed mkdocs.yml docs/site_hooks.py $(wildcard *.md docs/*.md docs/*/*)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

install: $(VENV)/.compiled site/index.html  ## create .venv with the locked dependencies

demo: install  ## run the stock-trades pipeline end to end, then stop the stack
	$(BIN)/python -m jobs.demo $(ARGS)

ui: install  ## start the stack and open the asset graph (Dagster UI)
	$(BIN)/topicberg ui

test: install  ## unit, integration and end to end on a stack of their own, but for the slow ones
	$(BIN)/python -m pytest --numprocesses $$(($(WORKERS) + 2)) --stack-workers $$(($(WORKERS) + 1)) \
	  --no-loadscope-reorder --durations 20 $(ARGS)

test-all: install  ## every test, also those that take minutes each
	$(BIN)/python -m pytest -m "" $(ARGS)

unit: install  ## the fast tests only
	$(BIN)/python -m pytest --numprocesses $$(($(WORKERS) + 1)) tests/unit $(ARGS)

check: lint types  ## lint, format, sizes, layers and types

lint: $(VENV)/.installed  ## what of it takes seconds
	$(BIN)/python tests/support/sizes.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed  ## the types only
	$(BIN)/mypy $(ARGS)

format: install  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(BIN)/uv  ## compile requirements.lock, the images' own and the library's constraints.txt (ARGS=--upgrade: the newest)
	$(BIN)/uv pip compile $(ARGS) --quiet --universal --python-version 3.11 --generate-hashes \
	  --extra dev --extra deploy --extra local --extra production \
	  --no-emit-package topicberg --no-emit-package topicberg-deploy --no-emit-package topicberg-local \
	  pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --extra production --extra lineage --constraint requirements.lock \
	  --no-emit-package topicberg --no-emit-package topicberg-deploy pyproject.toml -o requirements-production.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate \
	  --extra deploy --extra local --extra production --extra lineage --constraint requirements.lock \
	  --no-emit-package topicberg --no-emit-package topicberg-deploy --no-emit-package topicberg-local \
	  pyproject.toml \
	  -o platform/topicberg/constraints.txt

audit: $(BIN)/uv  ## look the locked packages up in the public list of vulnerabilities
	$(BIN)/uv tool run --from pip-audit==$(PIP_AUDIT_VERSION) pip-audit \
	  --require-hashes --disable-pip --requirement requirements.lock

sbom: install  ## write sbom.cdx.json: the locked packages and jars as a CycloneDX document
	$(BIN)/uv tool run --from cyclonedx-bom==$(CYCLONEDX_VERSION) cyclonedx-py requirements \
	  --output-reproducible --of JSON -o sbom.cdx.json requirements.lock
	$(BIN)/python tests/support/sbom.py sbom.cdx.json

jars: install  ## resolve the stack's jars (jars.toml) into jars.lock
	$(BIN)/python tests/support/lock_jars.py

docs: $(VENV)/.installed  ## write docs/reference/ and build the documentation into site/, which `topicberg ui` serves
	$(BIN)/python docs/reference.py
	@$(MAKE) --no-print-directory site/index.html  # again: which pages are new is known only now

wheel: install  ## build the wheels of topicberg, topicberg-deploy and topicberg-local into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build --target wheel --directory dist
	for folder in deploy local; do \
	  (cd platform/$$folder && $(abspath $(BIN))/python -m hatchling build --target wheel --directory ../../dist) || exit; \
	done

clean:  ## remove the virtual environment (the stack's state stays: topicberg reset)
	rm -rf $(VENV)

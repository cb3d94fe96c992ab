# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q --durations=20 --dist loadfile --no-loadscope-reorder
# More workers than cores: tests wait for processes of their own.
WORKERS ?= 4

export PYTHONDONTWRITEBYTECODE =

.PHONY: help setup demo test test-all lint types imports unit integration nightly everything tests device-wheel lock clean

help:
	@echo "make demo   install what is missing, then run the whole pipeline on bundled data, and serve what comes of it under stress"
	@echo "make test   install what is missing, then lint, types, import rules, unit and integration tests (15 minutes on 2 cores)"
	@echo "make test-all  make test, then whole runs, long searches for counterexamples, notebooks (an hour and more)"
	@echo "make setup  install only"
	@echo "make device-wheel  the run time alone, as a wheel for devices, in dist/"
	@echo "make lock   resolve the dependencies anew into requirements.lock"

setup: $(VENV)/.installed

$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip check
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -c "import flows.cli.commands"  # what commands import is compiled once, and the rest of the libraries never
	touch $@

demo: setup
	$(BIN)/autotailor run +preset=demo
	$(BIN)/autotailor stress onnxruntime

# Types are checked while tests run.
test: lint imports
	@$(MAKE) --no-print-directory -k -j2 types tests

test-all: lint imports
	@$(MAKE) --no-print-directory -k -j2 types everything

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

tests unit integration nightly everything: export OMP_NUM_THREADS = 1
tests: setup
	$(PYTEST) -n $(WORKERS) -o faulthandler_timeout=700 -m "not long" tests/unit tests/integration

unit integration: setup
	$(PYTEST) -n $(WORKERS) -m "not long" tests/$@

nightly: setup
	$(PYTEST) -n $(WORKERS) tests/nightly

# Long cases, and as many examples of each property as it names.
everything: setup
	$(PYTEST) -n $(WORKERS) --many-examples tests

device-wheel: setup
	cd device && ../$(BIN)/python -m hatchling build -t wheel -d ../dist

lock:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --generate-hashes --no-header -q -o requirements.lock

clean:
	rm -rf $(VENV) outputs .mypy_cache .ruff_cache .pytest_cache

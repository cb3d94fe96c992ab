# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# runs of tests/flows that share nothing with the others
LONE_RUNS := $(patsubst %,tests/flows/test_%.py,check detection_run interrupts locks own_packages)
FLOW_TESTS := tests/flows
STAGE_TESTS := tests/finetune tests/tables tests/predict tests/search tests/golden
DEVICE_TESTS := tests/agents tests/runtime tests/links tests/deploy tests/engine tests/baselines
PARTS := $(FLOW_TESTS) $(STAGE_TESTS) $(DEVICE_TESTS)
UNIT := unit-flows unit-stages unit-rest unit-devices

export PYTHONDONTWRITEBYTECODE =

.PHONY: help setup demo test lint types imports unit $(UNIT) device-wheel lock clean

help:
	@echo "make demo   install what is missing, then run the whole pipeline on bundled data, and serve what comes of it under stress"
	@echo "make test   install what is missing, then lint, types, import rules and tests"
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

# Types are checked while tests run, the longest part from the start on; the last part begins when one of the others ends.
test: lint imports
	@$(MAKE) --no-print-directory -k -j4 types $(UNIT)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

types: setup
	$(BIN)/mypy

imports: setup
	$(BIN)/lint-imports

# Four parts, of one thread each: most tests wait for processes of their own.
test unit: export OMP_NUM_THREADS = 1
unit: setup
	@$(MAKE) --no-print-directory -k -j4 $(UNIT)

unit-flows: setup
	$(BIN)/python -m pytest -q --durations=20 $(FLOW_TESTS) $(LONE_RUNS:%=--ignore=%)

unit-stages: setup
	$(BIN)/python -m pytest -q --durations=20 $(STAGE_TESTS)

unit-rest: setup
	$(BIN)/python -m pytest -q --durations=20 $(PARTS:%=--ignore=%)

unit-devices: setup
	$(BIN)/python -m pytest -q --durations=20 $(DEVICE_TESTS) $(LONE_RUNS)

device-wheel: setup
	cd device && ../$(BIN)/python -m hatchling build -t wheel -d ../dist

lock:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --generate-hashes --no-header -q -o requirements.lock

clean:
	rm -rf $(VENV) outputs .mypy_cache .ruff_cache .pytest_cache

# make compare            time AlexNet natively and in TVM under every lowering (ARGS="..." passes flags on)
# make test               lint, types, tests, several at a time (JOBS=0: one after another; ARGS="..." passes flags on);
#                         first the environments of old frameworks, those that can be built here
# make environments       the environments of old frameworks: all of them, or an error (ARGS="cntk" for some)
.PHONY: compare test lint environments possible-environments
ARGS ?=
JOBS ?= auto
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; break; }; done)
BIN := .venv/bin
READY := .venv/.ready

compare: $(READY)
	@$(BIN)/python scripts/compare.py --backend tvm $(ARGS)

# Tests need no bytecode of what they never import: compiling all of it takes as long as the rest of the installation.
test: PIP_FLAGS := --no-compile
test: $(READY)
	@$(MAKE) --no-print-directory -j 2 lint possible-environments
	$(BIN)/python -m pytest -rs -n $(JOBS) --dist worksteal $(ARGS)

environments: $(READY)
	$(BIN)/python -m xframe.cli env create $(ARGS)

possible-environments: $(READY)
	$(BIN)/python -m xframe.cli env create --if-possible

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy xframe

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "xframe needs Python 3.11 or newer with its venv module, and none was found: install one, or name it with make PYTHON=/path/to/python" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -e '.[all,dev]'
	touch $@

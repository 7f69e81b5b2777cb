# Two commands do all set-up themselves: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# What computes, run again as on a CPU without vector instructions: no test may depend on rounding.
# The conformance grid, LoRA under all methods, secure sums and pretrained models compare runs of one process, which
# round alike.
PLAIN_CPU := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2
NUMERIC := $(addprefix tests/,losses methods metrics models privacy training) \
  --ignore tests/methods/test_conformance.py --ignore tests/methods/test_lora_methods.py \
  --ignore-glob "tests/privacy/test_secure_*" --ignore-glob "tests/models/test_pretrained*"

.DEFAULT_GOAL := help
.PHONY: help demo demo-flower test test-slow test-oldest lint bench lists pages docs clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v[:2] <= (3, 13) else f"fedtail needs Python 3.11 to 3.13, this is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	@touch $@

demo: $(STAMP)  ## compare methods on the embedded digits, about a minute
	$(BIN)/fedtail compare benchmarks/demo.toml --out runs/demo \
	  --method fedavg --method fedlc --method balancefl \
	  --method creff --method redgrape --method gbme --method slac

demo-flower: $(STAMP)  ## CReFF on real Flower processes beside an embedded run, under five minutes
	$(BIN)/python -m benchmarks.flower_overhead --demo --rounds 3

test: $(STAMP) lint  ## ruff, mypy --strict and pytest, about nine minutes
	$(BIN)/python -m pytest -n 2 --dist loadgroup
	$(PLAIN_CPU) $(BIN)/python -m pytest -n 2 $(NUMERIC)

test-slow: $(STAMP)  ## the heavier tests too
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[flower]'
	$(BIN)/python -m pytest -m slow
	$(BIN)/python tests/mutation.py --sample 8

test-oldest:  ## what a user does first, with the oldest versions that pyproject.toml allows
	$(PYTHON) -m venv .venv-oldest
	$(PYTHON) tests/oldest.py > .venv-oldest/oldest.txt
	.venv-oldest/bin/python -m pip install --quiet --constraint .venv-oldest/oldest.txt --editable . \
	  hypothesis pytest pytest-timeout pytest-xdist
	.venv-oldest/bin/python -m pytest -n 2 -W default tests/cli tests/data tests/report tests/losses tests/metrics

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(STAMP)  ## speed and scale, as ratios in one run
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.methods_cost
	$(BIN)/python -m benchmarks.together
	$(BIN)/python -m benchmarks.features_once
	$(BIN)/python -m benchmarks.cores
	$(BIN)/python -m benchmarks.allocator
	$(BIN)/python -m benchmarks.precision
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.masks
	$(BIN)/python -m benchmarks.round_memory
	$(BIN)/python -m benchmarks.round_memory --workers 2

lists: $(STAMP)  ## write the lists of methods, in code and pages, from their classes
	$(BIN)/python docs/lists.py

pages: $(STAMP)  ## write the pages of results from the files in benchmarks/results
	$(BIN)/python -m benchmarks.comparison.page
	$(BIN)/python -m benchmarks.claims.page
	$(BIN)/python -m benchmarks.doctor --ranks
	$(BIN)/python -m benchmarks.attacks_page
	$(BIN)/python -m benchmarks.peers.page

docs: $(STAMP)  ## build the documentation site; a warning is an error, as in `make test`
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## remove everything that was installed or built here
	rm -rf $(VENV) .venv-oldest site dist .mypy_cache .ruff_cache .pytest_cache

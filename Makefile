# mpmtl: every target sets up what it needs. `make help` lists them.
VENV ?= .venv
PYTHON ?= python3
SCALE ?= standard
BIN := $(VENV)/bin

.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16

$(BIN)/mpmtl-run: pyproject.toml
	@$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info[:2] < (3, 14)' 2>/dev/null || \
	  { echo "mpmtl needs Python 3.11 to 3.13: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing mpmtl and what it needs in $(VENV): about a minute"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable .
	@touch $@

$(VENV)/tools: $(BIN)/mpmtl-run
	@echo "installing what the tests need (pytest, cvxpy, dask and others) in $(VENV): about a minute"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[test,oracle,cluster]'
	@touch $@

install: $(BIN)/mpmtl-run  ## virtual environment in .venv with mpmtl alone; other targets add their tools

run: install  ## the main job: method lr at epsilon = 0.1 on the built-in low-rank data
	$(BIN)/mpmtl-run method=lr epsilon=0.1 scale=$(SCALE)

smoke: install  ## all figures from two replicates on tiny grids, under two minutes
	$(BIN)/python scripts/reproduce_paper.py --scale smoke

audit: install  ## what every mechanism really gives up over epsilon, with its figure, 5 minutes
	$(BIN)/mpmtl-audit experiment=privacy_audit
	$(BIN)/mpmtl-audit -m experiment=privacy_audit method=gs privacy=wishart
	$(BIN)/python scripts/plot_privacy_audit.py

reproduce-paper: SCALE = paper
reproduce-paper: install  ## all experiments and figures of the paper: a plan first, which asks if it takes hours (YES=1), resumable (SCALE=laptop, smoke)
	$(BIN)/python scripts/reproduce_paper.py --scale $(SCALE) $(if $(YES),--yes)

SOURCE ?= results/reference

reference: SOURCE = results/laptop
reference: install  ## write the runs of SOURCE (results/laptop) as tables to results/reference
	$(BIN)/python scripts/keep_reference.py $(SOURCE)

figures: install  ## draw all figures of SOURCE again, from its runs or their own tables (SOURCE=results/laptop)
	$(BIN)/python scripts/redraw_figures.py $(SOURCE)

claims: install  ## every statement of the paper about its experiments against SOURCE
	$(BIN)/python scripts/utility_bounds.py --results $(SOURCE)
	$(BIN)/python scripts/check_claims.py $(SOURCE) $(if $(filter results/reference,$(SOURCE)),--docs docs/claims.md)

report: install  ## one page about a results folder, <folder>/report.html (SOURCE=results/laptop)
	$(BIN)/python scripts/report.py $(SOURCE)

data: install  ## fetch the real data sets into data/ (needs internet)
	$(BIN)/python scripts/fetch_data.py

test: $(VENV)/tools  ## lint and all tests but the slow statistical ones
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

test-full: $(VENV)/tools  ## all tests, the slow statistical ones included
	$(BIN)/python -m pytest

bench: $(VENV)/tools  ## time every method, whole runs and other solvers: tables (wants a quiet machine)
	$(BIN)/python scripts/bench.py
	$(BIN)/python scripts/bench_solvers.py
	$(BIN)/python scripts/bench_scale.py
	$(BIN)/python scripts/bench_scale.py --partitions 100000

bench-tables: install  ## compare with ridge, mixed and pooled models on 20 real tables, 30 minutes
	@echo "installing the models to compare with in $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[tables]'
	$(BIN)/python scripts/bench_tables.py --docs docs/tables.md

federated: install  ## Flower, for owners that keep their data (docs/federated.md): half a minute, 200 MB
	@echo "installing Flower in $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[federated]'

docs: install  ## the documentation as a site, docstrings included: build/docs/index.html, about a minute
	@echo "installing what builds the site (Sphinx) in $(VENV)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[docs]'
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs build/docs
	@echo build/docs/index.html

clean:  ## remove the virtual environment and caches (results stay)
	rm -rf $(VENV) build docs/generated dist *.egg-info .pytest_cache .ruff_cache .hypothesis

.PHONY: help install run smoke audit reproduce-paper reference figures claims report data test test-full bench bench-tables federated docs clean

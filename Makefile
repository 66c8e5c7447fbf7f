# Needs Python 3.11, make and git alone.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
PORT ?= 8000

# What the shell sets for other work stays out of builds and tests.
unexport $(filter PYTHON% JUPYTER% IPYTHON% MPL% PYTEST% VIRTUAL_ENV,$(.VARIABLES))
export PYTHONPATH := $(CURDIR)/src

.DEFAULT_GOAL := help
CHECKS := lint types package form
STAGES := lint types package chapters ledger build site browser
.PHONY: help book serve test check lab refresh data bench mutate lock clean $(CHECKS) $(STAGES)

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

book: build  ## build the site and print the path to open
	@echo "Open $(CURDIR)/_build/html/index.html in a browser, or run 'make serve'."

serve: book  ## build the site, then serve it on this machine alone; PORT=8000
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

test: $(INSTALLED)  ## everything: package, chapters, ledger, site, lint, types
	@$(BIN)/python tools/run_tests.py $(STAGES)

check: $(INSTALLED)  ## the two-minute part of `make test`, for editing
	@$(BIN)/python tools/run_tests.py $(CHECKS)

lab: $(INSTALLED)  ## JupyterLab on the chapters
	@$(BIN)/jupyter lab --notebook-dir book

refresh: $(INSTALLED)  ## re-execute the chapters in place; CHAPTERS="book/01_x.ipynb" for some of them
	@$(BIN)/python tools/refresh.py $(CHAPTERS)

data: $(INSTALLED)  ## make the stored data anew; NAME=ch05_constant_gate for one set
	@$(BIN)/python tools/data.py $(NAME)

bench: $(INSTALLED)  ## speed and memory against what you would use instead
	@$(BIN)/python tools/bench.py

mutate: $(INSTALLED)  ## change the mathematics a hundred times: do the tests notice?
	@$(BIN)/python tools/mutate.py

LOCK = $(BIN)/python -m uv pip compile --universal --python-version 3.11 --no-annotate --quiet \
	--custom-compile-command "make lock"
lock: $(INSTALLED)  ## pin requirements.in anew; UPGRADE=1 moves every pin to the newest that fits
	$(LOCK) requirements.in -o requirements.txt $(if $(UPGRADE),--upgrade)
	grep -v '^-e' requirements.txt | $(LOCK) .binder/requirements.in -o .binder/requirements.txt -c -

clean:  ## remove what the build made (not .venv)
	rm -rf _build build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	find book src tests tools -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

# The stages of `make test`, each also a target of its own. Two processes share the processor, so each
# keeps to one thread.
PYTEST := $(BIN)/python -m pytest -q -rfEs --no-fold-skipped
CHAPTER_FILES := $(sort $(wildcard book/*.ipynb))
SITE_TESTS := tests/book/test_site.py
BROWSER_TESTS := tests/book/test_browser.py tests/book/test_live_browser.py tests/book/test_live_lab.py
BOOK_TESTS := tests/book $(SITE_TESTS:%=--ignore=%) $(BROWSER_TESTS:%=--ignore=%)
$(STAGES) form: export OMP_NUM_THREADS := 1
$(STAGES) form: export OPENBLAS_NUM_THREADS := 1
$(STAGES) form: export MKL_NUM_THREADS := 1

lint: $(INSTALLED)  ## ruff on code and chapters
	@$(BIN)/ruff check -q && $(BIN)/ruff format --check -q
	@$(BIN)/ruff check -q --config book/notebooks.ruff.toml $(CHAPTER_FILES)
	@$(BIN)/ruff format --check -q --config book/notebooks.ruff.toml $(CHAPTER_FILES)

types: $(INSTALLED)  ## mypy, strict
	@$(BIN)/mypy

FLOOR := 95
package: $(INSTALLED)  ## package tests, doctests, coverage of lines and of branches
	@$(PYTEST) -n 2 tests --ignore=tests/book src \
		--cov=mixattn --cov-branch --cov-report= --cov-report=json:_build/coverage.json
	@$(BIN)/python -c "import json; t = json.load(open('_build/coverage.json'))['totals']; \
		low = min(t['percent_statements_covered'], t['percent_branches_covered']); \
		exit(low < $(FLOOR) and f'mixattn: {low:.1f} % of lines or branches covered, $(FLOOR) % needed')"

chapters: $(INSTALLED)  ## execute the chapters and compare outputs and figures
	@$(PYTEST) -n 2 --dist loadscope --nbval $(CHAPTER_FILES)

# One file's tests stay together: Binder's environment and the browser are fixtures of one file.
form: $(INSTALLED)  ## ledger and form of the chapters
	@$(PYTEST) -n 2 --dist loadfile $(BOOK_TESTS) -m "not slow"

ledger: $(INSTALLED)  ## ledger, form of the chapters, builds, Binder, Colab
	@$(PYTEST) -n 2 --dist loadfile $(BOOK_TESTS)

build: $(INSTALLED)  ## the site, warnings are errors
	@$(BIN)/jupyter-book build . -W -n --keep-going

site: $(INSTALLED)  ## the built site, read without a browser
	@$(PYTEST) $(SITE_TESTS)

browser: $(INSTALLED)  ## the built site, each live figure and JupyterLab in Chromium
	@$(PYTEST) -n 2 $(BROWSER_TESTS)

# The stamp is written last, so an interrupted installation starts over.
$(INSTALLED): requirements.txt pyproject.toml book/_ext/npm.json
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/it" >&2; exit 1; }
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and \
		'Python 3.11 or newer is needed, and this is ' + sys.version.split()[0] + ': make PYTHON=/path/to/it')"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }
	@echo "Installing the pinned requirements (a few minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@echo "Fetching the browser assets"
	@$(BIN)/python book/_ext/assets.py
	@touch $@

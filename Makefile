# Needs Python 3.11, make and git alone; the work is done by Python in tools/ and book/_ext/.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help book serve test check lab refresh bench lock clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

book: $(INSTALLED)  ## build the site and print the path to open
	@$(BIN)/jupyter-book build . -W -n --keep-going
	@echo "Open $(CURDIR)/_build/html/index.html in a browser, or run 'make serve'."

serve: book  ## build the site, then serve it on this machine alone
	@$(BIN)/python tools/serve.py

test: $(INSTALLED)  ## everything: package, chapters, ledger, site, lint, types
	@$(BIN)/python tools/run_tests.py

check: $(INSTALLED)  ## the two-minute part of `make test`, for editing
	@$(BIN)/python tools/run_tests.py --quick

lab: $(INSTALLED)  ## JupyterLab on the chapters
	@$(BIN)/jupyter lab --notebook-dir book

refresh: $(INSTALLED)  ## re-execute the chapters in place; CHAPTERS="book/01_x.ipynb" for some of them
	@$(BIN)/python tools/refresh.py $(CHAPTERS)

bench: $(INSTALLED)  ## speed and memory against what you would use instead
	@$(BIN)/python tools/bench.py

lock: $(INSTALLED)  ## pin requirements.in anew; UPGRADE=1 moves every pin to the newest that fits
	@$(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)

clean:  ## remove what the build made (not .venv)
	rm -rf _build build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	find book src tests tools -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

# The stamp is written last, so an interrupted installation starts over.
$(INSTALLED): requirements.txt pyproject.toml book/_ext/package-lock.json tools/install.py
	@[ -n "$(PYTHON)" ] || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/it" >&2; exit 1; }
	@$(PYTHON) tools/install.py $@

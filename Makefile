PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test lint format figures constraints

help:
	@echo "make demo     train a small recurring job, and see it find its batch size"
	@echo "make test     run the whole test suite"
	@echo "make lint     ruff and mypy"
	@echo "make figures  make the figures of docs/policies.md anew"
	@echo "make install  make .venv; demo, test and lint do it themselves"

install: $(STAMP)

$(STAMP): setup.cfg pyproject.toml constraints.txt service/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	@echo "Installing into $(VENV): a few minutes the first time."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[service,analysis,dev]'
	@touch $@

demo: install
	$(BIN)/python examples/quickstart.py

# Most tests wait for other processes. In the order of their names the long ones come first.
test: install
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

figures: install
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[figures]'
	$(BIN)/python docs/figures.py

constraints:
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0 --editable '.[service,analysis,figures,dev]'
	{ sed '/^#/!d' constraints.txt; $(BIN)/pip freeze --exclude-editable | sed 's/+cpu//'; } > constraints.new
	mv constraints.new constraints.txt
	@touch $(STAMP)

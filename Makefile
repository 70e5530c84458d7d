PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NEWEST := .venv-newest
RAY := .venv-ray
DEMO := $(VENV)/.demo-installed
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo quick test test-ray test-newest lint format docs figures notebook constraints hashes

help:
	@echo "make demo     train a small recurring job, and see it find its batch size: one to two minutes"
	@echo "make quick    run the tests that start no process: two minutes"
	@echo "make test     run the whole test suite"
	@echo "make test-ray run the example that trains in Ray: two minutes"
	@echo "make test-newest  run the callbacks' tests with the newest Lightning"
	@echo "make lint     ruff, mypy and import-linter"
	@echo "make docs     build the documentation as a site, in build/site: some seconds"
	@echo "make figures  draw the figures of docs, and take the pictures of the page"
	@echo "make notebook execute the notebook of the examples: one minute"
	@echo "make install  create .venv; the others do it themselves"

install: $(STAMP)

# What the demo needs and no more; Python compiles the part of it that is imported.
$(DEMO): setup.cfg pyproject.toml constraints.txt service/setup.cfg service/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	@echo "Installing the demo into $(VENV): about half a minute, more where nothing is cached."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --no-compile --constraint constraints.txt \
		--editable '.[demo]' --editable ./service
	@touch $@

$(STAMP): $(DEMO)
	@echo "Installing the rest into $(VENV): about two minutes, more where nothing is cached."
	@$(BIN)/pip install --quiet --constraint constraints.txt \
		--editable '.[dev]' --editable './service[dask]'
	@touch $@

demo: $(DEMO)
	$(BIN)/python examples/quickstart.py

quick: install
	$(BIN)/python -m pytest -m quick -n 2 --dist worksteal --timeout=600 $(ARGS)

# Most tests wait for other processes. In the order of their names the long ones come first.
test: install
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder \
		--timeout=600 --max-worker-restart=2 $(ARGS)

# Ray is large, and no other test needs it: it has an environment of its own.
test-ray:
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/pip install --quiet --no-compile --constraint constraints.txt ray==2.60.0 \
		--editable '.[ray]' --editable ./service hypothesis pytest pytest-timeout
	$(RAY)/bin/python -m pytest tests/with_ray --timeout=600 $(ARGS)

# Before an upgrade; not part of CI. zeus-lightning's own limit is set aside: pip only warns of it.
test-newest:
	$(PYTHON) -m venv $(NEWEST)
	sed '/^lightning==/d; /^pytorch-lightning==/d' constraints.txt > $(NEWEST)/constraints.txt
	$(NEWEST)/bin/pip install --quiet --constraint $(NEWEST)/constraints.txt \
		--editable '.[dev]' --editable ./service
	$(NEWEST)/bin/pip install --upgrade --constraint $(NEWEST)/constraints.txt \
		lightning pytorch-lightning
	$(NEWEST)/bin/python -m pytest tests/lightning/test_bso_*.py tests/lightning/test_power_*.py \
		-n 2 --dist loadfile --timeout=600 $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A dead link is an error. Nothing is fetched; the variable silences a note on the theme's successor.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "build/site/index.html"

figures: install
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[figures]'
	$(BIN)/python -m docs.figures
	$(BIN)/python docs/screenshots.py

notebook: install
	$(BIN)/jupytext --quiet --to ipynb examples/notebook/digits.py
	$(BIN)/jupyter execute --inplace examples/notebook/digits.ipynb

constraints:
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0 \
		--editable '.[figures,dev]' --editable './service[dask]'
	{ sed '/^#/!d' constraints.txt; $(BIN)/pip freeze --exclude-editable | sed 's/+cpu//'; } > constraints.new
	mv constraints.new constraints.txt
	@touch $(DEMO) $(STAMP)
	$(MAKE) hashes

# What the image installs, at the versions of constraints.txt, with the hashes of all its files.
hashes: install
	$(BIN)/pip install --quiet pip-tools
	echo 'setuptools>=77' | cat service/requirements.txt - > requirements.in
	$(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-annotate \
		--no-header --no-emit-index-url --no-emit-find-links --constraint constraints.txt \
		--output-file service/requirements.lock requirements.in
	rm requirements.in

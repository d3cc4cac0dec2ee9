# make demo and make test need python3 (3.10 or newer), pip and make; the rest is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := -e . -e exporters/otel -e exporters/otlp -e exporters/tensorboard
DOCS := .venv-docs
STAMP := $(VENV)/.installed
SOURCES := src exporters/otel/src exporters/otlp/src exporters/tensorboard/src

.PHONY: demo test fuzz stress lint docs docs-serve bench integration stack-up stack-down screenshots clean

demo: $(STAMP)  ## half a minute of real training, recorded for TensorBoard and OpenTelemetry
	$(BIN)/python docs/examples/train_char_model.py

test: $(STAMP)  ## all tests that need no other program
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not integration and not stress"

fuzz: $(STAMP)  ## the property tests with five times as many examples, at random
	$(BIN)/python -m pytest -m "hypothesis and not integration" --hypothesis-profile fuzz

stress: $(STAMP)  ## bursts, large queues and limits of time, one test at a time
	$(BIN)/python -m pytest -m "stress or timed"

lint: $(STAMP)  ## ruff, mypy, spelling and plain English
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES) tests exporters/otel/tests exporters/otlp/tests exporters/tensorboard/tests docs/examples tools \
		compose/stack compose/grafana
	$(BIN)/codespell $(SOURCES) exporters tests docs compose tools *.md
	$(BIN)/python tools/english.py

docs: $(DOCS)/.installed  ## the site into build/site; a broken link or reference fails
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

docs-serve: $(DOCS)/.installed  ## the site at http://127.0.0.1:8000, built again after each change
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs serve --watch src --watch exporters

bench: $(STAMP)  ## the numbers of docs/explanation/performance.md, as ratios to its peers
	$(BIN)/python tests/bench/run.py

integration: $(STAMP)  ## against a real Collector, Prometheus and Loki, as processes and in Docker
	$(BIN)/python -m pytest tests/integration

stack-up:  ## Collector, Prometheus, Loki, Tempo and Grafana; without Docker the first three
	$(PYTHON) compose/stack up

stack-down:  ## end them; what they have stored stays
	$(PYTHON) compose/stack down

screenshots: $(STAMP)  ## the picture in README: the demo's runs in TensorBoard in chromium
	rm -f build/pictures/tensorboard.png
	$(BIN)/python -m pytest tests/integration/test_pictures.py
	cp build/pictures/tensorboard.png docs/pictures/

clean:  ## everything that was made here
	rm -rf $(VENV) $(DOCS) build dist runs monitel-runs .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -prune -exec rm -rf {} + ; find src exporters -name '*.so' -delete

$(STAMP): requirements-dev.txt pyproject.toml $(wildcard src/monitel/*.[ch] src/monitel/*/*/*.c exporters/*/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PACKAGES) -r requirements-dev.txt
	touch $@

$(DOCS)/.installed: docs/requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

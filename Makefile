# Two commands are all one needs: `make run` and `make test`. Each sets up what it uses in $(VENV).
# `make test-gpu` runs the tests that need an NVIDIA GPU, `make soak` the long one.
PYTHON ?= python3
VENV ?= .venv
DURATION ?= 20
BIN := $(VENV)/bin

.PHONY: run test test-gpu soak lint clean

run: $(VENV)/.run
	$(BIN)/edgegs kernels build
	@test -s out/room.ply || { mkdir -p out && $(BIN)/edgegs synth room -n 100000 -o out/room.ply; }
	$(BIN)/edgegs run configs/demo.yaml --duration $(DURATION) > out/summary.txt
	@cat out/summary.txt
	@log=$$(sed -n 's/^log: //p' out/summary.txt); $(BIN)/edgegs report "$$log" -o out/report.html > out/report.txt && \
	  printf 'video:  out/demo.mp4\nreport: out/report.html, out/report.txt\n'

test: lint
	$(BIN)/python -m pytest

# the images are built first: the tests build none for a GPU
test-gpu: export EDGEGS_CACHE = $(abspath $(VENV))/gpu-cache
test-gpu: $(VENV)/.gpu
	$(BIN)/edgegs kernels build
	EDGEGS_TEST_CACHE="$(EDGEGS_CACHE)" $(BIN)/python -m pytest -m cuda

# six minutes or more, as the unit runs it: 200,000 frames with reloads, clients and outputs that vanish; memory,
# descriptors and threads are judged
soak: $(VENV)/.dev
	@mkdir -p out
	$(BIN)/python tests/soak.py --frames 200000 --reloads 200 --clients 500 --arenas 1 --json out/soak.json --raw out/soak.jsonl.gz

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/.run: EXTRAS := report
$(VENV)/.dev: EXTRAS := dev
$(VENV)/.gpu: EXTRAS := dev,cuda
$(VENV)/.run $(VENV)/.dev $(VENV)/.gpu: $(VENV)/bin/pip pyproject.toml setup.py
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@

$(VENV)/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit("edgegs needs Python 3.8 or newer: make PYTHON=python3.8" if sys.version_info < (3, 8) else 0)'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo 'no venv module: apt install python3-venv' >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --upgrade pip

clean:
	rm -rf $(VENV) build dist out *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

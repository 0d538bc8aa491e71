# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench-export clean

demo: .venv/installed
	$(BIN)/torchport export examples/01_first_export/model.py:Net --dynamic image:0=batch -o examples/01_first_export/model.onnx
	$(BIN)/torchport run examples/01_first_export/model.onnx --input image=float32[5,3,64,64]

test: lint
	$(BIN)/python -m pytest

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The figures of the export issue: wall time and memory beside bare torch.onnx.export, start-up, 3 GiB of weights.
bench-export: .venv/installed
	$(BIN)/python benchmarks/export.py

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis

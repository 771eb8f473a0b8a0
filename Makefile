# The two commands of a newcomer are `make demo` and `make test`; `make help` lists the rest.

# A requirement for pip, in the place of requirements/torch.txt. Where the index offers a CUDA build by default and the
# CPU one is wanted (a far smaller download), name it and the index that has it:
#   make demo TORCH_REQUIREMENT=torch==2.15.0+cpu PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
TORCH_REQUIREMENT ?=

# More ranks than cores is the normal case on a laptop: a waiting rank must not hold a core that another one needs, and
# binding would pin two ranks to one core.
MPIRUN_FLAGS ?= --map-by :OVERSUBSCRIBE --bind-to none --mca mpi_yield_when_idle 1

# Seconds that one parallel launch of the tests may take.
LAUNCH_TIMEOUT_S ?= 600

# Seconds that `make fuzz` looks.
FUZZ_S ?= 300

export TORCH_REQUIREMENT MPIRUN_FLAGS LAUNCH_TIMEOUT_S FUZZ_S PYTHONS WHEEL_TORCH WHEEL_COMPILER
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Containers and CI run as root, which Open MPI refuses without both.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1

# Importing torch takes twice as long where Python may not keep what it compiled, and the tests start many processes.
export PYTHONDONTWRITEBYTECODE :=

# For every build from here, also the one inside set-up: another value would compile everything again.
export HVD_COMPRESS_WERROR := ON

# Of torch's operators, for more processes than cores: a thread of OpenMP spins while it waits for one that has no core.
PARALLEL_ENV = env OMP_NUM_THREADS=1
# As many workers as keep two cores busy while some of them wait. Whoever runs out of tests takes some of another's.
PYTEST = $(PARALLEL_ENV) python -m pytest -n 4 --dist worksteal
# Two levels: what a person runs before each commit, and the rest.
FIRST = -m 'not level2'
REST = -m level2
# Where the phases of tools/suite.py leave their result files.
JUNIT = $(if $(TEST_RESULTS),--junitxml='$(TEST_RESULTS)/results.xml')
PYTHON_SOURCES = hvd_compress tests examples benchmarks tools setup.py
CPP_SOURCES = $(shell find csrc tests -name '*.hpp' -o -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
# Of what can be taken away: each folder is there or not.
GUESTS = $(wildcard tests/papers tests/embedding tests/attention tests/netlab tests/bench tests/report)
# Jobs first: they wait much, next to tests that compute.
TESTS = tests/jobs tests/benchmarks tests/checkpoints tests/unit tests/native tests/conformance $(GUESTS)
PHASES = lint types unit sanitize parallel
REST_PHASES = unit-rest sanitize-rest parallel-rest

.PHONY: help setup native wheel docs demo test test-all test-changed mutants tiles sanitized $(PHASES) $(REST_PHASES) conformance mutate-cuda fuzz time-to-accuracy format gpu-check clean

help: ## print this
	@echo "Targets:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | while IFS='|' read -r name text; do \
	    printf '%-20s %s\n' "$$name" "$$text"; done
	@echo "Variables:"
	@echo "  PYTHON             the Python 3.10-3.14 to use (now: $${PYTHON:-the first one found})"
	@echo "  TORCH_REQUIREMENT  which torch pip installs (now: $(or $(TORCH_REQUIREMENT),that of requirements/torch.txt)); smaller:"
	@echo "                     make demo TORCH_REQUIREMENT=torch==2.15.0+cpu \\"
	@echo "                     PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
	@echo "  HVD_COMPRESS_HOROVOD=0  leaves Horovod out; without it hvd_compress.torch has a runtime of its own"
	@echo "  PYTHONS            what wheels are built for, such as \"3.10 3.12\" (unless given: .venv's Python)"
	@echo "  WHEEL_TORCH        what wheels are tried with, such as \"torch==2.4.1 torch==2.15.0\" (unless given: the above)"
	@echo "  LAUNCH_TIMEOUT_S   seconds that one parallel launch of the tests may take (now: $(LAUNCH_TIMEOUT_S))"
	@echo "  FUZZ_S             seconds that the fuzzer looks for payloads (now: $(FUZZ_S))"

demo: native ## train on the bundled digits with 4 ranks and compare the compressors
	@exec $(PARALLEL_ENV) mpirun -np 4 $(MPIRUN_FLAGS) python examples/train_images.py --demo

mutate-cuda: native ## leave out each barrier and each atomic of the CUDA kernels, and see what the player finds (10 minutes)
	@exec python tools/mutate_cuda.py

fuzz: native ## look for payloads that no decoder bears, by coverage, with sanitizers, for FUZZ_S seconds
	@exec python tools/fuzz.py

test: tiles ## what a person runs before each commit (10 minutes): all phases, though one fails; what failed stands at the end
	-@python tools/sanitize.py build  # a part of set-up; where it fails, the phase that needs it does
	@exec python tools/suite.py "$(MAKE) --no-print-directory" $(PHASES)

test-all: tiles ## everything that CI checks: `make test` and the rest
	-@python tools/sanitize.py build
	@exec python tools/suite.py "$(MAKE) --no-print-directory" $(PHASES) $(REST_PHASES)

test-changed: tiles ## the tests that need what has changed since main, committed or not: seconds for a page, minutes for a room
	@exec $(PARALLEL_ENV) python tools/changed_tests.py

mutants: native ## seeded faults in the package and in csrc, one at a time, and which test of the first level finds each (2 hours)
	@exec $(PARALLEL_ENV) python tools/mutants.py

lint: setup ## ruff and clang-format, changing nothing
	@status=0; \
	ruff check $(PYTHON_SOURCES) || status=1; \
	ruff format --check $(PYTHON_SOURCES) || status=1; \
	clang-format --dry-run -Werror $(CPP_SOURCES) || status=1; \
	exit $$status

types: setup ## mypy on the package, with the annotations of the default torch
ifneq ($(findstring $(or $(TORCH_REQUIREMENT:+cpu=),torch),$(file < requirements/torch.txt)),)
	@exec mypy hvd_compress
else
	@echo "skipped: the annotations of torch differ from release to release; types are checked with the default"
endif

tiles: native
	@exec cmake --build build/native-$$(python -c 'import sys; print(sys.implementation.cache_tag)') --target tiles -- --quiet

sanitized: native
	@exec python tools/sanitize.py build

unit: tiles ## the first level of the tests that pytest starts itself
	@exec $(PYTEST) $(FIRST) $(JUNIT) $(TESTS)

unit-rest: tiles ## their second level
	@exec $(PYTEST) $(REST) $(JUNIT) $(TESTS)

sanitize: native ## kernels and decoders with AddressSanitizer and UndefinedBehaviorSanitizer
	@exec python tools/sanitize.py memory

sanitize-rest: native ## their second level, and the player and the pool with ThreadSanitizer
	@exec python tools/sanitize.py rest

parallel: native ## the first level of tests/parallel: one launch of mpirun with 3 ranks
	@exec $(PARALLEL_ENV) python tools/launches.py first

parallel-rest: native ## its second level: 2, 3 and 4 ranks under mpirun, and horovodrun
	@exec $(PARALLEL_ENV) python tools/launches.py rest

conformance: native ## the conformance suite with every combination, of which `make test-all` takes a covering of pairs
	@exec $(PARALLEL_ENV) python -m pytest -n 2 --dist worksteal --whole-product tests/conformance

time-to-accuracy: native ## train a language model by a few methods, one seed, and multiply its steps by the recorded seconds a step (10 minutes)
	@exec python -m benchmarks.time_to_accuracy.run quick

format: setup ## let ruff and clang-format rewrite the sources
	@ruff check --fix $(PYTHON_SOURCES)
	@ruff format $(PYTHON_SOURCES)
	@clang-format -i $(CPP_SOURCES)

setup: ## create .venv and install everything into it, where that is not done yet
	@python=$$(tools/find_python) && exec "$$python" tools/setup_env.py

native: setup ## rebuild the native extension where csrc changed
	@exec python setup.py --quiet build_ext --inplace

wheel: setup ## build a wheel into dist/ for each of PYTHONS, and try it in an environment with torch alone (6 GB in build/)
	@exec python tools/build_wheel.py

docs: setup ## build the site into build/site: all pages, and the reference from docstrings
	@exec python tools/build_docs.py

gpu-check: ## build, compare, measure and sanitize the CUDA kernels on this machine's GPU, with the python on PATH
	@python=$${PYTHON:-python3}; out=build/gpu-check; status=0; \
	rm -rf $$out; \
	$$python -m benchmarks.gpu.check run --out $$out || status=1; \
	$$python -m benchmarks.gpu.check sanitizers --out $$out --each-s 1800 || status=1; \
	! ls $$out/gpu-*.md > /dev/null 2>&1 || cp $$out/gpu-*.md benchmarks/results/; \
	exit $$status

clean: ## remove .venv and everything built; the cache of Horovod wheels stays
	@rm -rf .venv build dist *.egg-info hvd_compress/_native*.so hvd_compress/netlab/netlab_relay .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

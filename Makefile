# Everything a person types. CMake and Ninja do the building, tools/ and tests/ hold the scripts.
# build/release is gcc, build/asan gcc with sanitizers, build/tsan likewise, build/clang clang with
# the fuzzers.
BUILD := build/release
PREFIX := /usr/local
CMAKE := cmake -G Ninja -S .
# $(call configure,FOLDER,ENVIRONMENT,OPTIONS) and $(call ninja,FOLDER): a line each, and what they say only when they fail.
configure = [ -f $(1)/build.ninja ] || { echo "configure  $(1)"; $(2) $(CMAKE) -B $(1) $(3) >/dev/null; }
ninja = echo "build      $(1)"; ninja -C $(1) --quiet >$(1)/build.log 2>&1 || { cat $(1)/build.log; false; }

.PHONY: all help setup build asan-build tsan-build clang python demo test test-e2e test-elastic test-python test-browser \
	test-ray asan bench bench-torch bench-ray wheel install docs check fuzz clean

all: build
	@echo "ready      $(BUILD)/bin"

help:
	@sed -n 's/^## //p' Makefile

## make          set up and build (build/release/bin)
## make demo     set up, build and run the main job
## make test     set up, build and run the tests, plain and under sanitizers
## make test-e2e, test-python, test-browser: the slower suites; .ci/run runs all of them
## make test-elastic  1000 random histories of resizing in place, 200 with PyTorch (ADL_ELASTIC_SEED: from which on)
## make test-ray  adaptdl_ray on real Ray processes (installs Ray and PyTorch first)
## make bench    the performance table
## make bench-ray  a search of 8 trials on Ray: our scheduler, FIFO and ResourceChangingScheduler
## make bench-torch  a PyTorch step with AdaptiveDataParallel beside plain DistributedDataParallel
## make python   the Python package for PYTHONPATH (build/python/lib)
## make wheel    the Python packages in dist/: adaptdl with the programs in it, and adaptdl_ray
## make install  programs, headers, libraries and the rest under PREFIX (/usr/local), below DESTDIR
## make test-k8s the operator on a real Kubernetes: the one that KUBECONFIG names, or one brought up for it: what goes into 20 minutes
##               (ADL_K8S_LONG=1: everything; ADL_K8S_SHORT=1: a minute or two)
## make bench-k8s  what the operator takes on 500 pretended nodes with 2000 jobs and 5000 pods
## make image    the operator as a container image, build/image/adaptdl-sched.tar
## make registry-image  Debian's docker-registry as one, build/image/adaptdl-registry.tar
## make docs     the documentation as a site with a search, C and Python reference (build/docs/html)
## make check    format, lint, layering, symbols, and a build with clang
## make asan     the unit tests under ASan+UBSan only
## make fuzz     a long fuzzing run (FUZZ_SECONDS each, default 300)
setup:
	@tools/setup

build: setup
	@$(call configure,$(BUILD))
	@$(call ninja,$(BUILD))

asan-build: setup
	@$(call configure,build/asan,,-DADL_SANITIZE=ON)
	@$(call ninja,build/asan)

tsan-build: setup
	@$(call configure,build/tsan,,-DADL_TSAN=ON)
	@$(call ninja,build/tsan)

clang: setup
	@$(call configure,build/clang,CC=clang,-DADL_SANITIZE=ON -DADL_FUZZ=ON)
	@$(call ninja,build/clang)

.PHONY: image registry-image test-k8s
image: build
	@tools/image $(BUILD)

registry-image:
	@tools/setup registry
	@mkdir -p build/image
	@tools/image -o build/image/adaptdl-registry.tar localhost/adaptdl-registry:latest /usr/bin/docker-registry

test-k8s: image
	@tools/test k8s

.PHONY: bench-k8s
bench-k8s: build
	@tools/bench-k8s $(BUILD)

demo: build
	@tools/demo $(BUILD)

test: build asan-build tsan-build clang
	@tools/test unit

test-e2e: build asan-build
	@tools/test e2e

test-elastic: build
	@tools/setup python
	@tools/test elastic

test-python: build
	@tools/setup python
	@tools/test python

test-browser: build
	@tools/setup browser
	@tools/test browser

test-ray: setup
	@tools/setup ray
	@tools/test-ray

asan: asan-build
	@tests/run --label asan build/asan/tests/test_*

bench: build
	@tools/setup bench
	@tools/bench $(BUILD)

python: setup
	@tools/setup python
	@tools/build-python

bench-torch: python
	@tools/bench-torch

bench-ray: setup
	@tools/setup ray
	@tools/bench-ray

wheel: setup
	@tools/setup python
	@echo "build      build/bundle"
	@tools/bundle
	@ADL_BUNDLE=$(CURDIR)/build/bundle/package /usr/bin/python3 -m pip wheel -q --no-build-isolation --no-deps -w dist .
	@/usr/bin/python3 -m pip wheel -q --no-build-isolation --no-deps -w dist ./python-ray
	@ls dist/*.whl

docs: python
	@tools/setup docs
	@tools/docs

install: build
	@DESTDIR=$(DESTDIR) cmake --install $(BUILD) --prefix $(PREFIX) >/dev/null
	@[ -n "$(DESTDIR)" ] || ldconfig 2>/dev/null || true # the loader's cache; only root may

check: clang
	@tools/check

fuzz: clang
	@tools/fuzz $${FUZZ_SECONDS:-300}

clean:
	rm -rf build

# Everything a person types. CMake and Ninja do the building, tools/ and tests/ hold the scripts.
# build/release is gcc, build/asan gcc with sanitizers, build/tsan likewise, build/clang clang with
# the fuzzers.
BUILD := build/release
CMAKE := cmake -G Ninja -S .

.PHONY: all setup build demo test bench check asan tsan clang fuzz clean help

all: setup build

help:
	@sed -n 's/^## //p' Makefile

## make          set up and build (build/release/bin)
## make demo     set up, build and run the main job
## make test     set up, build and run every test, plain and under sanitizers
## make bench    the performance table
## make check    format, lint, layering, and a build with clang
## make asan     the unit tests under ASan+UBSan only
## make fuzz     a long fuzzing run (FUZZ_SECONDS each, default 300)
setup:
	@tools/setup

build: setup
	@[ -f $(BUILD)/build.ninja ] || $(CMAKE) -B $(BUILD) >/dev/null
	@ninja -C $(BUILD) --quiet

asan-build: setup
	@[ -f build/asan/build.ninja ] || $(CMAKE) -B build/asan -DADL_SANITIZE=ON >/dev/null
	@ninja -C build/asan --quiet

tsan-build: setup
	@[ -f build/tsan/build.ninja ] || $(CMAKE) -B build/tsan -DADL_TSAN=ON >/dev/null
	@ninja -C build/tsan --quiet

clang: setup
	@[ -f build/clang/build.ninja ] || CC=clang $(CMAKE) -B build/clang -DADL_SANITIZE=ON -DADL_FUZZ=ON >/dev/null
	@ninja -C build/clang --quiet

demo: build
	@tools/demo $(BUILD)

test: build asan-build clang
	@tools/test

asan: asan-build
	@tests/run --label asan build/asan/tests/test_*

bench: build
	@tools/bench $(BUILD)

check: clang
	@tools/check

fuzz: clang
	@tools/fuzz $${FUZZ_SECONDS:-300}

clean:
	rm -rf build

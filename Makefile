# The two commands are `make run` and `make test`; `make help` lists the others. The work is done by CMake
# (CMakePresets.json), scripts/ and tests/run: this file only names it.

MODEL  ?=
PORT   ?= 8000
ARGS   ?=
SLUICE := build/sluice

.PHONY: run build test test-clients bench format lint clean help packages-build packages-test packages-lint
.DEFAULT_GOAL := help

help:
	@echo 'make run     install what is missing, build, get the default model, serve it on http://127.0.0.1:$(PORT)'
	@echo '             (MODEL=path of another model, PORT=8000, ARGS="more serve options")'
	@echo 'make build   build $(SLUICE) alone'
	@echo 'make test    build (optimised, ASan+UBSan, TSan) and run every test; ends with one count line'
	@echo 'make test-clients   the SDKs and tools that people use, against build/sluice (a part of make test)'
	@echo 'make bench   measure prefill and decode speed and the limits of this machine (MODEL=, ARGS=)'
	@echo 'make format  clang-format all sources'
	@echo 'make lint    clang-format check and clang-tidy'
	@echo 'make clean   remove the build folders (the model cache stays)'

run: build
	@model='$(MODEL)'; [ -n "$$model" ] || model=$$(scripts/get-model smollm2) || exit 1; \
	exec scripts/serve-demo $(SLUICE) "$$model" '$(PORT)' $(ARGS)

build: packages-build
	@[ -f build/build.ninja ] || cmake --preset release >/dev/null
	@cmake --build build --target sluice
	@ln -sfn build/compile_commands.json compile_commands.json

test: packages-test
	@tests/run

test-clients: build packages-test
	@tests/clients/run

bench: build
	@model='$(MODEL)'; [ -n "$$model" ] || model=$$(scripts/get-model smollm2) || exit 1; \
	exec $(SLUICE) bench "$$model" --limits $(ARGS)

format: packages-lint
	@git ls-files -co --exclude-standard '*.c' '*.h' | xargs clang-format -i

lint: packages-lint
	@git ls-files '*.c' '*.h' | xargs clang-format --dry-run -Werror
	@cmake --preset debug >/dev/null
	@git ls-files 'src/*.c' | xargs -n 4 -P "$$(nproc)" clang-tidy -p build-debug --quiet --warnings-as-errors='*'

clean:
	rm -rf build build-debug build-asan build-tsan build-fuzz compile_commands.json .venv .venv-clients .venv-load

packages-build packages-test packages-lint: packages-%:
	@scripts/install-packages $*

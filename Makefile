# Everything a visitor or an engineer types. Each target first lets scripts/setup.sh find and install what it needs;
# CMakeLists.txt does the building.
PREFIX ?= /usr/local
BUILD ?= build
GOLDENS ?= ../shared/goldens
JOBS ?= $(shell nproc)
BENCH ?= --compare
comma := ,

configure = cmake -S . -B $(1) $(2) >$(1).log 2>&1 || { cat $(1).log; exit 1; }; rm -f $(1).log
compile = env -u MAKEFLAGS -u MAKELEVEL cmake --build $(1) --parallel $(JOBS)
# as CMakeLists.txt has it for its tests
asleep = env OMP_WAIT_POLICY=passive
run_tests = ctest --test-dir $(1) --output-on-failure --no-tests=error --parallel 2

.PHONY: build demo test bench asan lint format goldens fuzz conformance docs python python-env check-slow install clean

build:
	@scripts/setup.sh build
	@$(call configure,$(BUILD))
	@$(call compile,$(BUILD))

demo: build
	@$(BUILD)/mhla demo

bench: build
	@$(BUILD)/mhla bench $(BENCH)

test:
	@scripts/setup.sh test
	@$(call configure,$(BUILD))
	@$(call compile,$(BUILD)) --target tests
	@$(call run_tests,$(BUILD))
	@echo "make test: all passed"

# CC=clang: with clang's sanitizers, which see what gcc's do not, in a folder of its own. QUICK=1: without the tests of the
# program, and fewer random cases
asan_clang = $(findstring clang,$(CC))
asan_build = build-asan$(if $(asan_clang),-clang)
asan:
	@env -u CC scripts/setup.sh test
	@$(if $(asan_clang),env -u CC scripts/setup.sh fuzz)
	@$(call configure,$(asan_build),-DCMAKE_BUILD_TYPE=RelWithDebInfo -DMHLA_SANITIZE=address$(comma)undefined \
	    $(if $(asan_clang),-DCMAKE_C_COMPILER=$(CC) -DMHLA_OPENMP=OFF))
	@$(call compile,$(asan_build)) --target tests
	@$(if $(QUICK),MHLA_TEST_QUICK=1) $(call run_tests,$(asan_build)) $(if $(QUICK),-E '^cli_|^docs')

lint:
	@scripts/setup.sh lint
	@scripts/lint.sh

format:
	@scripts/setup.sh lint
	@find src cli tests bench examples python -name '*.[ch]' 2>/dev/null | xargs clang-format -i

goldens: python-env
	@scripts/setup.sh build
	@$(call configure,$(BUILD))
	@$(call compile,$(BUILD)) --target run_model
	@$(asleep) .venv/bin/python tests/goldens/goldens.py $(GOLDENS) --run-model $(BUILD)/run_model

python: build python-env
	@$(asleep) .venv/bin/python -m pytest -q python/tests

# .venv: the package as a user's pip builds it, with the one torch that the tests are written for
python-env:
	@scripts/setup.sh python
	@scripts/venv.sh

fuzz:
	@scripts/setup.sh fuzz
	@scripts/fuzz.sh $(or $(FUZZ_SECONDS),30)

conformance:
	@scripts/setup.sh conformance
	@$(call configure,$(BUILD))
	@$(call compile,$(BUILD)) --target read_file
	@python3 tests/conformance/conformance.py --read-file $(BUILD)/read_file --folder $(BUILD)/conformance $(SUITES)

docs:
	@scripts/setup.sh docs
	@scripts/docs.sh

check-slow:
	@scripts/setup.sh check-slow
	@scripts/check_slow.sh $(STAGES)

install: build
	@scripts/setup.sh run
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(abspath $(PREFIX))"

clean:
	rm -rf build build-*

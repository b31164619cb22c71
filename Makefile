# make help says what there is. Everything happens in .venv; nothing needs root but installing system packages.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

BIN := .venv/bin
# Stamps, so that a repeated `make setup` costs nothing and a changed .pyx only a compilation. What a broker
# needs, then what Spark needs, then all that tests need.
CORE := .venv/.core
SPARK := .venv/.spark
DIST := .venv/.dist
SYNCED := .venv/.synced
BUILT := .venv/.built
JAR := .venv/.jar
SPARK_CLASSES := .venv/spark-classes.jsa
KAFKA_CLASSES := build/kafka/classes.jsa
CONNECTOR := build/spark-connector/made
FRANZ := build/franz/franz
VERSITYGW := build/versitygw/versitygw-v1.8.0
JAVA := $(shell find spark_integration/jvm/java -name '*.java')
NATIVE := $(shell find shm mpbroker -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
DATA ?= data
CRASH_SEEDS ?= 1-20
# Of make dist; none: one of each version that is found.
PYTHONS ?=
# What only test-all collects: they make an environment, or kill whole queries.
LONG_ONLY := tests/spark/wheel_on_cluster.py tests/spark/sink_kills.py
LISTENERS ?= PLAINTEXT://127.0.0.1:9092

# What help lists is a command, not a file.
.PHONY: $(shell sed -nE 's/^([a-z0-9 -]+):.*## .*/\1/p' Makefile)

help: ## this list
	@sed -nE -e 's/^#### (.*)/\n\1/p' -e 's/^([a-z0-9% -]+):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 22

#### Use it

# As in the server.properties that Kafka comes with: the first consumer of a group waits for no other.
RUN_FLAGS := -o group.initial.rebalance.delay.ms=0 -o group.consumer.assignment.interval.ms=0
HTTP ?= 127.0.0.1:9644

run: $(BUILT) ## a broker on 127.0.0.1:9092, data in ./data, console and metrics on http://127.0.0.1:9644 (LISTENERS=… DATA=… HTTP=…; ARGS='-o http.console.write=true': more flags)
	@$(BIN)/mpbroker serve --listeners $(LISTENERS) --log-dirs '$(DATA)' --http '$(HTTP)' $(RUN_FLAGS) $(ARGS) || \
	  { status=$$?; [ $$status -gt 2 ] || echo 'make run: LISTENERS=, DATA=, HTTP= and ARGS= give it other flags' >&2; exit $$status; }

demo: $(BUILT) $(JAR) ## broker, kcat, and a PySpark job that reads what was just written
	PATH="$(CURDIR)/$(BIN):$$PATH" ops/demo/run.sh

pipeline: $(BUILT) $(JAR) ## a declarative pipeline of Spark on a broker of its own; goes on each time (ARGS='--kill --orders 5000')
	$(BIN)/python -m ops.demo.pipeline $(ARGS)

lake: $(SYNCED) $(BUILT) $(JAR) ## a broker with an object store (URL=s3://...: a bucket of yours) and a standby: an upload, a kill, a take-over, lost disks, a restore; the topic as a table, read by DuckDB and Polars
	@PATH="$(CURDIR)/$(BIN):$$PATH" ops/demo/lake.sh $(URL)

setup-spark: $(BUILT) $(JAR) ## .venv with what a broker and Spark need, and no more

SDIST := $(BIN)/uv build --sdist --no-build-isolation --python $(BIN)/python --out-dir dist -C=--global-option=--quiet

# With the versions that uv.lock says; wheels are built from the sdist, which proves that it is whole. The jar
# that they carry is compiled against PySpark.
dist: $(DIST) $(JAR) ## dist/: the sdist, and from it a wheel for each CPython that is here, with the jar of the JVM reader; adds PySpark to .venv
	@rm -rf dist *.egg-info
	$(SDIST)
	$(BIN)/python -m ops.setup.wheels $(addprefix --python=,$(PYTHONS)) dist/*.tar.gz

# Other wheels stay, but for an sdist that may be of other sources.
dist-aarch64: setup ## dist/: the sdist, and a wheel for aarch64 beside the others, cross compiled with packages of Debian's; root is not needed
	@rm -rf dist/*.tar.gz dist/*_aarch64.whl *.egg-info
	$(SDIST)
	$(BIN)/python -m ops.setup.cross dist/*.tar.gz

clean: ## remove .venv and all that was built; data stays
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find shm mpbroker \( -name '*.so' -o -name '*.c' -o -name '*.pyi' \) -delete
	rm -f spark_integration/jvm/*.jar

#### Work on it

setup: $(SYNCED) $(BUILT) $(JAR) $(FRANZ) $(VERSITYGW) ## .venv with all that tests and benchmarks need, native modules, jar and programs of tests built in place

SETUP := PYTHON="$(PYTHON)" ops/setup/setup.sh

$(CORE): pyproject.toml uv.lock ops/setup/setup.sh
	@$(SETUP) core
	@touch $@

# Each of these leaves alone what another one has installed.
$(SPARK): $(CORE)
	@$(SETUP) spark
	@touch $@

$(DIST): $(CORE)
	@$(SETUP) dist
	@touch $@

$(SYNCED): $(CORE)
	@$(SETUP) all
	@touch $@ $(SPARK) $(DIST)

# Compiles what has changed; headers and setup.py count as a change of every module.
$(BUILT): $(CORE) setup.py $(NATIVE)
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

# For the version of PySpark that is in .venv.
$(JAR): $(SPARK) $(JAVA) ops/setup/jvm_reader.py ops/setup/kafka_client_pom.xml
	@$(BIN)/python -m ops.setup.jvm_reader
	@touch $@

# Of tests of franz-go. Without Go, or a registry, only they fail.
$(FRANZ): $(SYNCED) $(wildcard tests/real_clients/franz/*)
	@$(BIN)/python -c 'from tests.support import client_tools; client_tools.franz_program(), client_tools.franz_tests()' || \
	  echo "setup: the programs of franz-go are not built, their tests will try again"

# Of tests of object stores; takes two minutes, once. Without Go, or a registry, only they fail.
$(VERSITYGW): | $(SYNCED)
	@$(BIN)/python -c 'from tests.support import object_store_servers; object_store_servers.versitygw_program()' || \
	  echo "setup: versitygw is not built, tests of object stores will try again"

# Of Spark's tests, for the version of PySpark and of Java that are here; without it they are slow, not wrong.
$(SPARK_CLASSES): $(SYNCED) tests/support/spark_classes.py
	@$(BIN)/python -m tests.support.spark_classes > $@.log 2>&1 && touch $@ || \
	  echo "setup: Spark's class-data archive is not made, see $@.log"

# Of tests with Kafka's tools and brokers: the first one would make it, while others wait for that.
$(KAFKA_CLASSES): $(SYNCED) tests/support/class_archive.py ops/bench/kafka/pom.xml
	@mkdir -p $(@D)
	@$(BIN)/python -m tests.support.class_archive > $@.log 2>&1 && touch $@ || \
	  echo "setup: Kafka's class-data archive is not made, see $@.log; tests will try again"

# Spark's own Kafka connector, 10 MB from Maven Central. Tests compare our source with it.
$(CONNECTOR): ops/bench/connector/pom.xml | $(SYNCED)
	@mkdir -p build
	@$(BIN)/python -m ops.bench.connector > build/spark-connector.log 2>&1 || \
	  echo "setup: Spark's Kafka connector is not fetched, see build/spark-connector.log; its test will try again"

# Python keeps what it compiles, wherever it was told not to: hundreds of processes would compile it anew.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
# Most tests wait for processes: three at a time for each core, and one more. A file's tests stay together, and
# files run in the order that tests/support/kinds.py gives them.
# tests/ops is about documents, benchmarks and builds.
NO_UNITS := $(addprefix --ignore=tests/,network/acceptor chaos ops real_clients spark)
BY_FILES := --dist loadfile --no-loadscope-reorder
PARALLEL := --numprocesses $$((3 * $$(nproc) + 1)) $(BY_FILES)
# Units wait for little, and for no disk; each process has to import all of them.
FAST := --numprocesses $$((2 * $$(nproc))) $(BY_FILES)

test: setup $(SPARK_CLASSES) $(KAFKA_CLASSES) $(CONNECTOR) ## every test in its short form; ends with what it left out (ARGS='tests/config -k units', ARGS=-n0: one by one)
	$(PYTEST) $(PARALLEL) $(ARGS)

test-fast: setup ## the loop while working: unit tests alone
	$(PYTEST) $(FAST) -m 'unit and not soak' $(NO_UNITS) $(ARGS)

# The number alone decides: what fails is for `make test` to say. Each fork writes a file of what it ran, which
# belongs in memory. Of examples few run other lines than the first.
coverage: setup ## how much of the Python code unit tests run (by module: build/coverage.txt); fails below the floor in pyproject.toml
	@export COVERAGE_FILE=$$(mktemp -d -p /dev/shm)/data; trap 'rm -rf "$${COVERAGE_FILE%/data}"' EXIT; set -o pipefail; \
	  $(BIN)/coverage run -m pytest $(FAST) --hypothesis-profile=coverage -m 'unit and not soak' $(NO_UNITS) $(ARGS); \
	  $(BIN)/coverage combine --quiet && $(BIN)/coverage report --sort=cover | tee build/coverage.txt | tail -n 1

test-all: setup $(SPARK_CLASSES) $(KAFKA_CLASSES) $(CONNECTOR) ## every test in its long form; takes hours (ARGS=tests/log: those of one place)
	$(PYTEST) $(PARALLEL) --long $(or $(ARGS),tests $(LONG_ONLY))

test-dist: setup dist ## a broker from each file of dist/, unit tests on each Python that pyproject.toml names, the steps of the Containerfile
	$(BIN)/python -m pytest tests/ops/dist_files.py tests/ops/container_files.py $(ARGS)

test-aarch64: dist-aarch64 ## the wheel for aarch64 on an emulated processor: units, and a broker that is killed; up to an hour
	$(BIN)/python -m pytest tests/ops/aarch64_wheel.py $(ARGS)

test-asan: setup ## unit tests of native modules that are built with sanitizers: addresses, undefined behaviour
	$(BIN)/python -m ops.setup.sanitizers $(ARGS)

# With new seeds each time, or as many as you like; each has a short form in make test.
chaos := tests.chaos.run --full --pairs 2
fuzz := tests.network.fuzz
histories := tests.support.partition_walk
flips := tests.support.flips
power-cuts := pytest --long tests/log/test_power_cut.py --show-capture=no
adopt := tests.real_clients.left_behind
explore = pytest $(PARALLEL) --hypothesis-profile=explore -m hypothesis
power-cuts: export CRASH_SEEDS := $(CRASH_SEEDS)

chaos fuzz histories flips power-cuts adopt explore: setup ## soaks: CONTRIBUTING.md says what they do (ARGS='--first 0 --seeds 2000', CRASH_SEEDS=1-20)
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m $($@) $(ARGS)
	$(if $(filter chaos,$@),$(BIN)/python -m tests.chaos.run_transactions --kills 5 --pairs 1 --log-workers 2)
	$(if $(filter fuzz,$@),$(BIN)/python -m tests.security.fuzz $(ARGS))
	$(if $(filter fuzz,$@),$(BIN)/python -m tests.network.hostile $(ARGS))

# Python.h defines _GNU_SOURCE before the headers are included.
lint: setup ## ruff, formatting, cython-lint, C warnings, strict mypy
	$(BIN)/python -m ops.setup.stubs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PATH="$(CURDIR)/$(BIN):$$PATH" cython-lint mpbroker shm
	$${CC:-cc} -fsyntax-only -Wall -Wextra -Werror -D_GNU_SOURCE= -I. -xc $(filter %.h,$(NATIVE)) ops/bench/native/load.c
	$(BIN)/mypy

fmt: setup ## rewrite the sources as lint wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

#### Measure it

figures: setup ## every figure of README and PERFORMANCE: measured, recorded in docs/figures.json, written into the pages (ARGS='--only start')
	$(BIN)/python -m ops.bench.figures $(ARGS)

bench bench-kafka: setup ## requests a second, latencies and CPU of this broker; beside Apache Kafka in the same run
	$(BIN)/python -m ops.bench.run $(if $(filter bench-kafka,$@),--kafka) $(ARGS)

# docs/PERFORMANCE.md says what each measures, and when it fails.
bench-%: setup ## one of beside, check, clients, groups, growth, lake, quotas, security, spark, spark-stream, start, tier, transactions
	$(BIN)/python -m ops.bench.$(subst -,_,$*) $(ARGS)

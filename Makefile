# What a developer does, by name. `make` lists it; every target sets up what it needs first.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup
PACKAGES := kafka_lake examples kafka_lake_tests benchmarks .ci/mkdocs_hooks.py
NEWEST := .venv-newest
EXTRAS := s3,java,protobuf,postgres,glue,hive,kubernetes
TOLD := confluent-kafka|dagster|dagster-pyspark|pyarrow|pydantic|pyiceberg|pyspark

# Each process of the tests and the demo would compile all that it imports anew: ten seconds of it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## Install Python packages and jars (at once when nothing changed)

$(STAMP): requirements.lock pyproject.toml kafka_lake/engine/ivy.xml
	@python=; for name in python3.13 python3.12 python3.11 python3; do \
	  if $$name -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then \
	    python=$$name; break; fi; done; \
	if [ -z "$$python" ]; then \
	  echo "No Python 3.11, 3.12 or 3.13 with its venv module is on the PATH: install one and run make again." >&2; \
	  exit 1; fi; \
	echo "Setting up $(VENV) with $$($$python --version): the Python packages, then the jars. Once only; takes minutes."; \
	[ -x $(BIN)/python ] || $$python -m venv $(VENV)
	@# The lock is complete, and pip's check for hashes fails on packages with extras unless it has --no-deps.
	@if command -v uv >/dev/null; then \
	  VIRTUAL_ENV=$(VENV) uv pip install --quiet --no-deps --require-hashes -r requirements.lock && \
	  VIRTUAL_ENV=$(VENV) uv pip install --quiet --no-deps --no-build-isolation -e .; \
	else \
	  $(BIN)/python -m pip install --quiet --no-compile --no-deps --require-hashes -r requirements.lock && \
	  $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .; \
	fi
	@$(BIN)/python -m kafka_lake.engine.jars
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Kafka to Iceberg on this machine: broker, orders, a run, the tables (AVRO=1: also a topic in Avro, CDC=1: also a database, MANY=1: also many tables of one topic, and derived tables)
	@$(BIN)/python -m examples.pizza_shop demo $(if $(AVRO),--avro) $(if $(CDC),--cdc) $(if $(MANY),--many)

.PHONY: dev
dev: $(STAMP) ## The local stack with live records and Dagster's UI, until Ctrl-C (S3=1: tables in S3 with a REST catalog)
	@$(BIN)/python -m examples.pizza_shop live $(if $(S3),--s3)

.PHONY: unit
unit: $(STAMP) ## Unit tests: pure code, without a JVM or other processes
	@$(BIN)/pytest -n 2 --dist worksteal -m "not exhaustive and not processes and not slow" kafka_lake_tests/unit

.PHONY: decode
decode: $(STAMP) ## Tests of decoding in Spark, without topics and brokers
	@$(BIN)/pytest -n 2 --dist loadfile -m "not exhaustive" kafka_lake_tests/decode

.PHONY: e2e
e2e: $(STAMP) ## Tests of Dagster itself, and of the demo, on real servers
	@$(BIN)/pytest -n 2 --dist loadfile -m "not exhaustive" --durations=10 --durations-min=5 kafka_lake_tests/e2e

# Three at a time, each with its own broker and Spark: one of them mostly waits. The second line needs processes of
# their own: one that has spoken to a Connect server can't start a Spark of its own any more. Its long files begin.
define pytest
	@$(BIN)/pytest -n 3 --dist worksteal -m "$(1)" --durations=40 --durations-min=5 $(addprefix kafka_lake_tests/,integration decode unit fuzz contract)
	@$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "$(1)" --durations=20 --durations-min=5 $(addprefix kafka_lake_tests/,chaos e2e)
endef

.PHONY: test
test: $(STAMP) ## The tests: each promise on real servers
	$(call pytest,not exhaustive and not contract)
	@$(BIN)/python -m kafka_lake.engine.jars aws postgresql
	@$(BIN)/pytest -n 2 --dist each --pair rest_s3,postgres_s3 -m "every_pair and not exhaustive" $(addprefix kafka_lake_tests/,contract integration decode)

.PHONY: exhaustive
exhaustive: $(STAMP) ## Longer tests of the same promises, and the tutorial; part of `make nightly`
	$(call pytest,exhaustive)

.PHONY: contract
contract: $(STAMP) ## The servers and settings that users have: authentication, catalogs, storage, Dagster, Spark (PAIRS="rest_s3 glue_s3")
	@$(BIN)/pytest -n 2 --dist loadfile -m "contract and not in_contract" --durations=20 --durations-min=5 kafka_lake_tests/contract
	@$(BIN)/python -m kafka_lake_tests.contract $(PAIRS)

.PHONY: newest
newest: $(STAMP) ## Unit tests and a short integration test with the newest versions that pyproject.toml allows
	@rm -rf $(NEWEST) && $(BIN)/python -m venv $(NEWEST)
	@# pip looks for minutes at versions of what S3 needs, one after another.
	@if command -v uv >/dev/null; then \
	  VIRTUAL_ENV=$(NEWEST) uv pip install --quiet --compile-bytecode --editable '.[$(EXTRAS)]' --group dev; \
	else \
	  $(NEWEST)/bin/python -m pip install --quiet --upgrade pip && \
	  $(NEWEST)/bin/python -m pip install --quiet --editable '.[$(EXTRAS)]' --group dev; \
	fi
	@$(NEWEST)/bin/python -m pip list | grep -Ei '^($(TOLD)) '
	@$(NEWEST)/bin/python -m kafka_lake.engine.jars
	@$(NEWEST)/bin/pytest -n 2 --dist worksteal $(addprefix kafka_lake_tests/,unit integration/test_ingest.py)

.PHONY: chaos
chaos: MINUTES ?= 10
chaos: $(STAMP) ## Faults at random on real systems, then a count of every record (MINUTES=10 SEED= BROKERS=1 FAULTS= CDC=1: a database)
	@$(BIN)/python -m kafka_lake_tests.chaos --minutes $(MINUTES) $(if $(CDC),--cdc) $(addprefix --seed ,$(SEED)) $(addprefix --brokers ,$(BROKERS)) $(if $(FAULTS),--faults "$(FAULTS)")

.PHONY: fuzz
fuzz: N ?= 100000
fuzz: SEED ?= 1
fuzz: $(STAMP) ## Random inputs through the decoders, compared with an independent decoder (N=100000 SEED=1)
	@$(BIN)/python -m kafka_lake_tests.fuzz --inputs $(N) --seed $(SEED)

.PHONY: mutants
mutants: $(STAMP) ## Small changes to the code, one at a time: does a unit test fail? Takes an hour
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m kafka_lake_tests.mutants

.PHONY: nightly
nightly: $(STAMP) ## All long tests: more cases, contract, wheel, scale, newest versions, verification
	@$(MAKE) exhaustive
	@$(BIN)/pytest -n 2 --hypothesis-profile random kafka_lake_tests/unit
	@$(MAKE) contract
	@$(BIN)/pytest -n 2 --dist loadfile kafka_lake_tests/nightly
	@$(MAKE) newest
	@$(MAKE) verification

.PHONY: verification
verification: $(STAMP) ## The verification tests; each result goes into docs/verification.md (LANES="chaos soak")
	@$(BIN)/python -m kafka_lake_tests.report $(LANES)

.PHONY: races
races: RACES ?= 1000
races: $(STAMP) ## Runs race for one table; each race must have one winner (RACES=1000 PAIR=rest_files)
	@$(BIN)/python -m kafka_lake_tests.chaos.races --races $(RACES) $(addprefix --pair ,$(PAIR))

.PHONY: bench
bench: N ?= 5000000
bench: DIRTY_N ?= 500000
bench: REPEATS ?= 3
bench: $(STAMP) ## Throughput compared with the machine's limits, and with bad records (N=5000000 DIRTY_N=500000 REPEATS=3)
	@$(BIN)/python -m benchmarks throughput --records $(N) --repeats $(REPEATS)
	@$(BIN)/python -m benchmarks dirty --records $(DIRTY_N) --repeats $(REPEATS)

.PHONY: bench-peers
bench-peers: N ?= 5000000
bench-peers: REPEATS ?= 3
bench-peers: $(STAMP) ## The same, compared with the Iceberg sink of Kafka Connect (N=5000000 REPEATS=3 KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks throughput --peers --records $(N) --repeats $(REPEATS) $(if $(KEEP),--keep)

.PHONY: bench-matrix
bench-matrix: N ?= 1000000
bench-matrix: REPEATS ?= 3
bench-matrix: $(STAMP) ## Cost of formats, layouts, rules and more tables, relative to declared JSON (N=1000000 REPEATS=3 CASE="4 rules" KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks matrix --records $(N) --repeats $(REPEATS) $(if $(CASE),--case "$(CASE)") $(if $(KEEP),--keep)

.PHONY: bench-anchors
bench-anchors: N ?= 1000000
bench-anchors: REPEATS ?= 3
bench-anchors: $(STAMP) ## Records and dollars per core, beside Flink, Arrow, PyIceberg and a process without guarantees (N=1000000 REPEATS=3 KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks anchors --records $(N) --repeats $(REPEATS) $(if $(KEEP),--keep)

.PHONY: bench-dirty
bench-dirty: N ?= 1000000
bench-dirty: REPEATS ?= 2
bench-dirty: $(STAMP) ## With bad records, compared with the same sink (N=1000000 REPEATS=2 KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks dirty --peers --records $(N) --repeats $(REPEATS) $(if $(KEEP),--keep)

.PHONY: bench-ratio
bench-ratio: $(STAMP) ## CPU of an ingest relative to an Arrow loop over the same records (KEEP=1: store it for `make nightly`)
	@$(BIN)/python -m benchmarks ratio $(if $(KEEP),--keep)

.PHONY: bench-small
bench-small: N ?= 400
bench-small: $(STAMP) ## CPU of commits of a few records, by process: Spark in this process, and by a Connect server (N=400)
	@$(BIN)/python -m benchmarks small --records $(N)

.PHONY: bench-store
bench-store: N ?= 400
bench-store: $(STAMP) ## Requests and seconds of small commits to S3, each request 30 ms late (N=400 KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks store --records $(N) $(if $(KEEP),--keep)

.PHONY: bench-startup
bench-startup: REPEATS ?= 3
bench-startup: $(STAMP) ## Seconds of commands, imports and loading, with 1 and 300 topics (REPEATS=3 KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks startup --repeats $(REPEATS) $(if $(KEEP),--keep)

.PHONY: bench-freshness
bench-freshness: SECONDS_EACH ?= 100
bench-freshness: $(STAMP) ## Seconds from a record to its row: by the sensor, and continuous (SECONDS_EACH=100 KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks freshness --seconds $(SECONDS_EACH) $(if $(KEEP),--keep)

.PHONY: bench-fresh
bench-fresh: SECONDS_EACH ?= 60
bench-fresh: $(STAMP) ## Fresh reads: seconds from a record to a query that sees it, and reads of an unread tail (SECONDS_EACH=60 KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks fresh --seconds $(SECONDS_EACH) $(if $(KEEP),--keep)

.PHONY: bench-compaction
bench-compaction: SECONDS_EACH ?= 300
bench-compaction: $(STAMP) ## Seconds from a record to its row while files are compacted, and commits that were refused (SECONDS_EACH=300 KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks compaction --seconds $(SECONDS_EACH) $(if $(KEEP),--keep)

.PHONY: bench-backlog
bench-backlog: N ?= 20000000
bench-backlog: $(STAMP) ## A long backlog: memory over time, a run killed halfway, each offset counted (N=20000000 KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks backlog --records $(N) $(if $(KEEP),--keep)

.PHONY: bench-workers
bench-workers: N ?= 5000000
bench-workers: REPEATS ?= 3
bench-workers: $(STAMP) ## Records per second by a Spark cluster of 1, 2 and 4 workers (N=5000000 REPEATS=3 KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks workers --records $(N) --repeats $(REPEATS) $(if $(KEEP),--keep)

.PHONY: bench-upsert
bench-upsert: N ?= 1000000
bench-upsert: CHANGES ?= 10000
bench-upsert: $(STAMP) ## Changes into an upsert table of N rows: recent keys, keys at random, each row compared (N=1000000 CHANGES=10000 TEXT=1: text keys, KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks upsert --rows $(N) --changes $(CHANGES) --no-through-kafka $(if $(TEXT),--text-keys) $(if $(KEEP),--keep)

.PHONY: bench-debezium-server
bench-debezium-server: N ?= 1000000
bench-debezium-server: $(STAMP) ## The same changes by debezium-server-iceberg, whose release is unpacked in a folder (DEBEZIUM_SERVER=/path N=1000000 KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks debezium-server --release $(DEBEZIUM_SERVER) --rows $(N) $(if $(KEEP),--keep)

.PHONY: bench-hot
bench-hot: MINUTES ?= 60
bench-hot: $(STAMP) ## An upsert table under constant change with its maintenance on: merges, memory, files over the time (MINUTES=60)
	@$(BIN)/python -m benchmarks hot --minutes $(MINUTES)

.PHONY: bench-maintenance
bench-maintenance: COMMITS ?= 302400
bench-maintenance: MINUTES ?= 120
bench-maintenance: $(STAMP) ## Seven days of commits by a fast writer with maintenance on, or as many as MINUTES=120 give: commit and planning time
	@$(BIN)/python -m benchmarks maintenance --commits $(COMMITS) --minutes $(MINUTES) $(if $(KEEP),--keep)

.PHONY: soak
soak: MINUTES ?= 60
soak: $(STAMP) ## Ten topics with rules, routes, maintenance and kills now and then; each record is compared (MINUTES=60 KEEP=1: into docs/ too)
	@$(BIN)/python -m benchmarks soak --minutes $(MINUTES) $(if $(KEEP),--keep)

.PHONY: lint
lint: $(STAMP) ## Style, format, types, import rules, that each test can be loaded, generated pages, the links of the documentation
	@$(BIN)/ruff check $(wildcard $(PACKAGES))
	@$(BIN)/ruff format --check $(wildcard $(PACKAGES))
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@# mypy doesn't read the tests: one that names what has moved would be seen only when it runs.
	@found=$$($(BIN)/pytest --collect-only --quiet --quiet kafka_lake_tests 2>&1) || { echo "$$found" | tail -40; exit 1; }
	@$(BIN)/pytest -q -n 2 --dist worksteal kafka_lake_tests/meta
	@# With --quiet, strict would be without effect: warnings that aren't logged aren't counted.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: docs
docs: $(STAMP) ## Build the documentation site into site/; a dead link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open $(abspath site/index.html) in a browser."

PLAYWRIGHT := playwright-core@1.65.1

.PHONY: screenshots
screenshots: $(STAMP) ## Take the pictures of Dagster's pages again (needs Node.js, npm and Chromium, whose path is CHROMIUM=; CDC=1, MANY=1: also pictures of more topics)
	@command -v npm >/dev/null || { echo "make screenshots needs Node.js with npm, and Chromium." >&2; exit 1; }
	@[ -x "$${CHROMIUM:-/usr/bin/chromium}" ] || { echo "make screenshots needs Chromium: set CHROMIUM to its program." >&2; exit 1; }
	@# 14 MB, beside the environment; it drives the browser that is there, and brings none.
	@npm install --silent --no-save --no-audit --no-fund --prefix $(VENV)/screenshots $(PLAYWRIGHT)
	@NODE_PATH=$(abspath $(VENV))/screenshots/node_modules $(BIN)/python .ci/screenshots/take.py

.PHONY: format
format: $(STAMP) ## Fix style and format
	@$(BIN)/ruff check --fix $(wildcard $(PACKAGES))
	@$(BIN)/ruff format $(wildcard $(PACKAGES))

COMMA := ,
COMPILE := uv pip compile --universal --generate-hashes --no-strip-extras --no-emit-index-url --no-emit-find-links \
  --no-header --no-annotate --python-version 3.11

.PHONY: lock
lock: ## Write requirements.lock and the others again (needs uv)
	$(COMPILE) --group dev $(addprefix --extra ,$(subst $(COMMA), ,$(EXTRAS))) \
	  pyproject.toml -o requirements.lock
	$(COMPILE) $(addprefix --extra ,s3 protobuf postgres kubernetes) --constraint requirements.lock \
	  pyproject.toml -o deploy/requirements.lock
	$(COMPILE) kafka_lake_tests/contract/readers.in -o kafka_lake_tests/contract/readers.lock

.PHONY: clean
clean: ## Remove the files that the targets created in this clone (the user's download cache stays)
	rm -rf $(VENV) $(NEWEST) .kafka_lake build dist site *.egg-info spark-warehouse metastore_db derby.log artifacts mutants \
	  .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .tmp_dagster_home*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

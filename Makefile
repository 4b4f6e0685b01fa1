# Every target sets up what it needs first; `make setup` ends at once when nothing changed.
.PHONY: help setup setup-spark run check test test-ours test-virtual long bench bench-quick crash kill soak year sweep reference lock clean
.DEFAULT_GOAL := help

PYTHON := $(shell for python in python3 python3.13 python3.12 python3.11; do \
  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv/bin
export PYTHONHASHSEED := 0

help:
	@echo "make run    kill a Spark pipeline and its broker again and again: each row counts once"
	@echo "make test   the checks and the tests, but for those of make long"
	@echo "make check  ruff, mypy, import directions and the rules of the house"
	@echo "make bench  speed, as ratios to peers (raw numbers in bench/results)"
	@echo "make bench-quick  the headlines of speed in five minutes, held against the kept figures"
	@echo "make long   the tests that make test leaves out because they take long"
	@echo "make crash  a long campaign of simulated power cuts"
	@echo "make kill   a long campaign of kill -9 under load"
	@echo "make sweep  all calls of the client, cancelled at each wait, and all its requests, each struck once"
	@echo "make year   many years of a broker, of sleeping sessions and of the Spark ledger, in virtual time"
	@echo "make soak   an hour of mixed load: memory, descriptors, threads and disk stay flat"
	@echo "make reference  write the pages of all settings anew"
	@echo "make lock   write the lock files anew"

setup:
	@test -n "$(PYTHON)" || { echo "Onceflow needs Python 3.11 or later on the PATH" >&2; exit 1; }
	@$(PYTHON) -m tools.setup

setup-spark: setup
	@$(PYTHON) -m tools.setup spark

run: setup-spark
	@$(VENV)/onceflow demo

check: setup-spark
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(VENV)/python -m pytest -q tests/tidy

# Most lots wait as much as they compute: for programs that others wrote, for timeouts, for what they
# have killed. So they run at once, the longest first. What only computes, and looks at no clock,
# has what they leave of the processors.
LOTS := test-spark test-client test-units-1 test-units-2 test-computing test-groups test-broker \
  test-spark-processes
JOBS := 5
.PHONY: $(LOTS)
test: setup-spark
	@$(MAKE) --no-print-directory --keep-going --jobs $(JOBS) --output-sync=target $(LOTS)

test-computing:
	@nice -n 10 $(MAKE) --no-print-directory check test-virtual

PYTEST := $(VENV)/python -m pytest -q --durations=10 -p no:cacheprovider
# Rules and simulated worlds: time in there is virtual.
VIRTUAL := tests/property tests/sim
test-virtual:
	$(PYTEST) $(VIRTUAL)
# All else of our own, in two parts.
NOT_UNITS := $(addsuffix /,$(VIRTUAL) $(addprefix tests/,tidy interop spark __pycache__))
UNITS := $(patsubst %/,%,$(filter-out $(NOT_UNITS),$(wildcard tests/*/)))
test-units-1 test-units-2: test-units-%:
	ONCEFLOW_PART=$*/2 $(PYTEST) $(UNITS)
test-ours:
	$(PYTEST) $(UNITS) $(VIRTUAL)
# Our client with brokers of others: on its own and on clusters; then in groups and sessions.
OUR_CLIENT := tests/interop/client
GROUP_TESTS := $(filter-out %/test_cluster.py,\
  $(wildcard $(addsuffix /test_*.py,$(addprefix $(OUR_CLIENT)/,consumer session two_phase))))
test-client:
	$(PYTEST) $(OUR_CLIENT) $(addprefix --ignore=,$(GROUP_TESTS))
test-groups:
	$(PYTEST) $(GROUP_TESTS)
# Our broker with clients of others.
test-broker:
	$(PYTEST) tests/interop --ignore=$(OUR_CLIENT)
# One process has one Spark, and tests/interop has one with other settings. These start Sparks as
# processes of their own, and wait for them.
SPARK_PROCESSES := $(addprefix tests/spark/,\
  test_demo.py test_other_python.py pipeline/test_cli.py pipeline/test_kills.py)
test-spark:
	$(PYTEST) tests/spark $(addprefix --ignore=,$(SPARK_PROCESSES))
test-spark-processes:
	$(PYTEST) $(SPARK_PROCESSES)

long: setup-spark
	$(PYTEST) -m long
	ONCEFLOW_DOSE=whole $(PYTEST) $$(grep -lr --include='test_*.py' hypothesis tests/property tests/unit)

bench: setup-spark
	$(VENV)/python -m bench.records
	$(VENV)/python -m bench.log
	$(VENV)/python -m bench.broker
	$(VENV)/python -m bench.transactions
	$(VENV)/python -m bench.ceiling
	$(VENV)/python -m bench.client
	$(VENV)/python -m bench.session
	$(VENV)/python -m bench.spark
	$(VENV)/python -m bench.flink

bench-quick: setup
	$(VENV)/python -m bench.headlines

crash: setup
	$(VENV)/python -m tests.sim.log.campaign
	$(VENV)/python -m tests.sim.txn.campaign
	$(VENV)/python -m tests.sim.client.campaign --seeds 300

kill: setup-spark
	$(VENV)/python -m tests.kill.campaign --kills 100
	$(VENV)/python -m tests.kill.client_campaign --kills 20
	$(VENV)/python -m tests.kill.session_campaign --kills 200
	$(VENV)/python -m tests.kill.spark_campaign --kills 100

sweep: setup-spark
	$(VENV)/python -m tests.sim.sweeps.sending
	$(VENV)/python -m tests.sim.sweeps.consumers
	$(VENV)/python -m tests.sim.sweeps.listeners
	$(VENV)/python -m tests.sim.sweeps.sessions

year: setup-spark
	$(VENV)/python -m tests.sim.years.broker --years 40
	$(VENV)/python -m tests.sim.years.sessions --seeds 60
	$(VENV)/python -m tests.sim.years.ledger --seeds 300

soak: setup
	$(VENV)/python -m tests.soak.run --minutes 60

reference: setup-spark
	$(VENV)/python -m tools.write_reference

# Universal locks: one file for all supported versions of Python.
LOCK := $(VENV)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-annotate --no-header
lock: setup
	$(LOCK) --upgrade --extra dev --extra console pyproject.toml -o requirements.lock
	$(LOCK) --upgrade --extra spark -c requirements.lock pyproject.toml -o requirements-spark.lock
	$(LOCK) --upgrade requirements-java.in -o requirements-java.lock
	$(LOCK) --upgrade requirements-flink.in -o requirements-flink.lock
	$(LOCK) --upgrade requirements-kafka-python-2.in -o requirements-kafka-python-2.lock

clean:
	rm -rf .venv .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache bench/results

# The house in one place. `make` alone says what there is.
# PYTHON=...  the interpreter for .venv (else the first good one of python3, python3.13, python3.12)
# SAMPLE=20   one in 20 of the tests of `make verify`: others for each commit
# SEEDS=...   how many schedules `make sim` tries
# ARGS=...    more arguments for pytest in `make test`, for the scripts of `make bench`, for `tenure demo` in `make demo`
# REVISION=2 the packaging's own number in `make deb` (else 1)
# SHORT=1     `make bench-leases` in under 50 s, `make nfs-lab` and `make test-s3` with a few scenarios, `make bench-idle` without the largest rows

SHELL    := /bin/bash
VENV     := .venv
BIN      := $(VENV)/bin
STAMP    := $(VENV)/.installed
PACKAGES := tenure tui auditor appliance timeagent
SUITES   := $(wildcard $(addprefix tests/,unit property faults golden tui simulation))
# What the native core takes part in: `make verify` runs it with Python in its place too.
BY_PYTHON := $(wildcard tests/golden tests/unit/test_lease_*.py tests/unit/test_shard_*.py tests/unit/test_witness*.py tests/unit/test_merkle.py tests/unit/test_auditor_*.py tests/property/test_lease_*.py)
# Two for each processor: half of the time a test waits.
WORKERS  := $(shell n=$$(( 2 * $$(nproc) )); echo $$(( n < 8 ? n : 8 )))
PYTEST   := $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
ARGS     ?=
SEEDS    ?= 10000

# Tests start hundreds of programs: what each of them loads is compiled once, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test verify check fmt man deb wheels test-deb test-s3 bench bench-tui bench-leases bench-idle nfs-lab maintenance sim bench-sim clean

help: ## say what there is
	@echo 'tenure: make TARGET'
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1|\2/p' Makefile | while IFS='|' read -r t d; do printf '%-13s %s\n' "$$t" "$$d"; done

install: $(STAMP) ## make .venv with everything in it; .venv/bin/tenure is the command

# An interpreter counts when it runs, is new enough and can make virtual environments: a name on PATH proves nothing.
$(STAMP): pyproject.toml constraints.txt $(wildcard native/*)
	@good() { "$$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; }; \
	if good $(BIN)/python; then exit 0; fi; \
	for candidate in $(PYTHON) python3 python3.13 python3.12; do \
	    if good "$$candidate"; then \
	        echo "install: $(VENV) with $$candidate ($$("$$candidate" -V))"; \
	        exec "$$candidate" -m venv --clear $(VENV); \
	    fi; \
	done; \
	{ echo 'install: no Python 3.12 or newer that can make a virtual environment.'; \
	  echo "install: tried, in this order: $(strip $(PYTHON) python3 python3.13 python3.12)"; \
	  echo 'install: install one (Debian 13, Ubuntu 24.04: apt install python3 python3-venv;'; \
	  echo 'install: Fedora, RHEL: dnf install python3.12), or name it: make install PYTHON=/path/to/python3.12'; } >&2; \
	exit 1
	@echo 'install: dependencies as pinned in constraints.txt'
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt pip
	@$(BIN)/python -m pip install -qq -c constraints.txt --group dev
	@$(BIN)/python -m pip install -qq -c constraints.txt --no-build-isolation --editable .
	@touch $@
	@echo "install: core: $$($(BIN)/python -c 'from timeagent import core; print(core.said())')"
	@echo 'install: done; the command is $(BIN)/tenure'

demo: install ## run a cluster on this machine, then audit it
	@$(BIN)/tenure demo $(ARGS)

test: install ## run the tests: unit, property, faults, golden, tui, a short simulation
	@$(PYTEST) -m 'not slow and not lab and not verify' $(SUITES) $(ARGS)

verify: install ## run the slow tests: planted wrong steps, all interleavings of small casts, more examples, Python for the core (SAMPLE=20: one in 20)
	@$(PYTEST) --hypothesis-profile=full -m '(verify or hypothesis) and not slow and not lab' $(if $(SAMPLE),--sample $(SAMPLE)) $(SUITES) $(ARGS)
	@TENURE_CORE=python $(PYTEST) -m 'not slow and not lab and not verify' $(if $(SAMPLE),--sample $(SAMPLE)) $(BY_PYTHON) $(ARGS)

# All of them run, also when one fails: one call says everything there is to repair.
check: install ## check format, lint, types, layers and the repository as a text
	@failed=; \
	step() { name=$$1; shift; echo "check: $$name"; "$(BIN)/$$@" || failed="$$failed $$name"; }; \
	step format ruff format --check --output-format concise .; \
	step lint ruff check .; \
	step types mypy $(PACKAGES) tests release; \
	step layers lint-imports --no-logo; \
	step circles python -m tests.support.circles $(PACKAGES); \
	step tidy python -m pytest -q -p no:xdist --no-header tests/unit/test_tidy.py -k repository; \
	if [ -n "$$failed" ]; then echo "check: failed:$$failed (make fmt repairs what is safe to repair)" >&2; exit 1; fi; \
	echo 'check: good'

fmt: install ## format, and repair what can be repaired safely
	@$(BIN)/ruff check -q --fix-only .
	@$(BIN)/ruff format .

man: install ## make man pages and completions, below dist/share
	@$(BIN)/python -m release.manual dist/share

deb: install ## make the Debian package, below dist
	@$(BIN)/python -m release.deb dist $(if $(REVISION),--revision $(REVISION))

wheels: install ## make what the package index gets, below dist: sources, and a wheel with the core for x86_64 and for aarch64
	@$(BIN)/python -m release.wheels dist

# Each test says why it is skipped where this machine cannot do it.
test-deb: install ## install the package in containers, boot systemd in them, follow the README (superuser, minutes)
	@$(BIN)/python -m pytest -q tests/packages $(ARGS)

bench: install ## compare with what one would use instead, in one run, as ratios
	@for script in tests/bench/bench_*.py; do echo "bench: $$script"; $(BIN)/python $$script $(ARGS) || exit 1; done

bench-tui: install ## what the live screen costs: first paint, a key, memory, 4 Hz with ten thousand leases
	@$(BIN)/python -m tests.bench.bench_tui $(ARGS)
	@$(BIN)/python -m tests.bench.bench_tui_keys
	@$(BIN)/python -m tests.bench.bench_tui_record $(ARGS)

bench-leases: install ## compare leases with etcd, ZooKeeper, Redis; exit 0 only when every ratio stands
	@$(BIN)/python -m tests.bench.leases.run $(if $(SHORT),--short) $(ARGS)

bench-idle: install ## what idle logs cost, by logs and nodes: directories opened a second; exit 0 only below 0.2 each, 1 % of a core
	@SHORT=$(SHORT) $(BIN)/python tests/bench/bench_idle.py $(ARGS)

# The servers are installed below dist/s3 when they are first wanted; a test says why it is skipped without one.
test-s3: install ## run the demo, its faults, killed writers and the audit in object stores on this machine (SHORT=1: under 50 s)
	@$(BIN)/python -m tests.s3.servers
	@$(BIN)/python -m pytest -q $(if $(SHORT),-n 2 --dist worksteal -m 'not slow') tests/s3 $(ARGS)

nfs-lab: install ## play the scenarios on real NFS, in virtual machines; exit 0 only when every promise held
	@$(BIN)/python -m tests.nfs_lab.run $(if $(SHORT),--short) $(ARGS)

maintenance: install ## restart, upgrade, rotate, change, move, count anew, let in and out under holders; exit 0 only when none lost a lease (SHORT=1)
	@$(BIN)/python -m tests.faults.maintenance $(if $(SHORT),--short) $(ARGS)

sim: install ## try the promises in SEEDS schedules; exit 0 only when clean
	@$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) $(ARGS)

bench-sim: install ## simulated port operations a second on one core
	@$(BIN)/python -m tests.simulation.run --bench

clean: ## remove .venv, caches and what was built
	@rm -rf $(VENV) dist tenure/_core.abi3.so .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find $(PACKAGES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo 'clean: done'

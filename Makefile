# make run     start the gateway, e.g. make run ARGS="--upstream http://127.0.0.1:8000/v1"
# make demo    show a compaction in some seconds, without a model and without a key
# make test    the test suite without what starts processes, e.g. make test ARGS="tests/through -x"
# make test-system   processes, workers, replicas, kill -9, drains, chromium, nginx, and long sessions on a Redis
# make test-exhaustive   full products of parameters where `make test` runs pairwise covers, and more examples
# make golden   write what is missing in tests/golden and tests/surface/recordings; nothing is overwritten
# make check   format, lint, types, import rules; under a minute
# make test-agents   real agents, installed from npm and PyPI into .agents, at work behind the gateway
# make bench   speed and economics
# make screenshots   the pictures of README and docs/page.md, with Debian's chromium
# make count   Python calls and files that one request goes through
# make lock    renew both lock files
# make lock-agents   renew the lock files of the agents
# make clean   caches and builds; `.venv` and your data in `.gateway` stay

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
SOURCES = gateway tests scripts $(wildcard bench)
# Nothing is built with dependencies from the network: the lock files hold the build backend, too.
INSTALL_SELF := $(PIP) install --no-deps --no-build-isolation --editable .

.PHONY: run demo test golden test-system test-exhaustive test-agents install-agents check bench screenshots count lock lock-agents clean
.DELETE_ON_ERROR:

run: .venv/runtime.stamp
	@exec $(BIN)/refold serve $(ARGS)

demo: .venv/runtime.stamp
	@$(BIN)/refold demo $(ARGS)

# One process per core and one more, at most five: each runs gateways of its own, and some tests wait. A process
# that is done takes over tests of another one.
CORES := $(shell $(PYTHON) -c 'import os; print(min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))' 2>/dev/null || echo 2)
PYTEST = $(BIN)/python -m pytest --numprocesses=$$(($(CORES) + 1)) --dist=worksteal

# The whole suite has a ceiling of seconds (tests/rules/ceilings.yaml). On a busy machine: make test
# MAKE_TEST_SECONDS=
MAKE_TEST_SECONDS ?= held

# Another order, by a seed: make test ARGS="--random-order=7"
test: .venv/dev.stamp
	@MAKE_TEST_SECONDS=$(if $(ARGS),,$(MAKE_TEST_SECONDS)) $(PYTEST) --ignore=tests/system $(ARGS)

golden: .venv/dev.stamp
	@WRITE_GOLDEN=1 $(BIN)/python -m pytest -q tests/test_golden.py tests/surface/test_replay.py $(ARGS)

# What `make test` leaves out, and every property with more examples.
test-exhaustive: .venv/dev.stamp
	@$(PYTEST) -m "exhaustive or hypothesis" $(ARGS)

# Sessions whose house keeps its state in memory in `make test` are played on a Redis as well: one sentence of
# these is enough, as every store has the same contract. Each process of tests starts a server.
ON_REDIS := tests/through/test_sessions.py

# Each of them starts processes of its own.
test-system: .venv/dev.stamp
	@$(PYTEST) --numprocesses=$(CORES) --store redis tests/system $(ON_REDIS) $(ARGS)

# What could not be installed fails on its own there, and the others run.
test-agents: .venv/dev.stamp
	@$(MAKE) --no-print-directory --jobs=4 --keep-going install-agents || true
	@$(BIN)/python -m pytest tests/agents -m agents $(ARGS)

# One venv for each Python agent, as they want different versions of the same packages; npm's live together.
# uv installs in seconds what takes pip minutes; where it cannot, pip still may.
PYTHON_AGENTS := $(patsubst tests/agents/requirements/%.lock,.agents/%.stamp,\
	$(filter-out %/uv.lock,$(wildcard tests/agents/requirements/*.lock)))
UV := .agents/uv/bin/uv pip

install-agents: $(PYTHON_AGENTS) .agents/npm.stamp

.agents/uv.stamp: tests/agents/requirements/uv.lock
	@$(MAKE_VENV)
	@rm -rf .agents/uv && $(BIN)/python -m venv .agents/uv
	@.agents/uv/bin/python -m pip --quiet --disable-pip-version-check install --require-hashes -r $<
	@touch $@

.agents/%.stamp: tests/agents/requirements/%.lock .agents/uv.stamp
	@echo "Installing $* into .agents"
	@rm -rf .agents/$* && $(BIN)/python -m venv .agents/$*
	@$(UV) install --quiet --native-tls --require-hashes --python .agents/$*/bin/python -r $< || \
	  .agents/$*/bin/python -m pip --quiet --disable-pip-version-check install --require-hashes -r $<
	@touch $@

# Nothing of a package runs while it is installed: the programs come in the packages themselves. Not `npm ci`:
# it refuses a lock from a registry that lacks an optional package of some other platform.
.agents/npm.stamp: tests/agents/npm/package-lock.json tests/agents/npm/package.json
	@command -v npm >/dev/null || { echo "npm is missing: agents that come from npm are skipped"; exit 1; }
	@echo "Installing agents from npm into .agents"
	@mkdir -p .agents/npm && cp tests/agents/npm/package.json tests/agents/npm/package-lock.json .agents/npm/
	@cd .agents/npm && npm install --loglevel=error --ignore-scripts --no-audit --no-fund
	@touch $@

check: .venv/dev.stamp
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/mypy $(SOURCES)
	@$(BIN)/lint-imports

bench: .venv/dev.stamp
	@$(BIN)/python -m bench $(ARGS)

screenshots: .venv/dev.stamp
	@mkdir -p docs/images && $(BIN)/python -m scripts.screenshots docs/images

count: .venv/dev.stamp
	@$(BIN)/python scripts/count_calls.py $(ARGS)

# The development lock is the runtime lock and more, so both can be installed into the same place.
.venv/runtime.stamp: requirements.lock pyproject.toml
	@$(MAKE_VENV)
	@echo "Installing what the gateway needs into .venv"
	@$(PIP) install --require-hashes -r requirements.lock
	@$(INSTALL_SELF)
	@touch $@

.venv/dev.stamp: requirements-dev.lock pyproject.toml
	@$(MAKE_VENV)
	@echo "Installing what development needs into .venv"
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@$(INSTALL_SELF)
	@touch $@

# An existing .venv that works is kept. Otherwise: $(PYTHON), or the first newer Python, that can make one.
define MAKE_VENV
$(BIN)/python -m pip --version >/dev/null 2>&1 && exit 0; \
for python in "$(PYTHON)" python3.11 python3.12 python3.13 python3.14; do \
  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
  found="$$python"; \
  "$$python" -c 'import venv, ensurepip' >/dev/null 2>&1 || continue; \
  rm -rf .venv && "$$python" -m venv .venv && exit 0; \
  exit 1; \
done; \
if [ -n "$$found" ]; then \
  version=$$("$$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
  echo "$$found has no venv module. On Debian: apt install python$$version-venv" >&2; \
else \
  echo "Python 3.11 or newer is needed, but $(PYTHON) is: $$("$(PYTHON)" --version 2>&1 | head -n 1)" >&2; \
  echo "Name another one: make PYTHON=/path/to/python3.11 …" >&2; \
fi; \
exit 1
endef

# One lock for every Python from 3.11.0 on: what only some of them need has a marker.
# The development lock takes the runtime's versions as given.
LOCK = UV_CUSTOM_COMPILE_COMMAND="make lock" $(UV) compile --quiet --upgrade --generate-hashes --native-tls \
	--universal --python-version 3.11 --no-emit-index-url \
	--extra build --extra redis --extra otel --extra mcp

lock: .agents/uv.stamp
	@$(LOCK) --output-file requirements.lock pyproject.toml
	@$(LOCK) --extra dev --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml

# One lock for each Python agent from its .in file, and npm's.
LOCK_AGENT = UV_CUSTOM_COMPILE_COMMAND="make lock-agents" $(UV) compile --quiet --upgrade --generate-hashes \
	--native-tls --python-version 3.11 --no-emit-index-url

lock-agents: .agents/uv.stamp
	@for agent in tests/agents/requirements/*.in; do $(LOCK_AGENT) $$agent -o $${agent%.in}.lock || exit 1; done
	@cd tests/agents/npm && npm install --package-lock-only --loglevel=error --ignore-scripts --no-audit --no-fund

clean:
	@rm -rf build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find gateway tests scripts $(wildcard bench) -name __pycache__ -type d -prune -exec rm -rf {} +

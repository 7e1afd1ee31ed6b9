# What a fresh machine needs: make, Python 3.11 or newer, and a package registry. `make help` lists what a user needs.

PORT ?=
WORKERS ?=
UPSTREAM ?=
CONFIG ?=
SEED ?=
ONLY ?=
SUBJECTS ?=
SCENARIOS ?=
ROUNDS ?=
CHAIN ?=
WINDOWS ?= 8000
WINDOW ?= 8000
FAULTS ?= 10000
OPERATIONS ?= 10000
HISTORIES ?= 1000
ROWS ?=
MINUTES ?= 1
OUT ?=
TREE ?=
START ?=
PYTEST_ARGS ?= -n auto
# Not taken from the environment: some shells keep the machine's name there, or their own age.
HOST =
SECONDS = 60

# Some machines set it: then every process of a test run would compile all tests anew.
export PYTHONDONTWRITEBYTECODE =

VENV = .venv/bin
STENO = $(VENV)/python -m app.cli.main
STENO_ALONE = default,default+prices
TALKS = $(if $(findstring command,$(origin WINDOWS)),--windows '$(WINDOWS)') $(if $(CHAIN),--chain $(CHAIN)) $(if $(SAMPLE),--sample $(SAMPLE))

.DEFAULT_GOAL := help
.PHONY: help help-all run simulator demo doctor replay rivals exchanges test release-check properties coverage schema histories clients agents replays lease fuzz faults chaos fleet isolation bench accuracy costs lint types checks docs format generate lock examples wheel installs image clean run-env dev-env

LIST = sed -n 's/^\($(1)\):.*\#\# \(.*\)/make \1\t\2/p' Makefile | expand -t 16

help:
	@$(call LIST,run\|doctor\|demo\|simulator\|replay\|wheel\|image\|clean)
	@echo "make help-all   every other target: tests, checks, measurements"

help-all: ## list all targets
	@$(call LIST,[a-z-]*)

# DATABASE_URL reaches it by the environment, as make passes it on: a command line is visible to everyone on the machine,
# and an address may hold a password.
# The checkout keeps a database of its own; elsewhere it is in the user's data folder.
run doctor: export STENO_HOME ?= $(CURDIR)/.run

run: run-env ## start the proxy; options: UPSTREAM=URL PORT=8080 WORKERS=1 HOST=127.0.0.1 CONFIG=FILE DATABASE_URL=URL
	@$(VENV)/python scripts/fetch_tables.py --optional .tables
	@exec $(STENO) serve $(if $(UPSTREAM),--upstream '$(UPSTREAM)') $(if $(HOST),--host '$(HOST)') \
		$(if $(PORT),--port '$(PORT)') $(if $(WORKERS),--workers '$(WORKERS)') $(if $(CONFIG),--config '$(CONFIG)')

simulator: run-env ## a provider on this machine, to try Steno with; needs no key; options: PORT=9000 WINDOW=8000
	@$(VENV)/python scripts/fetch_tables.py --optional .tables
	@exec $(VENV)/python -m lab.simulator --port '$(or $(PORT),9000)' --window '$(WINDOW)'

demo: run-env ## a long conversation against a scripted provider; needs no key
	@$(VENV)/python scripts/fetch_tables.py --optional .tables
	$(STENO) demo

doctor: run-env ## whether it works, and what to do if it does not; options: UPSTREAM=URL CONFIG=FILE DATABASE_URL=URL
	@$(VENV)/python scripts/fetch_tables.py --optional .tables
	@exec $(STENO) doctor $(if $(UPSTREAM),--upstream '$(UPSTREAM)') $(if $(CONFIG),--config '$(CONFIG)')

replay: dev-env ## replay a recorded conversation: make replay FILE=conversation.json
	@$(VENV)/python scripts/fetch_tables.py --optional .tables
	$(VENV)/python -m lab.replay '$(or $(FILE),$(error make replay needs FILE=...))'

exchanges: dev-env ## play the golden exchanges and write the recordings that differ anew; options: ONLY=overflow
	@$(VENV)/python scripts/fetch_tables.py .tables
	$(VENV)/python -m pytest tests/exchanges --record -q -n 2 $(if $(ONLY),-k '$(ONLY)')

test: dev-env ## all tests but the long suites; options: PYTEST_ARGS='-k lease' SEED=7 (their order)
	@$(VENV)/python scripts/fetch_tables.py .tables
	@$(VENV)/python -m pytest $(if $(SEED),--randomly-seed $(SEED)) $(PYTEST_ARGS)

release-check: dev-env ## all tests and every long suite, as before a release, and one table of what came of each; options: ONLY="faults chaos"
	@$(VENV)/python scripts/release_check.py $(ONLY)

properties: dev-env ## the property tests, with twelve times as many examples
	HYPOTHESIS_PROFILE=long $(VENV)/python -m pytest tests/unit -k "properties or members or sse" --timeout 3600 $(PYTEST_ARGS)

coverage: dev-env ## unit tests and golden exchanges, which together have to cover the pure modules to the last branch
	@$(VENV)/python scripts/fetch_tables.py .tables
	@$(VENV)/python -m pytest tests/unit tests/conformance tests/exchanges --cov=app/conversation --cov=app/tokens --cov=app/compaction --cov-branch --cov-fail-under=100 $(PYTEST_ARGS)

schema: dev-env ## what is sent to the REST interface by its schema and beside it: 400 requests a route, no 5xx
	@$(VENV)/python scripts/fetch_tables.py .tables
	HYPOTHESIS_PROFILE=long $(VENV)/python -m pytest tests/e2e/test_schema.py --timeout 3600 $(PYTEST_ARGS)

examples: dev-env ## record every answer that docs and schema show anew, and write docs/openapi.json
	@$(VENV)/python scripts/fetch_tables.py .tables
	$(VENV)/python -m tests.e2e.examples

replays: dev-env ## recorded conversations under every preset in every format, and the commands of the lab
	@$(VENV)/python scripts/fetch_tables.py .tables
	$(VENV)/python -m pytest tests/release/test_replay.py tests/release/test_rivals.py \
		tests/release/test_relay_bench.py $(PYTEST_ARGS)

lease: dev-env ## the lease against its model: 5,000 random lives on SQLite, 2,000 on PostgreSQL
	HYPOTHESIS_PROFILE=long $(VENV)/python -m pytest tests/integration/test_lease_model.py $(PYTEST_ARGS)

fuzz: dev-env ## hostile bodies, streams, refusals and headers, until the time is over; options: MINUTES=10 SEED=7
	@$(VENV)/python scripts/fetch_tables.py .tables
	$(VENV)/python -m tests.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

faults: dev-env ## processes, databases, clients and networks that fail at every step, then random faults; options: FAULTS=10000
	@$(VENV)/python scripts/fetch_tables.py .tables
	$(VENV)/python -m pytest tests/release/test_disconnect_matrix.py tests/release/test_faults.py \
		tests/release/test_processes.py tests/release/test_restarts.py -k "not random" $(PYTEST_ARGS)
	FAULTS=$(FAULTS) $(VENV)/python -m pytest tests/release/test_faults.py -k random

chaos: dev-env ## kill, pause and cut off four processes and their database; options: SECONDS=60 SEED=7
	@$(VENV)/python scripts/fetch_tables.py .tables
	$(VENV)/python -m tests.chaos --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

fleet: dev-env ## kill, partition, restart and upgrade three processes, PgBouncer and a PostgreSQL of Patroni's under load; options: SEED=7
	@$(VENV)/python scripts/fetch_tables.py .tables
	$(VENV)/python -m tests.chaos.fleet $(if $(SEED),--seed $(SEED))

histories: dev-env ## hostile histories in four formats through every preset, before strict providers; options: HISTORIES=1000 SEED=7 ONLY=number
	@$(VENV)/python scripts/fetch_tables.py .tables
	HISTORIES=$(HISTORIES) $(if $(SEED),SEED=$(SEED)) $(if $(ONLY),ONLY=$(ONLY)) $(VENV)/python -m pytest \
		tests/e2e/test_histories.py $(if $(ONLY),-n 0,$(PYTEST_ARGS))

clients: dev-env ## clients that are not among our dependencies, installed into .clients, through compactions; needs node and npm
	@$(VENV)/python scripts/fetch_tables.py .tables
	@mkdir -p .clients && cp tests/clients/package*.json .clients && npm ci --prefix .clients --no-audit --no-fund
	@test -d .clients/venv || $(VENV)/python -m venv .clients/venv
	@.clients/venv/bin/pip install -qq --requirement tests/clients/requirements.txt
	@test -d .clients/older || $(VENV)/python -m venv .clients/older
	@.clients/older/bin/pip install -qq --requirement tests/clients/requirements-older.txt
	$(VENV)/python -m pytest tests/release/test_other_clients.py tests/e2e/test_recipes.py $(PYTEST_ARGS)

agents: dev-env ## Claude Code, Codex and Gemini CLI themselves, through five compactions each, without a network; needs npm, ip and unshare; options: AGENTS="claude codex gemini"
	@$(VENV)/python scripts/fetch_tables.py .tables
	@npm install --prefix .clients/agents --no-audit --no-fund @anthropic-ai/claude-code@2.1.197 @openai/codex@0.169.0 @google/gemini-cli@0.61.0
	@node .clients/agents/node_modules/@anthropic-ai/claude-code/install.cjs
	unshare --map-root-user --net sh -c 'ip link set lo up && exec $(VENV)/python -m tests.clients.agents $(AGENTS)'

isolation: dev-env ## several tenants with the same names and each other's ids, on both databases; options: OPERATIONS=10000
	@$(VENV)/python scripts/fetch_tables.py .tables
	OPERATIONS=$(OPERATIONS) $(VENV)/python -m pytest tests/release/test_isolation.py -n0 -s

bench: dev-env ## Steno beside its peers: docs/benchmarks.md; options: SUBJECTS=steno,nginx SCENARIOS=sat ROUNDS=3 SECONDS=2
	@$(VENV)/python scripts/fetch_tables.py .tables
	$(VENV)/python -m lab.benchmarks.relay $(if $(SUBJECTS),--subjects '$(SUBJECTS)') \
		$(if $(SCENARIOS),--scenarios '$(SCENARIOS)') $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(findstring command,$(origin SECONDS)),--seconds $(SECONDS))

accuracy: dev-env ## how far estimates are off, by format: ROWS=FOLDER
	@$(VENV)/python scripts/fetch_tables.py .tables
	$(foreach format,responses messages gemini,$(VENV)/python -m lab.benchmarks.accuracy $(format) \
		$(ROWS)/token-groundtruth-$(format).jsonl &&) true

costs: dev-env ## the arithmetic of docs/costs.md; or, with FILE=agents.jsonl, what their conversations cost: options as of `make rivals`
	@$(VENV)/python scripts/fetch_tables.py .tables
	$(if $(FILE),$(VENV)/python -m lab.benchmarks.rivals '$(FILE)' --arms '$(or $(ARMS),$(STENO_ALONE))' $(TALKS), \
		$(VENV)/python -m lab.benchmarks.costs)

rivals: dev-env ## Steno beside others on the same conversations, without a network; needs ip and unshare: FILE=agents.jsonl; options: ARMS=default,default+no-recall,keep-last WINDOWS=32000,64000 CHAIN=25 SAMPLE=6 (0: all)
	@$(VENV)/python scripts/fetch_tables.py .tables
	@$(VENV)/python -m lab.benchmarks.rivals.arms
	unshare --map-root-user --net sh -c 'ip link set lo up && exec $(VENV)/python -m lab.benchmarks.rivals \
		"$(or $(FILE),$(error make rivals needs FILE=...))" $(if $(ARMS),--arms $(ARMS)) $(TALKS)'

lint: dev-env ## format, style, types, architecture, dependencies, spelling, YAML, Dockerfile, Compose, Kubernetes, links of the documentation
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target types checks docs

types: dev-env
	$(VENV)/mypy

checks: dev-env
	$(VENV)/ruff format --check .
	$(VENV)/ruff check .
	$(VENV)/lint-imports
	$(VENV)/deptry app lab
	$(VENV)/python scripts/check_lock.py
	$(VENV)/typos
	$(VENV)/yamllint --strict .
	$(VENV)/hadolint Dockerfile
	$(VENV)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(VENV)/kubernetes-validate --quiet --strict config/kubernetes/gateway.yaml config/kubernetes/sidecar.yaml

docs: dev-env ## the documentation as a site in build/site; fails on a dead link and on what would come from another host
	@$(VENV)/python scripts/build_docs.py

format: dev-env ## put the code into shape
	$(VENV)/ruff format .
	$(VENV)/ruff check --fix .

generate: dev-env ## write config/steno.yaml and docs/settings.md anew, from app/settings
	PYTHONPATH=. $(VENV)/python scripts/generate_settings.py

lock: dev-env ## write requirements/ anew; LOCK_ARGS=--upgrade takes newer versions
	sh scripts/lock.sh $(LOCK_ARGS)
	$(VENV)/python scripts/check_lock.py

wheel: dev-env ## build dist/steno-*.whl, to install Steno on another machine
	$(VENV)/python -m hatchling build --target wheel --directory dist

installs: dev-env ## each documented way to install Steno, with its packages from the registry, into fresh environments; and try it, and the first page of the documentation
	@$(VENV)/python scripts/fetch_tables.py .tables
	CLEAN=1 $(VENV)/python -m pytest tests/release/test_installs.py tests/release/test_newcomer.py -n 0

image: dev-env ## build the container image without Docker and try it: see scripts/build_image.sh; as root
	sh scripts/build_image.sh

clean: ## remove everything that was made here, except the database in .run
	rm -rf .venv .tables .bench .clients .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage .cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

run-env:
	@sh scripts/setup_venv.sh run

dev-env:
	@sh scripts/setup_venv.sh dev

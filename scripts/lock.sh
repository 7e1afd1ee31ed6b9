#!/bin/sh
# Write requirements/*.txt anew from pyproject.toml: sh scripts/lock.sh [--upgrade]
#
# Hashed, for every platform and every Python from 3.11 on, and free of hosts and paths: uv reads neither pip's
# configuration nor, with --no-config, its own.
# Extras are kept: without them pip up to 23 takes a newer version for a requirement with one, which has no hash here.
# Without --upgrade the versions stay that still fit.
set -eu
cd "$(dirname "$0")/.."

lock() { # file, then what goes in it
    file=requirements/$1.txt
    shift
    .venv/bin/uv pip compile "$@" --quiet --no-config --universal --python-version 3.11 --generate-hashes --no-strip-extras \
        --no-header ${upgrade} --output-file "$file"
}

upgrade=${1:-}
lock run pyproject.toml
lock dev pyproject.toml --extra mcp --extra otel --group test --group lint --group build --group docs --constraints requirements/run.txt
lock build --group build
lock tables --group tables --no-deps

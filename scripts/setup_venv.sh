#!/bin/sh
# Make .venv fit requirements/run.txt or requirements/dev.txt: sh scripts/setup_venv.sh run|dev
#
# A stamp in .venv holds the checksum of the lock files it was made from, so a second run does nothing. The stamps are
# taken away before pip starts: a venv without them was interrupted, or made by someone else, and is built anew. Of two
# runs at once, one waits for the other.
set -eu
cd "$(dirname "$0")/.."

case ${1:-} in
    run | dev) want=$1 ;;
    *) echo "usage: sh scripts/setup_venv.sh run|dev" >&2; exit 2 ;;
esac
key=$(cat requirements/run.txt requirements/dev.txt | cksum)
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

fits() { # stamp name; the interpreter is run because it may be a link to a Python that is gone
    [ "$(cat ".venv/.steno-$1" 2>/dev/null)" = "$key" ] && .venv/bin/python -c 'import pip' 2>/dev/null
}

find_python() { # run, not just found: version managers put commands in the path that only fail
    for candidate in ${PYTHON:-} python3.13 python3.12 python3.11 python3; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "Steno needs Python 3.11 or newer, with venv (on Debian: apt-get install python3-venv)." >&2
    return 1
}

if fits "$want"; then exit 0; fi

if fits run; then python=.venv/bin/python; else python=$(find_python); fi
exec 9<scripts/setup_venv.sh # a lock on this file, which ends with this shell; the flock command is not on every machine
"$python" -c 'import fcntl; fcntl.flock(0, fcntl.LOCK_EX)' <&9
if fits "$want"; then exit 0; fi # made meanwhile

if ! fits run; then
    python=$(find_python)
    echo "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
fi
rm -f .venv/.steno-*
echo "installing requirements/$want.txt"
# What is used is compiled when it is imported first: that is a part of all, and on every core.
install() { # lock file
    .venv/bin/python -m pip install -qq --no-compile --only-binary :all: --require-hashes --requirement "$1"
}
fast() { # uv takes a tenth of pip's time; it does not read pip's configuration, and where it finds no registry pip does
    sed -n '/^uv==/,/# via/p' requirements/dev.txt > .venv/uv.txt
    install .venv/uv.txt
    .venv/bin/uv pip install -qq --system-certs --python .venv/bin/python --only-binary :all: --require-hashes --requirement "$1"
}
if [ "$want" = run ] || ! fast "requirements/$want.txt"; then install "requirements/$want.txt"; fi
[ "$want" = run ] || echo "$key" > .venv/.steno-dev
echo "$key" > .venv/.steno-run # dev.txt holds all of run.txt, in the same versions (scripts/check_lock.py)

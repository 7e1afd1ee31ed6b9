"""Fuzzing: hostile bodies, streams, refusals and headers, until the time is over or something is found.

    python -m tests.fuzz --minutes 10 --seed 7

A finding is printed as a Python literal with the seed that led to it, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from itertools import count
from random import Random
from time import monotonic, process_time

import structlog

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS

SLOW_SECONDS = 2.0
"""Of processor time for an input of at most 20,000 bytes: something is not linear."""


def found(name: str, number: int) -> str | None:
    """What the input of that number shows of a target; None where all is well."""
    target, random = TARGETS[name], Random(f"{name} {number}")
    data = mutated(random, target.seeds)
    began = process_time()
    try:
        target.check(data, random)
    except Exception:  # noqa: BLE001 - whatever it is, it is the finding
        return f"{traceback.format_exc()}\n{name}, seed {number}: {data!r}"
    took = process_time() - began
    return f"{took:.1f} seconds\n{name}, seed {number}: {data!r}" if took > SLOW_SECONDS else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="number of the first input")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    end = monotonic() + 60 * options.minutes
    tried = 0
    for number in count(options.seed):
        for name in TARGETS:
            tried += 1
            if finding := found(name, number):
                sys.exit(finding)
        if monotonic() > end:
            break
    sys.stdout.write(f"{tried} inputs, seeds {options.seed} to {number}, nothing found\n")


if __name__ == "__main__":
    main()

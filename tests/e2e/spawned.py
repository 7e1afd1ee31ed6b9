"""`steno` as it starts workers where a fork is not safe, and where the kernel does not spread connections."""

from __future__ import annotations

from multiprocessing import get_context

from app.commands import ports, workers
from app.commands.cli import main

workers.CONTEXT = get_context("spawn")
ports.SPREADS = False

if __name__ == "__main__":
    main()

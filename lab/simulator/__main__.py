"""Standalone: python -m lab.simulator --port 9000 --window 8000"""

from __future__ import annotations

import argparse
import logging
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvicorn

from lab.simulator.delivery import OpenProtocol
from lab.simulator.simulator import Simulator


class QuietServer(uvicorn.Server):
    """A server that logs no errors about the answers it cuts when Ctrl-C ends it."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().handle_exit(sig, frame)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.simulator", description="A scripted provider of four APIs.")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--window", type=int, default=8_000, help="context window in tokens")
    parser.add_argument("--tables", type=Path, default=Path(".tables"), help="folder with tiktoken's o200k_base table")
    options = parser.parse_args()
    simulator = Simulator(window=options.window, models="any", tables=options.tables, log_limit=1_000)
    config = uvicorn.Config(
        simulator,
        port=options.port,
        http=OpenProtocol,
        ws="none",
        lifespan="off",
        proxy_headers=False,
        access_log=False,
        timeout_graceful_shutdown=0,
    )
    with suppress(KeyboardInterrupt):  # uvicorn raises it once more when the server has ended
        QuietServer(config).run()


if __name__ == "__main__":
    main()

"""Standalone: python -m lab.simulator --port 9000 --window 8000"""

from __future__ import annotations

import argparse
import logging
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvicorn

from lab.simulator.connection import OpenProtocol
from lab.simulator.script import Fault
from lab.simulator.simulator import Simulator


class QuietServer(uvicorn.Server):
    """A server that logs no errors about the answers it cuts when Ctrl-C ends it."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        super().handle_exit(sig, frame)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.simulator", description="A scripted provider of three APIs.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--window", type=int, default=8_000, help="context window in tokens")
    parser.add_argument("--model", action="append", help="offer this model; else every name is known")
    parser.add_argument("--tables", type=Path, default=Path(".tables"), help="folder with tiktoken's o200k_base table")
    parser.add_argument("--skew", type=float, default=1.0, help="prompt tokens = skew x count + offset")
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--chunk-delay", type=float, default=0.0, help="seconds between the chunks of a stream")
    parser.add_argument("--words", type=int, help="words in each answer")
    parser.add_argument("--log-limit", type=int, default=1_000, help="requests kept for GET /__log")
    parser.add_argument("--no-bodies", action="store_true", help="keep no bodies in the log")
    options = parser.parse_args()
    simulator = Simulator(
        window=options.window,
        models=options.model or "any",
        tables=options.tables,
        skew=options.skew,
        offset=options.offset,
        log_limit=options.log_limit,
        log_bodies=not options.no_bodies,
    )
    simulator.chat_default = Fault(delay=options.delay, chunk_delay=options.chunk_delay, words=options.words)
    config = uvicorn.Config(
        simulator,
        host=options.host,
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

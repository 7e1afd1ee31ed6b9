"""Server for an ASGI application on loopback: uvicorn in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any, Literal, Self

import uvicorn

START_SECONDS = 30.0
"""Longest wait until the server accepts connections."""


class RunningServer:
    """Server in a thread, from `start` until `stop`."""

    def __init__(self, server: uvicorn.Server, listener: socket.socket) -> None:
        self._server = server
        self._listener = listener
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="uvicorn", daemon=True)
        self.host, self.port = listener.getsockname()[:2]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError("The server did not start.") from self._failure
            time.sleep(0.002)

    def stop(self, timeout: float = 10.0) -> None:
        """Shut down as on SIGTERM: accept no connections, give requests the grace period, then end the lifespan."""
        self._server.should_exit = True
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(timeout)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
                runner.run(self._server.serve([self._listener]))
        except BaseException as failure:  # noqa: BLE001 -- raised again by start(), in the caller's thread
            self._failure = failure


def serve(
    app: Any,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    listener: socket.socket | None = None,
    http: Any = "httptools",
    own_headers: bool = True,
    lifespan: Literal["on", "off"] = "on",
    grace_seconds: int = 1,
) -> RunningServer:
    """Start the application, and return once it accepts connections. `port` 0: any free port.

    `listener`: a bound socket, used instead of host and port. `own_headers`: whether uvicorn adds `date` and `server`.
    """
    listener = listener or socket.create_server((host, port), backlog=2048)
    config = uvicorn.Config(
        app,
        http=http,
        ws="none",
        date_header=own_headers,
        server_header=own_headers,
        lifespan=lifespan,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=grace_seconds,
    )
    running = RunningServer(uvicorn.Server(config), listener)
    running.start()
    return running

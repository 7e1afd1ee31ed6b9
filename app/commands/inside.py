"""A Steno for a single question: started in this process, asked over loopback, and gone. Its database is in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from pydantic import SecretStr

from app.main import create_app
from app.settings import Settings
from app.tasks.server import serve

ANSWER_SECONDS = 120.0


@contextmanager
def asking(settings: Settings) -> Iterator[httpx2.Client]:
    """Start Steno and yield a client of it. Raises `ConfigurationError` if the settings are not valid."""
    in_memory = settings.storage.model_copy(update={"url": SecretStr("memory")})
    with (
        serve(create_app(settings.model_copy(update={"storage": in_memory}), reports=False), lifespan="on") as server,
        httpx2.Client(base_url=server.url, timeout=ANSWER_SECONDS, trust_env=False) as client,
    ):
        yield client

"""A Steno for a single question: started in this process, asked over loopback, and gone. Its database is in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from pydantic import SecretStr

from app.http.loopback import serve
from app.main import create_app
from app.settings import ClientSettings, ModelSettings, Settings

ANSWER_SECONDS = 120.0


@contextmanager
def asking(settings: Settings) -> Iterator[httpx2.Client]:
    """Start Steno and yield a client of it. Raises `ConfigurationError` if the settings are not valid."""
    in_memory = settings.storage.model_copy(update={"url": SecretStr("memory")})
    here = settings.server.model_copy(update={"host": "127.0.0.1"})
    alone = settings.model_copy(update={"storage": in_memory, "server": here, "clients": ClientSettings()})
    with (
        serve(create_app(alone, reports=False)) as server,
        httpx2.Client(base_url=server.url, timeout=ANSWER_SECONDS, trust_env=False) as client,
    ):
        yield client


def at_window(settings: Settings, window: int) -> Settings:
    """Return the settings with this context window (tokens) for every model; other limits stay as they are set."""
    limits = {"context_window": window, "max_input_tokens": None}
    models = (model.model_copy(update=limits) for model in settings.models)
    return settings.model_copy(update={"models": (*models, ModelSettings(match="*", context_window=window))})

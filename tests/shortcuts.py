"""What most tests wait for and none is about, done sooner or once: ticks, certificates, token tables."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import httpcore2
import pytest
import uvicorn.server

from app.tokens import tokenizer

TABLES = Path(__file__).parents[1] / ".tables"


@pytest.fixture(scope="session", autouse=True)
def _prompt_servers() -> Iterator[None]:
    """A server looks ten times a second whether it has to end, and then waits as long again: here a tenth of that."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        yield


@pytest.fixture(scope="session", autouse=True)
def _certificates_read_once() -> Iterator[None]:
    """Every HTTP client would read the machine's own anew, for 18 ms; all that tests speak to is on loopback."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", cache(httpcore2.default_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def _token_tables_verified_once() -> Iterator[None]:
    """Every Steno and every simulator would hash the checkout's five megabytes anew."""
    verify = tokenizer.is_in
    known = cache(verify)

    def is_in(folder: Path, encoding: str) -> bool:
        return (known if folder == TABLES else verify)(folder, encoding)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "is_in", is_in)
        yield

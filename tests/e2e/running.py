"""Steno as its users meet it: a real server on loopback, made by the same function that `steno serve` calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from app.http.loopback import RunningServer, serve
from app.http.protocol import protocol_within
from app.main import create_app
from app.proxy.exchange import Services
from app.settings import load

Sections = Mapping[str, Any]

WINDOW = 8_000


@dataclass(frozen=True, slots=True)
class Steno:
    """A running Steno."""

    server: RunningServer
    services: Services
    """Its parts; they live in the server's event loop, so only look."""
    _clients: ExitStack = field(default_factory=ExitStack)

    @property
    def url(self) -> str:
        """Scheme, host and port, without a path."""
        return self.server.url

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def sdk(self, **options: Any) -> openai.OpenAI:
        """The official client; it does not retry unless it is told to."""
        defaults: dict[str, Any] = {"base_url": self.base_url, "api_key": "sk-test", "max_retries": 0, "timeout": 30.0}
        return self._clients.enter_context(openai.OpenAI(**(defaults | options)))

    def stop(self) -> None:
        self._clients.close()
        self.server.stop()


StartSteno = Callable[..., Steno]
"""Starts one. Keywords are sections of the settings, such as `limits={"body_bytes": 5_000}`, laid over the defaults."""


def start(provider_url: str, sections: Sections) -> Steno:
    """Steno before a provider (its address without `/v1`).

    Beside the settings, `calibration={"enabled": False}` keeps it from learning how providers count.
    """
    sections = dict(sections)
    calibrates = sections.pop("calibration", {"enabled": True})["enabled"]
    defaults: Sections = {
        # Not asked for its models: what a provider is sent, and in which order, is what most tests are about.
        "upstream": {"base_url": f"{provider_url}/v1", "discover_windows": False},
        "models": [{"match": "*", "context_window": WINDOW}],
        # Generous: how busy the machine is that runs the tests is not what they are about.
        "storage": {"url": "memory", "timeout_seconds": 5.0},
        "secret": "a secret for the end-to-end tests",
    }
    settings = load(**_laid_over(defaults, sections))
    app = create_app(settings)
    if not calibrates:
        for each in app.state.services.providers.all:
            each.calibrations.is_due = lambda *_: False
    protocol = protocol_within(settings.limits.receive_seconds, settings.limits.connections)
    server = serve(app, http=protocol, own_headers=False, grace_seconds=5)
    return Steno(server, app.state.services)


def forget_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the developer's machine reaches a test."""
    ours = [name for name in os.environ if name.startswith("STENO_") and name != "STENO_TEST_DATABASE_URL"]
    for name in (*ours, "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


def _laid_over(defaults: Sections, sections: Sections) -> dict[str, Any]:
    merged = dict(defaults)
    for name, section in sections.items():
        given = merged.get(name)
        merged[name] = {**given, **section} if isinstance(given, dict) and isinstance(section, dict) else section
    return merged

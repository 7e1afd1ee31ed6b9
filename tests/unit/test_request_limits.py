"""What headers and bodies ask for, and how large a prompt may be."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from app.formats.registry import FORMATS
from app.main import create_app
from app.proxy.caller import Caller
from app.proxy.exchange import Services
from app.proxy.request import MOST_GUESSED
from app.settings import load
from tests.e2e import running

HERE: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "discover_windows": False}


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Services:
    running.forget_environment(monkeypatch)
    app = create_app(load(storage={"url": "memory"}, upstream=HERE))
    told: Services = app.state.services
    return told


def asked(tenant: str, model: str = "m", more: str = "", header: tuple[bytes, bytes] | None = None) -> tuple[Any, ...]:
    body = f'{{"model":"{model}","messages":[{{"role":"user","content":"hello"}}]{more}}}'
    return FORMATS[0].read(body.encode()), Caller(tenant, [header] if header else [], FORMATS[0])


async def measured(services: Services, *request: Any) -> Any:
    return await services.model_limits.measure(*request, remember=True)


async def test_a_model_that_nobody_knows_is_said_once_with_what_to_do(services: Services) -> None:
    with structlog.testing.capture_logs() as logs:
        for tenant, model in (("one", "house"), ("two", "house"), ("one", "gpt-4o"), ("one", "other")):
            await measured(services, *asked(tenant, model))
        for number in range(200):
            await measured(services, *asked("one", f"made-up-{number}"))
    said = [line for line in logs if line["event"] == "a model's window is a guess"]
    assert [line["model"] for line in said[:2]] == ["house", "other"]
    assert {"upstream", "model", "window", "remedy"} <= set(said[0])
    assert "context_window" in said[0]["remedy"]
    assert len(said) == MOST_GUESSED

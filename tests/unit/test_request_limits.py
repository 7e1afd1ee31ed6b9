"""What is said of a model whose window nobody knows."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from app.formats.paths import FORMATS
from app.main import create_app
from app.proxy.caller import Caller
from app.proxy.request import MOST_GUESSED
from app.settings import load
from tests.e2e import running

HERE: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "discover_windows": False}


async def test_a_model_that_nobody_knows_is_said_once_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    running.forget_environment(monkeypatch)
    services = create_app(load(storage={"url": "memory"}, upstream=HERE)).state.services
    made_up = [("one", f"made-up-{number}") for number in range(200)]
    with structlog.testing.capture_logs() as logs:
        for tenant, model in (("one", "house"), ("two", "house"), ("one", "gpt-4o"), ("one", "other"), *made_up):
            asked = FORMATS[0].read(f'{{"model":"{model}","messages":[{{"role":"user","content":"hello"}}]}}'.encode())
            await services.model_limits.measure(asked, Caller(tenant, [], FORMATS[0]), remember=True)
    said = [line for line in logs if line["event"] == "a model's window is a guess"]
    assert [line["model"] for line in said[:2]] == ["house", "other"]
    assert {"upstream", "model", "window", "remedy"} <= set(said[0])
    assert "context_window" in said[0]["remedy"]
    assert len(said) == MOST_GUESSED

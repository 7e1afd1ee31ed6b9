"""The poison suite, word for word, with everything said in telegrams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import test_poisoning as poisoning
from tests.e2e.raw import CHAT, Answer
from tests.e2e.running import StartSteno
from tests.telegrams.office import before_an_office, telegrams_of
from tests.telegrams.telegrams import PATH

stage = poisoning.stage
test_in_telegrams = poisoning.test_what_one_tenant_does_changes_nothing_for_another


@pytest.fixture
def start_steno(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartSteno]:
    ask = poisoning.Stage.ask

    def said(
        self: poisoning.Stage, key: str, body: bytes | None, *headers: bytes, target: str = "", **options: Any
    ) -> Answer:
        if body is not None and target in ("", CHAT):
            body, target = json.dumps(telegrams_of(json.loads(body))).encode(), PATH.decode()
        return ask(self, key, body, *headers, target=target, **options)

    monkeypatch.setattr(poisoning.Stage, "ask", said)
    yield from before_an_office(monkeypatch)

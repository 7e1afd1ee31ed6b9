"""What the client receives: the provider's status, headers and bytes, and its errors as they are."""

from __future__ import annotations

import hashlib
from typing import Any

import openai
import pytest

from lab.simulator import Fault, Simulator
from tests.e2e.histories import HELLO, MODEL, chat, long_history
from tests.e2e.raw import post
from tests.e2e.running import StartSteno
from tests.e2e.scripted import ScriptedProvider

# Errors


def test_sdk_retries_as_it_would_without_steno(simulator: Simulator, steno: StartSteno) -> None:
    """Three requests, not nine."""
    simulator.chat_default = Fault(status=503, retry_after=0.01)
    with pytest.raises(openai.InternalServerError):
        steno().sdk(max_retries=2).chat.completions.create(model=MODEL, messages=HELLO)
    assert len(simulator.chats) == 3


def test_trouble_of_stenos_own_does_not_fail_a_request(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """Whatever goes wrong before the provider is asked, the client's own bytes may still be good."""

    class Broken:
        async def identify(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

        async def prepare(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

    for part in ("conversations", "compactor"):
        steno = before_scripted()
        setattr(steno.services, part, Broken())
        for stream in (False, True):
            body = chat(long_history(), stream=stream)
            answered = post(steno.url, body)
            assert answered.status == 200
            assert answered.header("x-context-status") == "full"
            assert answered.header("x-context-reason") == "internal_error"
            assert hashlib.sha256(scripted.requests[-1].body).digest() == hashlib.sha256(body).digest()

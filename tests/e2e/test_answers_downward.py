"""What the client receives: the provider's status, headers and bytes, and its errors as they are."""

from __future__ import annotations

import openai
import pytest
from structlog.testing import capture_logs

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

    steno, bodies = before_scripted(), [chat(long_history(), stream=stream) for stream in (False, True)]
    for part in ("conversations", "compactor"):
        with capture_logs(), pytest.MonkeyPatch.context() as patched:
            patched.setattr(steno.services, part, None)
            for body in bodies:
                answered = post(steno.url, body)
                assert (answered.status, answered.header("x-context-status")) == (200, "full")
                assert answered.header("x-context-reason") == "internal_error"
                assert scripted.requests[-1].body == body

"""Bodies of unusual shapes: they go on as they came, and nobody waits for one while it is read or planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest

from app.compaction import compactor, request
from app.compaction.planning_state import PlanningState
from app.compaction.view import Conversation
from app.formats.chat_completions import CHAT_COMPLETIONS
from app.formats.reader import MessageReader
from app.proxy import request as proxy_request
from app.tokens.estimator import Prompt
from tests.e2e.histories import chat, long_history
from tests.e2e.raw import post
from tests.e2e.running import StartSteno
from tests.e2e.scripted import ScriptedProvider, answer

PATIENCE = 30.0
VICTIM = b"authorization: Bearer sk-victim"


@contextmanager
def held_up(owner: Any, name: str, is_long: Callable[..., bool]) -> Iterator[Event]:
    """A step of ours waits, for long requests only, until it is let go; set as soon as one has begun it."""
    begun, gate = Event(), Event()
    step = getattr(owner, name)

    def wait(*arguments: Any, **named: Any) -> Any:
        if is_long(*arguments):
            begun.set()
            assert gate.wait(PATIENCE)
        return step(*arguments, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, wait)
        try:
            yield begun
        finally:
            gate.set()


def _many(case: PlanningState, *_: object) -> bool:
    return len(case.conversation.transcript) > 100


STEPS: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "reading the body": (CHAT_COMPLETIONS, "read", lambda body, *_: len(body) > 100_000),
    "reading the messages": (MessageReader, "read", lambda _, raw: len(raw) > 100),
    "digesting": (Conversation, "__init__", lambda _, messages, *__: len(messages) > 100),
    "counting": (Prompt, "costs", lambda prompt: len(prompt.units) > 100),
    "masking": (compactor, "due_mask", _many),
    "planning": (compactor, "plan_compaction", lambda conversation, *_: len(conversation.transcript) > 100),
    "settling": (compactor, "settle", _many),
    "the body that goes on": (
        CHAT_COMPLETIONS,
        "render",
        lambda conversation, *_: len(conversation.transcript) > 100,
    ),
    "the model of a body that is not read": (
        CHAT_COMPLETIONS,
        "model_in",
        lambda body, *_: len(body) > 100_000,
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_others_are_answered_while_a_long_request_is_worked_on(
    steno: StartSteno, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Two at once, which is what one tenant may have; its others wait for these."""
    for module in (request, proxy_request):
        monkeypatch.setattr(module, "MANY_MESSAGES", 100)
    monkeypatch.setattr(proxy_request, "INLINE_BODY", 100_000)
    monkeypatch.setattr("app.proxy.reply.INLINE_BODY", 100_000)
    url = steno().url
    body = b"[" * 200_000 if step == "the model of a body that is not read" else chat(long_history(60))
    post(url, chat(), VICTIM)
    with ThreadPoolExecutor() as attackers, held_up(*STEPS[step]) as begun:
        under_way = [attackers.submit(post, url, body, timeout=2 * PATIENCE) for _ in range(6)]
        assert begun.wait(PATIENCE)
        victims = [post(url, chat(), VICTIM, timeout=PATIENCE).status for _ in range(3)]
        middling = post(url, chat(long_history(20)), VICTIM, timeout=PATIENCE).status
        assert not any(each.done() for each in under_way)
    assert (victims, middling) == ([200] * 3, 200)
    assert {each.result().status for each in under_way} <= {200, 400}


def test_others_are_answered_while_a_long_text_that_fits_is_counted_for_its_answer(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    """It went to the provider before: only what is told of its size waits for the count."""
    scripted.default = (answer(b'{"choices":[]}'),)
    url = before_scripted(models=[{"match": "*", "context_window": 2_000_000}]).url
    post(url, chat(), VICTIM)
    long = chat([{"role": "user", "content": "a room with a view " * 7_000}])
    with ThreadPoolExecutor() as attackers, held_up(Prompt, "costs", lambda prompt: prompt.uncounted > 32_768) as begun:
        under_way = attackers.submit(post, url, long, timeout=2 * PATIENCE)
        assert begun.wait(PATIENCE)
        assert scripted.wait_for(lambda requests: len(requests) == 2), "counted before the provider had the request"
        assert [post(url, chat(), VICTIM, timeout=PATIENCE).status for _ in range(3)] == [200] * 3
        assert not under_way.done()
    assert under_way.result().status == 200

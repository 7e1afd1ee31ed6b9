"""Every payload that a test renders is judged by the simulator's rules, whichever test it is.

Many tests render views that no provider would take, or histories that none would. So what is held is this: of a history
that a provider accepts, a view that `verify` finds nothing wrong with is a payload that it accepts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.compaction.verify import problems
from app.compaction.view import Conversation, View
from app.formats.chat_completions import format as chat_completions_payload
from app.formats.chat_completions.format import CHAT_COMPLETIONS
from app.formats.format import WireFormat
from app.formats.messages import messages as messages_payload
from app.formats.messages.format import MESSAGES
from app.formats.responses import format as responses_payload
from app.formats.responses.format import RESPONSES
from lab.simulator.chat_completions import judge as chat_completions
from lab.simulator.messages import judge as messages
from lab.simulator.messages.binding import prefix_of
from lab.simulator.messages.binding import seal as seal_thought
from lab.simulator.messages.blocks import BETAS, THINKING
from lab.simulator.refusals import Refused, refused_by
from lab.simulator.responses import judge as responses
from lab.simulator.responses.items import seal as seal_item

ANY_SIZE = 1 << 60
_TOOLS = [{"name": "any", "input_schema": {"type": "object"}}]
_BETAS = [f"{beta}x" for starts in BETAS.values() for beta in starts]

Json = dict[str, Any]
Judge = Callable[[Json, bool], Refused | None]


def _refused_in_chats(body: Json, alternating: bool) -> Refused | None:
    return refused_by(chat_completions.check, body, alternating)


def _refused_in_messages(body: Json, alternating: bool) -> Refused | None:
    """What seals its thoughts is the test's own: as if the simulator had."""
    for message in body["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] in THINKING:
                name = "data" if block["type"] == "redacted_thinking" else "signature"
                block[name] = seal_thought(prefix_of({}), block.get("thinking", ""))
    return refused_by(messages.check, {**body, "tools": _TOOLS}, _BETAS, alternating=alternating)


def _refused_in_responses(body: Json, alternating: bool) -> Refused | None:
    for item in body["input"] if isinstance(body["input"], list) else ():
        if item.get("encrypted_content"):
            item["encrypted_content"] = seal_item(item["type"], "thought")
    return refused_by(responses.check, body, alternating=alternating)


JUDGES: dict[str, Judge] = {
    "chat_completions": _refused_in_chats,
    "messages": _refused_in_messages,
    "responses": _refused_in_responses,
}


@dataclass
class Judged:
    """What the payloads came to that were rendered so far."""

    number: int = 0
    refused: list[str] = field(default_factory=list)

    def look(
        self, spoken: WireFormat, conversation: Conversation, view: View, alternate: bool, rendered: list[bytes]
    ) -> None:
        theirs = [message.raw for message in (*conversation.instructions, *conversation.transcript.messages)]
        if rendered == theirs or problems(conversation, view, ANY_SIZE):
            return
        if _refusal_of(spoken, theirs, alternating=False) is not None:
            return
        alternating = alternate and _refusal_of(spoken, theirs, alternating=True) is None
        self.number += 1
        if (refusal := _refusal_of(spoken, rendered, alternating)) is not None:
            shown = b"\n".join(raw[:200] for raw in rendered).decode()
            told = refusal if isinstance(refusal, str) else refusal.message
            self.refused.append(f"{spoken.name}: {told}\n{view.parts}\n{shown}")


def _refusal_of(spoken: WireFormat, raws: list[bytes], alternating: bool) -> Refused | str | None:
    """What a provider says to the raw messages of a format; a word of ours where they are none at all."""
    try:
        body: Json = json.loads(spoken.assembled("m-any", [spoken.alone(raw) for raw in raws]))
        body |= {"max_tokens": 100} if spoken.name == "messages" else {}
        return JUDGES[spoken.name](body, alternating)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"no messages: {error!r}"


_JUDGED = Judged()
_PATCH = pytest.MonkeyPatch()


def pytest_configure() -> None:
    """Before any test is imported: each renders by what it imports then, by a format or without."""
    for spoken, payload in (
        (CHAT_COMPLETIONS, chat_completions_payload),
        (MESSAGES, messages_payload),
        (RESPONSES, responses_payload),
    ):
        looking = _looking(spoken, payload.render)
        _PATCH.setattr(payload, "render", looking)
        _PATCH.setattr(spoken, "render", looking)


def pytest_unconfigure() -> None:
    _PATCH.undo()


def _looking(spoken: WireFormat, render: Callable[..., list[bytes]]) -> Callable[..., list[bytes]]:
    def rendering(conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
        rendered = render(conversation, view, alternate)
        _JUDGED.look(spoken, conversation, view, alternate, rendered)
        return rendered

    return rendering


@pytest.fixture(autouse=True)
def judged_payloads() -> Iterator[Judged]:
    """Fails a test that rendered a payload which its provider would have refused."""
    before = len(_JUDGED.refused)
    yield _JUDGED
    refused = _JUDGED.refused[before:]
    assert not refused, "A provider would refuse a payload of this test: " + "\n\n".join(refused)

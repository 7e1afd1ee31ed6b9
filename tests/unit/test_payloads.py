"""The fixture that judges every payload which a test renders."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.compaction.view import Conversation, Note, Pruned, Verbatim, View
from app.formats.format import WireFormat
from app.formats.messages.format import MESSAGES
from app.formats.reader import MessageReader
from app.tokens.estimate import Costs
from tests.payloads import Judged
from tests.unit.conversations import IDENTITY

CALL: Any = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "find", "input": {}}]}
RESULT: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "found"}]}
TALK = [{"role": "user", "content": "Find it."}, CALL, RESULT, {"role": "assistant", "content": "Done."}]
ASKED = [*TALK, {"role": "user", "content": "And now?"}]


def talk_of(spoken: WireFormat, said: list[Any]) -> Conversation:
    messages = MessageReader(IDENTITY, spoken.message).read([json.dumps(each).encode() for each in said])
    return Conversation(messages, IDENTITY, "t", lambda: Costs([1] * len(messages), 0), None)


@pytest.fixture
def judged() -> Judged:
    """Beside the one that all tests share: what it refuses here is no failure."""
    return Judged()


def look(judged: Judged, said: list[Any], view: View, rendered: list[Any]) -> None:
    judged.look(MESSAGES, talk_of(MESSAGES, said), view, False, [json.dumps(each).encode() for each in rendered])


def test_a_payload_that_its_provider_would_refuse_is_found(judged: Judged) -> None:
    view = View((Verbatim(0, 5),), 1)
    look(judged, ASKED, view, [TALK[0], CALL, {"role": "user", "content": "[a note]"}, RESULT, *ASKED[3:]])
    [refusal] = judged.refused
    assert "`tool_use` ids were found without `tool_result` blocks immediately after" in refusal


@pytest.mark.parametrize(
    ("said", "view"),
    [(ASKED, View((Pruned(0, 2), Verbatim(2, 5)), 1)), (ASKED[1:], View((Verbatim(0, 4),), 1))],
    ids=["a view that would not be sent", "a history that is refused anyway"],
)
def test_what_would_not_be_sent_is_not_judged(judged: Judged, said: list[Any], view: View) -> None:
    look(judged, said, view, [RESULT])
    assert (judged.number, judged.refused) == (0, [])


def test_whatever_a_test_renders_is_looked_at(judged_payloads: Judged) -> None:
    before = judged_payloads.number
    MESSAGES.render(talk_of(MESSAGES, ASKED), View((Note("stub", "Mind.", 1), Verbatim(0, 5)), 1))
    assert judged_payloads.number == before + 1

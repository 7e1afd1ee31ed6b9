"""What an answer says about its context: the same however it is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.decision import Decision
from app.compaction.request import ChatRequest
from app.compaction.view import Conversation
from app.conversation.messages import Kind, Message
from app.conversation.reasons import Code, because
from app.proxy.reply import context_headers, context_members, context_of
from app.tokens.calibration import Line
from app.tokens.estimate import Costs
from tests.unit.conversations import IDENTITY, TENANT

UNTOUCHED = Decision(None)
FULL = b'"context_status":"full"'


def request(name: str, tokens: int, line: Line) -> ChatRequest:
    """A request of so many tokens, by our estimate, in a conversation of that name."""
    asked = Message(Kind.USER, "user", ("Hello.",), raw=b"{}", digest=b"digest")
    conversation = Conversation([asked], IDENTITY, TENANT, lambda: Costs((tokens,), 0), None)
    known: dict[str, Any] = dict.fromkeys(ChatRequest.__struct_fields__)
    known |= {"conversation_id": name, "conversation": conversation, "budget": SimpleNamespace(line=line)}
    return ChatRequest(**known | {"measure": SimpleNamespace(window=SimpleNamespace(context=8_192))})


@given(
    st.one_of(st.from_regex(r"[a-zA-Z0-9_]{1,40}", fullmatch=True), st.text(min_size=1)),
    st.integers(0, 10**9),
    st.floats(-5_000, 5_000),
    st.sampled_from([UNTOUCHED, Decision(None, why=because(Code.COMPACTION_OFF))]),
)
def test_an_answer_an_event_and_a_plan_give_the_same_context(
    name: str, tokens: int, offset: float, decision: Decision
) -> None:
    known = request(name, tokens, Line(offset, 1.1))
    members = context_members(known, decision)
    assert members.status == FULL
    answered = msgspec.json.decode(b"{%b}" % members.report)
    assert answered == {"context_status": "full", "context": context_of(known, decision)}


def test_headers_and_members_give_the_same_numbers() -> None:
    known = request("auto_1", 1_000, Line(20.0, 1.5))
    headers, tokens = dict(context_headers(known, UNTOUCHED)), context_of(known, UNTOUCHED)["tokens"]
    assert headers == {
        b"x-context-status": b"full",
        b"x-context-conversation-id": b"auto_1",
        b"x-context-tokens-before": b"%d" % tokens["estimated"],
        b"x-context-tokens-after": b"%d" % tokens["forwarded"],
        b"x-context-window": b"%d" % tokens["window"],
    }

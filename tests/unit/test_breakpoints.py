"""Cache breakpoints: one more before the quotation, where the client sets breakpoints and its provider takes it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.formats.chat_completions import BREAKPOINTS as CHAT
from app.formats.messages.messages import BREAKPOINTS as MESSAGES
from app.formats.raw_json import RawObject

QUOTATION = "[Quoted] é"
SHORT: Any = {"type": "ephemeral"}
LONG: Any = {"type": "ephemeral", "ttl": "1h"}
EXPLICIT: Any = {"mode": "explicit"}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {**user(*content), "role": "assistant"}


def block(text: str, mark: Any = None, member: str = "cache_control") -> dict[str, Any]:
    return {"type": "text", "text": text, **({member: mark} if mark else {})}


QUOTED, ASKED = user(block(QUOTATION)), user(block("q", SHORT))


def marked(*payload: Any, rules: Any = MESSAGES, **request: Any) -> list[Any] | None:
    """The payload with one more breakpoint. `request`: members beside the messages, which are the payload's."""
    source = RawObject(json.dumps({**request, "messages": payload}).encode())
    raw = [json.dumps(message, ensure_ascii=False).encode() for message in payload]
    found = rules.added(source, raw, QUOTATION)
    return None if found is None else [json.loads(message) for message in found]


def test_the_end_of_what_stands_before_the_quotation_is_marked() -> None:
    sent = marked(user("a"), assistant("b"), QUOTED, ASKED)
    assert sent == [user("a"), assistant(block("b", SHORT)), QUOTED, ASKED]
    joined = user(block("a"), block("b"), block(QUOTATION), block("q", SHORT))
    sent = marked(joined)
    assert sent == [user(block("a"), block("b", SHORT), block(QUOTATION), block("q", SHORT))]


@pytest.mark.parametrize(
    "last",
    [
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        block(""),
        {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
    ],
)
def test_no_mark_stands_on_a_block_that_may_not_have_one(last: dict[str, Any]) -> None:
    assert marked(user("a"), assistant(block("b"), last), QUOTED, ASKED) == [
        *(user("a"), assistant(block("b", SHORT), last), QUOTED, ASKED)
    ]
    assert marked(user("a"), assistant(last), QUOTED, ASKED) == [
        user(block("a", SHORT)),
        assistant(last),
        QUOTED,
        ASKED,
    ]


def test_no_more_than_four_marks_and_none_where_the_client_sets_none() -> None:
    before = user(block("a", SHORT), block("b", SHORT)), assistant("c")
    tools = [
        {"name": "t", "input_schema": {"properties": {"cache_control": {"type": "string"}}}, "cache_control": SHORT}
    ]
    assert marked(*before, QUOTED, ASKED) == [before[0], assistant(block("c", SHORT)), QUOTED, ASKED]
    assert marked(*before, QUOTED, ASKED, tools=tools) is None
    assert marked(*before, QUOTED, ASKED, cache_control=SHORT) is None, "on the whole request"
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block("r", SHORT)]}
    assert marked(*before, user(result), QUOTED, ASKED) is None
    assert marked(user("a"), assistant("b"), QUOTED, user("What does cache_control do?")) is None
    assert marked(user("a"), assistant(block("b", SHORT)), QUOTED, ASKED) is None, "it is marked already"


def test_no_mark_of_an_hour_stands_behind_one_of_five_minutes() -> None:
    def value(*payload: Any, **request: Any) -> Any:
        sent = marked(*payload, **request)
        assert sent is not None
        return sent[1]["content"][0]["cache_control"]

    before, asked = assistant("b"), user("q")
    assert value(user(block("a", LONG)), before, QUOTED, user(block("q", LONG))) == LONG
    assert value(user(block("a", LONG)), before, QUOTED, user(block("q", SHORT))) == SHORT
    assert value(user(block("a", LONG)), before, QUOTED, asked) == LONG
    assert value(user(block("a", LONG)), before, QUOTED, asked, cache_control=SHORT) == SHORT


def test_the_breakpoint_that_openai_sets_itself_counts() -> None:
    def asked(number: int) -> dict[str, Any]:
        return user(*(block(f"{i}", EXPLICIT, member="prompt_cache_breakpoint") for i in range(number)))

    before = user("a"), assistant("b"), QUOTED
    explicit = {"prompt_cache_options": {"mode": "explicit"}}
    assert marked(*before, asked(2), rules=CHAT) is not None
    assert marked(*before, asked(3), rules=CHAT) is None
    assert marked(*before, asked(3), rules=CHAT, **explicit) is not None
    assert marked(*before, asked(4), rules=CHAT, **explicit) is None
    assert marked(*before, user("q"), rules=CHAT, prompt_cache_options={"ttl": "30m"}) is not None
    assert marked(*before, user("q"), rules=CHAT, **explicit) is None

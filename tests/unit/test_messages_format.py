"""Messages, beyond what every format has to keep: its own blocks, its order, its marks and its beginnings."""

from __future__ import annotations

import json
from typing import Any

from app.compaction.prompts import chunk_text
from app.compaction.view import Carried, Conversation, Note, Part, Pruned, Summary, Verbatim, View
from app.conversation.messages import Kind, Message
from app.formats.messages.format import MESSAGES
from app.formats.reader import MessageReader
from app.formats.requests import WireRequest
from app.tokens.estimate import Costs
from tests.unit.conversations import IDENTITY, chunk, count

EPHEMERAL = {"type": "ephemeral"}


def block(said: str, **members: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **members}


def use(id_: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": f"tool_{id_}", "input": {"a": 1}}


def result(id_: str, content: Any = "r") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": content}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {**user(*content), "role": "assistant"}


def system(said: str = "mind") -> dict[str, Any]:
    return {"role": "system", "content": said}


def body(*messages: Any, **members: Any) -> bytes:
    return json.dumps({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages, **members}).encode()


def request(*messages: Any, **members: Any) -> WireRequest:
    return MESSAGES.read(body(*(messages or (user("q"),)), **members))


def read(*messages: Any, **members: Any) -> tuple[Message, ...]:
    return MessageReader(IDENTITY, MESSAGES.message).read(request(*messages, **members).raw_messages)


def talk_of(*messages: Any, **members: Any) -> Conversation:
    history = read(*messages, **members)
    return Conversation(history, IDENTITY, "t", lambda: Costs([count(m.text) for m in history], 0), None)


def rendered(talk: Conversation, *parts: Part, alternate: bool = False) -> list[Any]:
    return [json.loads(raw) for raw in MESSAGES.render(talk, View(parts, 1), alternate)]


def summary(talk: Conversation, stop: int, **changes: Any) -> Summary:
    return Summary(chunk(talk, 0, stop, **changes))


def noted(talk: Conversation, stop: int, **members: Any) -> dict[str, Any]:
    return user(block(chunk_text(chunk(talk, 0, stop)), **members))


# Requests


def test_each_result_of_a_message_is_its_own_calls() -> None:
    failed = result("b", [block("no"), block("such file")]) | {"is_error": True}
    asked, told = read(user("q"), assistant(use("a"), use("b")), user(result("a", "yes"), failed, block("Go on.")))[1:]
    assert [call.id for call in asked.calls] == ["a", "b"]
    assert [(each.text, each.has_failed) for each in told.results] == [("yes", False), ("no\nsuch file", True)]
    silent = read(user("q"), assistant(use("a"), use("b")), user(result("a", "yes"), result("b", [])))[2]
    assert [each.text for each in silent.results] == ["yes", ""]
    (alone,) = read(user(result("a", [block("yes"), block("no")])))
    assert [(each.text, each.has_failed) for each in alone.results] == [("yes\nno", False)]


def test_a_conversation_is_named_by_what_its_client_sends() -> None:
    names = request(conversation_id="s4", metadata={"session_id": "s2", "conversation_id": "s3"}).names
    assert names == (
        ("conversation_id", b'"s4"'),
        ("metadata.conversation_id", b'"s3"'),
        ("metadata.session_id", b'"s2"'),
    )
    assert request(metadata=[]).names == ()
    assert request().cache_key is None


def test_only_prompts_of_known_cost_are_typical() -> None:
    own = {"name": "f", "input_schema": {}}
    keeps = {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}
    assert request(tools=[own, {**own, "type": "custom"}], mcp_servers=[], **keeps).is_typical
    for members in (
        {"tools": [own, {"type": "web_search_20250305", "name": "web_search"}]},
        {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"mcp_servers": [{"url": "u"}]},
        {"container": "c"},
    ):
        assert not request(**members).is_typical, members


def test_declarations_are_read_tolerantly() -> None:
    own = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
    read_ = request(
        tools=[own, {"type": "bash_20250124"}, 7],
        tool_choice={"type": "tool", "name": "f"},
        output_config={"format": {"type": "json_schema", "schema": {"a": 1}}},
    ).declarations()
    assert [(tool.name, tool.description, tool.parameters) for tool in read_.tools] == [("f", "d", {"type": "object"})]
    assert read_.others == ('{"type": "bash_20250124"}',)
    assert (read_.choice, read_.forced) == ("tool", "f")
    assert read_.response_format is not None
    assert read_.response_format.schema == {"a": 1}
    assert request(tool_choice=7).declarations().others == ()
    assert MESSAGES.read(body()[:-1] + b', "tools": 1e999}').declarations().others == ("1e999",)
    assert request(tools=[own], tool_choice={"type": "none"}).forbids_tools


# Messages


def test_texts_and_pictures_are_read_wherever_they_stand() -> None:
    picture = {"type": "image", "source": {"type": "base64", "data": "iVBORw0KGgo="}}
    plain = {"type": "document", "source": {"type": "text", "data": "d"}}
    held = {"type": "document", "source": {"type": "content", "content": [block("e"), picture]}}
    file = {"type": "document", "source": {"type": "base64", "data": "JVBE"}}
    found = {"type": "search_result", "source": "s", "title": "t", "content": [block("f")]}
    [message] = read(
        user(plain, held, file, found, result("a", [block("g"), picture]), {"type": "x_new", "of": ["12"]})
    )
    assert message.texts == ("d", "e", "f", "g")
    assert [media.kind for media in message.media] == ["image", "file", "image", "x_new"]


def test_what_a_provider_compacted_is_instructions_and_read_from_there_on_only() -> None:
    kept = {"type": "compaction", "content": "so far"}
    gone = [user("q"), system(), assistant("a"), user("b")]
    history = [*gone, assistant(kept, block("c"), use("a")), user(result("a")), user("d")]
    asked = request(*history, system="s")
    beside, compacted, last = read(*history, system="s")
    assert (beside.kind, compacted.kind, last.kind) == (Kind.INSTRUCTIONS, Kind.INSTRUCTIONS, Kind.USER)
    assert compacted.texts == ("so far", "c", "r")
    assert compacted.raw in asked.body
    talk = talk_of(*history, system="s")
    assert len(talk.instructions) == 2
    assert MESSAGES.render(talk, View((Verbatim(0, 1),), 1)) == list(asked.raw_messages)
    assert json.loads(asked.with_messages(asked.raw_messages))["messages"] == history
    failed = read(user("q"), assistant({"type": "compaction", "content": None}, block("a")), user("b"))
    assert [message.kind for message in failed] == [Kind.USER, Kind.ASSISTANT, Kind.USER]


# Payloads


def test_instructions_wait_for_a_place_where_they_may_stand() -> None:
    talk = talk_of(user("q"), system("one"), system("two"), assistant("a"), user("b"), assistant("c"))
    note = noted(talk, 4)
    carried = summary(talk, 4, carried=(1, 2)), Carried(1), Carried(2)
    placed = [user("b"), system("one"), system("two"), assistant("c")]
    assert rendered(talk, *carried, Verbatim(4, 6)) == [note, *placed]
    assert rendered(talk, Pruned(0, 1), Verbatim(1, 3), Pruned(3, 4), Verbatim(4, 6)) == placed
    ended = talk_of(user("q"), system("one"), assistant("a"), user("b"))
    assert rendered(ended, summary(ended, 3, carried=(1,)), Carried(1), Verbatim(3, 4))[1:] == [
        user("b"),
        system("one"),
    ]
    both = rendered(ended, Verbatim(0, 3), Carried(1))
    assert both == [user("q"), system("one"), system("one"), assistant("a")], "beside another one"
    kept = rendered(talk, Verbatim(0, 1), Pruned(1, 1), Verbatim(3, 4), Verbatim(1, 3), Verbatim(5, 6))
    assert kept == [user("q"), system("one"), system("two"), assistant("a"), assistant("c")]


def test_no_mark_of_an_hour_comes_behind_one_of_five_minutes() -> None:
    long = {**EPHEMERAL, "ttl": "1h"}
    talk = talk_of(user(block("q", cache_control=long)), assistant(block("a", cache_control=EPHEMERAL)), user("b"))
    sent = rendered(talk, summary(talk, 2, carried=(0,)), Carried(0), Verbatim(2, 3))
    assert sent == [noted(talk, 2, cache_control=EPHEMERAL), user(block("q")), user("b")]


def test_joined_messages_have_their_results_first() -> None:
    talk = talk_of(user("q"), assistant(use("a")), user(result("a"), block("b", x_own=1)), assistant("c"), user("d"))
    note = Note("stub", "n", 1)
    sent = rendered(talk, Verbatim(0, 2), note, Verbatim(2, 5), alternate=True)
    assert sent[2] == user(result("a"), block("n"), block("b", x_own=1))
    assert rendered(talk, note, Verbatim(4, 5), alternate=True) == [user(block("n"), block("d"))]
    neighbours = talk_of(user("q"), user("b"), assistant("a"), user("c"))
    assert rendered(neighbours, Verbatim(0, 2), Pruned(2, 3), Verbatim(3, 4), alternate=True)[0] == user("q")

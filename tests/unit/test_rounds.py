"""Rounds: several answers of a provider are one to the client, streamed or whole, and none of our calls is in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.reasons import Code
from app.core.recall.asked import ask_policy
from app.errors import UpstreamUnreadable
from app.proxy.rounds import in_rounds
from app.wire.formats import FORMATS
from app.wire.recall_tools import Aside, RecallTools, Rounds, summed
from app.wire.sse import FrameSplitter, data_of

Json = dict[str, Any]
OURS, THEIRS = "recall_search", "get_order"
POLICY = ask_policy()
BY_NAME = {each.name: each for each in FORMATS if each.recall_tools is not None}
by_format = pytest.mark.parametrize("name", sorted(BY_NAME))
Piece = tuple[str, str]
"""Kind (text, ours, theirs, thought) and a word."""


def tools_of(name: str) -> RecallTools:
    tools = BY_NAME[name].recall_tools
    assert tools is not None
    return tools


def whole(name: str, pieces: Sequence[Piece], number: int) -> bytes:
    """An answer in one piece, whose prompt has a hundred tokens."""
    return json.dumps(
        {"chat_completions": _completion, "messages": _message, "responses": _response}[name](pieces, number)
    ).encode()


def _completion(pieces: Sequence[Piece], number: int) -> Json:
    calls = [
        {
            "id": f"{word}_{number}",
            "type": "function",
            "function": {"name": kind_name(kind), "arguments": arguments(word)},
        }
        for kind, word in pieces
        if kind in ("ours", "theirs")
    ]
    text = " ".join(word for kind, word in pieces if kind == "text") or None
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 5}}
    return {
        "id": f"c{number}",
        "object": "chat.completion",
        "created": number,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }


def _message(pieces: Sequence[Piece], number: int) -> Json:
    def block(kind: str, word: str) -> Json:
        if kind == "text":
            return {"type": "text", "text": word}
        if kind == "thought":
            return {"type": "thinking", "thinking": "Hm.", "signature": word}
        return {
            "type": "tool_use",
            "id": f"{word}_{number}",
            "name": kind_name(kind),
            "input": json.loads(arguments(word)),
        }

    calls = any(kind in ("ours", "theirs") for kind, _ in pieces)
    return {
        "id": f"msg{number}",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [block(*piece) for piece in pieces],
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 10},
    }


def _response(pieces: Sequence[Piece], number: int) -> Json:
    def item(kind: str, word: str) -> Json:
        if kind == "text":
            content = [{"type": "output_text", "text": word, "annotations": []}]
            return {
                "type": "message",
                "id": f"msg_{word}",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        if kind == "thought":
            return {"type": "reasoning", "id": f"rs_{word}", "summary": [], "encrypted_content": word}
        call = {"type": "function_call", "id": f"fc_{word}", "call_id": f"{word}_{number}", "name": kind_name(kind)}
        return {**call, "arguments": arguments(word), "status": "completed"}

    return {
        "id": f"resp{number}",
        "object": "response",
        "created_at": number,
        "status": "completed",
        "model": "m",
        "tools": [{"type": "function", "name": THEIRS}, {"type": "function", "name": OURS}],
        "output": [item(*piece) for piece in pieces],
        "usage": {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110},
    }


def kind_name(kind: str) -> str:
    return OURS if kind == "ours" else THEIRS


def arguments(word: str) -> str:
    return json.dumps({"query": word})


def stream(name: str, body: bytes) -> list[bytes]:
    request = BY_NAME[name].read(BY_NAME[name].assembled("m", [b'{"role":"user","content":"hi"}'], 100))
    return [*BY_NAME[name].answers.frames_of(request, [], body)]


def played(name: str, rounds: Rounds, bodies: Sequence[bytes], *, streamed: bool) -> tuple[bytes, list[list[bytes]]]:
    """The client's answer, and the raw messages that followed the payload in each round behind the first."""
    passed, followed = b"", []
    for body in bodies:
        if streamed:
            splitter = FrameSplitter()
            for frame in stream(name, body):
                passed += b"".join(map(rounds.frame, splitter.feed(frame)))
        else:
            rounds.whole(body)
        if not rounds.asks:
            break
        followed.append(rounds.go_on(["found it"] * len(rounds.calls)))
    return passed + (rounds.end() if streamed else rounds.ended_whole()), followed


def read(name: str, answered: bytes, *, streamed: bool) -> tuple[list[Piece], Json]:
    """Texts and calls as a client understands them, in order, and the usage."""
    if not streamed:
        body = json.loads(answered)
        return _pieces(name, body), body["usage"]
    listen: dict[str, Callable[[Sequence[Json]], tuple[list[Piece], Json]]] = {
        "chat_completions": _streamed_completion,
        "messages": _streamed_message,
        "responses": _streamed_response,
    }
    return listen[name](told(FrameSplitter().feed(answered)))


def told(frames: Sequence[bytes]) -> list[Json]:
    """Data of frames that are JSON."""
    pieces = [frame[slice(*place)] for frame in frames if (place := data_of(frame))]
    return [json.loads(data) for data in pieces if data != b"[DONE]"]


def _streamed_completion(events: Sequence[Json]) -> tuple[list[Piece], Json]:
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    assert sum("role" in delta for delta in deltas) == 1
    calls: dict[int, Json] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls") or ()):
        assert call["index"] == len(calls), "numbered without gaps"
        calls[call["index"]] = call
    finishes = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    assert finishes == ["tool_calls" if calls else "stop"]
    message = {"content": "".join(delta.get("content") or "" for delta in deltas), "tool_calls": [*calls.values()]}
    usage = next(event["usage"] for event in events if event.get("usage"))
    return _pieces("chat_completions", {"choices": [{"message": message}]}), usage


def _streamed_message(events: Sequence[Json]) -> tuple[list[Piece], Json]:
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert (kinds.count("message_start"), kinds.count("message_delta")) == (1, 1)
    blocks: list[Json] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            delta, block = event["delta"], blocks[-1]
            if delta["type"] in ("text_delta", "thinking_delta", "signature_delta"):
                grown = delta["type"].removesuffix("_delta")
                block[grown] += delta[grown]
            else:
                block["input"] = json.loads(delta["partial_json"])
    calls = any(block["type"] == "tool_use" for block in blocks)
    assert events[-2]["delta"]["stop_reason"] == ("tool_use" if calls else "end_turn")
    return _pieces("messages", {"content": blocks}), events[-2]["usage"]


def _streamed_response(events: Sequence[Json]) -> tuple[list[Piece], Json]:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[0] == "response.created"
    assert kinds.count("response.created") == kinds.count("response.completed") == 1
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    ended = events[-1]["response"]
    assert added == [event["output_index"] for event in done] == list(range(len(ended["output"])))
    assert [event["item"] for event in done] == ended["output"]
    assert ended["id"] == events[0]["response"]["id"]
    for response in (ended, events[0]["response"]):
        assert [tool["name"] for tool in response["tools"]] == [THEIRS]
    return _pieces("responses", ended), ended["usage"]


def _pieces(name: str, answer: Json) -> list[Piece]:
    if name == "chat_completions":
        message = answer["choices"][0]["message"]
        text = [("text", word) for word in (message.get("content") or "").split()]
        calls = [json.loads(call["function"]["arguments"])["query"] for call in message.get("tool_calls") or ()]
        return [*text, *(("theirs", word) for word in calls)]
    if name == "messages":
        return [_block(block) for block in answer["content"]]
    return [_item(item) for item in answer["output"]]


def _block(block: Json) -> Piece:
    match block["type"]:
        case "text":
            return "text", block["text"]
        case "thinking":
            return "thought", block["signature"]
        case _:
            return "theirs", block["input"]["query"]


def _item(item: Json) -> Piece:
    match item["type"]:
        case "message":
            return "text", item["content"][0]["text"]
        case "reasoning":
            return "thought", item["encrypted_content"]
        case _:
            return "theirs", json.loads(item["arguments"])["query"]


def seen(name: str, rounds: Sequence[Sequence[Piece]]) -> list[Piece]:
    """Pieces of these rounds that a client is to see."""
    pieces: list[Piece] = []
    held: list[Piece] = []
    for each in rounds:
        held = []
        for kind, word in each:
            if kind == "thought":
                held.append((kind, word))
            elif kind != "ours":
                pieces += [*held, (kind, word)]
                held = []
    pieces += held
    if name == "chat_completions":
        pieces = [piece for piece in pieces if piece[0] == "text"] + [piece for piece in pieces if piece[0] == "theirs"]
    return pieces


def words(kinds: Sequence[str], number: int) -> list[Piece]:
    return [(kind, f"w{number}{place}") for place, kind in enumerate(kinds)]


_ASKING = st.lists(st.sampled_from(["text", "ours", "thought"]), min_size=1, max_size=4).filter(lambda ks: "ours" in ks)
_LAST = st.lists(st.sampled_from(["text", "ours", "theirs", "thought"]), min_size=1, max_size=5).filter(
    lambda kinds: "ours" not in kinds or "theirs" in kinds
)


@by_format
@given(asking=st.lists(_ASKING, max_size=3), last=_LAST, streamed=st.booleans())
def test_a_client_sees_what_each_round_says_to_it_and_nothing_of_ours(
    name: str, asking: list[list[str]], last: list[str], streamed: bool
) -> None:
    if name == "chat_completions":
        asking = [[kind for kind in kinds if kind != "thought"] for kinds in asking]
        last = [kind for kind in last if kind != "thought"] or ["text"]
    rounds = [words(kinds, number) for number, kinds in enumerate([*asking, last])]
    bodies = [whole(name, pieces, number) for number, pieces in enumerate(rounds)]
    composing = tools_of(name).rounds(POLICY.names)
    answered, followed = played(name, composing, bodies, streamed=streamed)
    pieces, usage = read(name, answered, streamed=streamed)
    assert pieces == seen(name, rounds)
    assert OURS.encode() not in answered
    prompts = usage.get("prompt_tokens", usage.get("input_tokens"))
    assert prompts == 100 * len(rounds)
    assert len(followed) == len(asking)
    assert composing.is_mixed == ("theirs" in last and ("ours" in last or bool(asking)))
    for raw_messages in followed:
        assert raw_messages == followed[-1][: len(raw_messages)], "each round goes on from the one before"


@by_format
def test_what_follows_the_payload_pairs_calls_and_results(name: str) -> None:
    bodies = [whole(name, words(["text", "ours", "ours"], 0), 0), whole(name, words(["text"], 1), 1)]
    _, [followed] = played(name, tools_of(name).rounds(POLICY.names), bodies, streamed=True)
    text = b"".join(followed).decode()
    for call in ("w01_0", "w02_0"):
        assert text.count(call) == 2
    assert text.count("found it") == 2


@by_format
@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_without_a_call_of_ours_is_the_providers(name: str, streamed: bool) -> None:
    body = whole(name, words(["text", "theirs"], 0), 0)
    answered, _ = played(name, tools_of(name).rounds(POLICY.names), [body], streamed=streamed)
    if streamed:
        said, heard = told(stream(name, body)), told(FrameSplitter().feed(answered))
    else:
        said, heard = [json.loads(body)], [json.loads(answered)]
    for each in (*said, *heard) if name == "responses" else ():
        (each.get("response") or each).pop("tools", None)
    assert heard == said


# What goes back beside the client's results


def answered_by_client(name: str, call_id: str) -> list[bytes]:
    called = {"id": call_id, "type": "function", "function": {"name": THEIRS, "arguments": "{}"}}
    call, result = {
        "chat_completions": (
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": call_id, "content": "sent"},
        ),
        "messages": (
            {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": THEIRS, "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": "sent"}]},
        ),
        "responses": (
            {"type": "function_call", "call_id": call_id, "name": THEIRS, "arguments": "{}"},
            {"type": "function_call_output", "call_id": call_id, "output": "sent"},
        ),
    }[name]
    return [b'{"role":"user","content":"hi"}', json.dumps(call).encode(), json.dumps(result).encode()]


@by_format
@pytest.mark.parametrize("before", [False, True])
def test_our_calls_go_back_to_their_place(name: str, before: bool) -> None:
    composing = tools_of(name).rounds(POLICY.names)
    asking = [whole(name, words(["ours"], 0), 0)] if before else []
    played(name, composing, [*asking, whole(name, words(["ours", "theirs", "ours"], 1), 1)], streamed=True)
    aside = composing.aside(["one", "two"])
    assert aside is not None
    assert aside.call_id == "w11_1"
    raw_messages = answered_by_client(name, "w11_1")
    restored = tools_of(name).restored(raw_messages, aside)
    assert restored is not None
    text = b"".join(restored).decode()
    places = [text.index(word) for word in (*(("w00_0",) if before else ()), "w10_1", "w11_1", "w12_1")]
    assert places == sorted(places)
    assert all(text.count(call) == 2 for call in ("w10_1", "w11_1", "w12_1"))
    assert text.index("w12_1") < text.index('"one"')
    assert aside.size > 0
    assert tools_of(name).restored(answered_by_client(name, "other"), aside) is None


@by_format
def test_there_is_nothing_to_put_back_without_a_call_of_the_clients(name: str) -> None:
    composing = tools_of(name).rounds(POLICY.names)
    composing.whole(whole(name, words(["ours"], 0), 0))
    assert composing.aside(["one"]) is None
    empty = msgspec.Raw(b"{}")
    lost = Aside("w", within=((0, empty),), results=(empty,))
    assert tools_of(name).restored([b'{"role":"assistant","content":"w"}'], lost) is None


# Odds and ends


@by_format
def test_an_error_in_a_stream_asks_for_nothing(name: str) -> None:
    composing = tools_of(name).rounds(POLICY.names)
    frames = stream(name, whole(name, words(["ours"], 0), 0))
    for frame in frames[:-2]:
        composing.frame(frame)
    error = b'data: {"type":"error","error":{"message":"overloaded"}}\n\n'
    assert b"overloaded" in composing.frame(error)
    composing.frame(frames[-1])
    assert not composing.asks


@by_format
@pytest.mark.parametrize("said_before", [False, True])
def test_an_error_in_a_later_round_is_held_unless_the_client_has_some_of_it(name: str, said_before: bool) -> None:
    composing = tools_of(name).rounds(POLICY.names)
    for frame in stream(name, whole(name, words(["ours"], 0), 0)):
        composing.frame(frame)
    composing.go_on(["found it"])
    for frame in stream(name, whole(name, words(["text"], 1), 1))[: -2 if said_before else 0]:
        composing.frame(frame)
    error = b'data: {"type":"error","error":{"message":"overloaded"}}\n\n'
    assert (b"overloaded" in composing.frame(error)) == said_before
    assert composing.falls_back != said_before
    composing.start_anew()
    assert b"overloaded" in composing.frame(error), "the answer without our functions is the last"


@by_format
def test_a_round_is_not_held_without_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.wire.recall_tools.LARGEST_ROUND", 5_000)
    composing = tools_of(name).rounds(POLICY.names)
    frames = stream(name, whole(name, words(["text"] * 400, 0), 0))[:-2]
    with pytest.raises(UpstreamUnreadable, match=r"more than 5000 bytes"):
        list(map(composing.frame, frames * 100))


@by_format
def test_what_is_no_frame_of_the_format_passes(name: str) -> None:
    composing = tools_of(name).rounds(POLICY.names)
    for frame in (b": keep-alive\n\n", b"data: no JSON\n\n", b"data: [1]\n\n"):
        assert composing.frame(frame) == frame
    composing.whole(b"no JSON")
    assert not composing.asks


@by_format
def test_our_functions_stand_behind_the_clients(name: str) -> None:
    body = b'{"model":"m","tools":[{"name":"get_order"}],"x":1}'
    tools = json.loads(tools_of(name).offered(body, POLICY.tools))["tools"]
    assert tools[0] == {"name": "get_order"}
    assert [tool.get("name") or tool["function"]["name"] for tool in tools[1:]] == ["recall_search", "recall_read"]
    alone = json.loads(tools_of(name).offered(b'{"model":"m"}', POLICY.tools))["tools"]
    assert json.loads(tools_of(name).offered(b'{"tools":null}', POLICY.tools))["tools"] == alone == tools[1:]


def test_usages_are_added_in_whatever_shape_they_come() -> None:
    one = {"prompt": 1, "details": {"cached": 2, "kind": "a"}, "cost": 0.5, "flag": True}
    other = {"prompt": 3, "details": {"cached": 4, "kind": "b"}, "cost": 0.25, "flag": False, "more": 7}
    total = {"prompt": 4, "details": {"cached": 6, "kind": "b"}, "cost": 0.75, "flag": False, "more": 7}
    assert summed(one, other) == total
    assert summed(None, one) == summed(one, None) == one


@pytest.mark.parametrize(
    ("name", "members", "objection"),
    [
        ("chat_completions", {}, None),
        ("chat_completions", {"tool_choice": "auto"}, None),
        ("chat_completions", {"tool_choice": "required"}, Code.ASK_TOOL_CHOICE),
        ("chat_completions", {"tool_choice": "none"}, Code.ASK_TOOL_CHOICE),
        ("chat_completions", {"functions": [{"name": "f"}]}, Code.ASK_TOOL_CHOICE),
        ("chat_completions", {"n": 2}, Code.ASK_CHOICES),
        ("chat_completions", {"response_format": {"type": "text"}}, None),
        ("chat_completions", {"response_format": {"type": "json_object"}}, Code.ASK_JSON),
        ("messages", {"output_config": {"effort": "low"}}, None),
        ("messages", {"output_config": {"format": {"type": "json_schema", "schema": {}}}}, Code.ASK_JSON),
        ("messages", {"output_format": {"type": "json_schema", "schema": {}}}, Code.ASK_JSON),
        ("messages", {"tool_choice": {"type": "auto"}}, None),
        ("messages", {"tool_choice": {"type": "tool", "name": "x"}}, Code.ASK_TOOL_CHOICE),
        ("responses", {"store": False}, None),
        ("responses", {"store": False, "text": {"format": {"type": "json_schema", "name": "n"}}}, Code.ASK_JSON),
        ("responses", {}, Code.ASK_STORED),
    ],
)
def test_a_request_that_leaves_no_choice_is_not_touched(name: str, members: Json, objection: Code | None) -> None:
    format_ = BY_NAME[name]
    body = format_.assembled("m", [b'{"role":"user","content":"hi"}'], 100)
    request = format_.read(msgspec.json.encode({**json.loads(body), **members}))
    assert tools_of(name).objection(request) == objection


# Providers that depart from the formats


def chunks(*deltas: Json, finish: str | None = "tool_calls") -> list[bytes]:
    """A stream of Chat Completions that says these deltas, and ends."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choices: list[Json] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices += [{"index": 0, "delta": {}, "finish_reason": finish}] if finish else []
    pieces = [json.dumps({**head, "choices": [choice]}).encode() for choice in choices]
    return [b"data: " + data + b"\n\n" for data in (*pieces, b"[DONE]")]


def piece(index: int | None = None, call_id: str | None = None, name: str | None = None, text: str = "") -> Json:
    function = {"arguments": text, **({"name": name} if name is not None else {})}
    given = {"index": index, "id": call_id, "function": function}
    return {"tool_calls": [{key: value for key, value in given.items() if value is not None}]}


@pytest.mark.parametrize(
    "deltas",
    [
        [piece(None, "a", OURS, '{"query": "w"}')],
        [piece(None, "a", OURS), piece(None, None, None, '{"query":'), piece(None, None, None, ' "w"}')],
        [piece(None, "a", OURS), piece(None, "a", None, '{"query":'), piece(None, "a", None, ' "w"}')],
        [piece(0, "a"), piece(0, None, OURS), piece(0, None, None, '{"query": "w"}')],
        [piece(0, "a", "recall_"), piece(0, None, "search"), piece(0, None, None, '{"query": "w"}')],
        [piece(0, None, OURS, '{"query":'), piece(0, "a", OURS, ' "w"}')],
        [piece(0, "a", OURS, '{"query":'), piece(0, "b", None, ' "w"}')],
    ],
    ids=["no index", "no index, pieces", "no index, ids", "late name", "name in pieces", "late id", "changing ids"],
)
@pytest.mark.parametrize("finish", ["tool_calls", "stop", None])
def test_a_call_of_ours_is_known_however_it_is_told(deltas: list[Json], finish: str | None) -> None:
    composing = tools_of("chat_completions").rounds(POLICY.names)
    passed = b"".join(map(composing.frame, chunks(*deltas, finish=finish)))
    [call] = composing.calls
    assert (call.id, call.name, json.loads(call.arguments)) == ("a", OURS, {"query": "w"})
    assert composing.asks
    assert b"tool_calls" not in passed


def test_a_client_gets_its_call_though_it_has_the_number_of_ours() -> None:
    composing = tools_of("chat_completions").rounds(POLICY.names)
    frames = chunks(piece(0, "a", OURS, "{}"), piece(0, "b", THEIRS, "{}"))
    said = told([frame for frame in map(composing.frame, frames) if frame])
    assert [call["id"] for each in said for call in each["choices"][0]["delta"]["tool_calls"]] == ["b"]
    assert composing.is_mixed


@pytest.mark.parametrize("name", ["", "recall_"])
def test_a_call_without_a_name_of_its_own_is_the_clients(name: str) -> None:
    composing = tools_of("chat_completions").rounds(POLICY.names)
    passed = b"".join(map(composing.frame, chunks(piece(0, "a", name, "{}"))))
    assert b'"a"' in passed + composing.end()
    assert not composing.asks


def test_usage_in_every_chunk_is_the_sum_so_far() -> None:
    composing = tools_of("chat_completions").rounds(POLICY.names)
    passed = b""
    for number in range(2):
        frames = chunks(piece(0, "a", OURS, "{}")) if not number else chunks({"content": "w"}, finish="stop")
        counted = [frame.replace(b'{"id"', b'{"usage": {"prompt_tokens": 100}, "id"') for frame in frames]
        passed = b"".join(map(composing.frame, counted))
        if not number:
            composing.go_on(["found"])
    usages = [each["usage"]["prompt_tokens"] for each in told(FrameSplitter().feed(passed + composing.end()))]
    assert usages == [200, 200]


@by_format
@pytest.mark.parametrize("done", [b"data: [DONE]\n\n", b"data:[DONE]\r\n\r\n"])
def test_the_end_of_a_stream_passes_as_it_came_in_every_format(name: str, done: bytes) -> None:
    composing = tools_of(name).rounds(POLICY.names)
    bodies = [whole(name, words(kinds, number), number) for number, kinds in enumerate((["ours"], ["text"]))]
    for body in bodies:
        for frame in (*[frame for frame in stream(name, body) if b"[DONE]" not in frame], done):
            composing.frame(frame)
        if composing.asks:
            composing.go_on(["found"])
    assert composing.end().endswith(done)


@by_format
def test_what_is_no_answer_in_one_piece_passes_as_it_came(name: str) -> None:
    for body in (b"<html>", b'{"choices": [], "content": 1}', b'{"choices": [{"message": 1}]}'):
        composing = tools_of(name).rounds(POLICY.names)
        assert not composing.whole(body)
        assert json_or_text(composing.ended_whole()) == json_or_text(body)


def json_or_text(body: bytes) -> Any:
    return json.loads(body) if body.startswith(b"{") else body


def test_parts_of_a_content_stay_as_they_are() -> None:
    composing = tools_of("chat_completions").rounds(POLICY.names)
    composing.whole(whole("chat_completions", words(["ours"], 0), 0))
    composing.go_on(["found"])
    body = json.loads(whole("chat_completions", words(["text"], 1), 1))
    parts = body["choices"][0]["message"]["content"] = [{"type": "text", "text": "w"}]
    body["choices"][0]["message"]["tool_calls"] = [1]
    composing.whole(json.dumps(body).encode())
    assert json.loads(composing.ended_whole())["choices"][0]["message"]["content"] == parts


def test_a_tool_of_the_providers_goes_back_with_our_call() -> None:
    composing = tools_of("messages").rounds(POLICY.names)
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    ours = {"type": "tool_use", "id": "t", "name": OURS, "input": {}}
    for said in (
        {"type": "content_block_start", "index": 0, "content_block": search},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": '{"query": "q"}'},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": ours},
        {"type": "ping"},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
    ):
        composing.frame(b"data: " + json.dumps(said).encode() + b"\n\n")
    assert composing.asks
    assert composing.whole_calls
    assert json.loads(composing.said()[0])["content"] == [{**search, "input": {"query": "q"}}, ours]


def test_what_cannot_be_put_together_is_still_waited_for() -> None:
    composing = tools_of("messages").rounds(POLICY.names)
    strange = {"type": "text", "text": ""}
    ours = {"type": "tool_use", "id": "t", "name": OURS, "input": {}}
    for said in (
        {"type": "content_block_start", "index": 0, "content_block": strange},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "strange_delta"}},
        {"type": "content_block_start", "index": 1, "content_block": ours},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    ):
        composing.frame(b"data: " + json.dumps(said).encode() + b"\n\n")
    assert composing.asks, "the model waits"
    assert not composing.whole_calls, "and is asked without our functions"


@pytest.mark.parametrize(("offered", "status", "tools"), [(0, 200, True), (9, 400, True), (9, 200, False)])
def test_an_answer_stays_as_it_is_where_nothing_was_offered_or_nobody_can_be_asked(
    offered: int, status: int, tools: bool
) -> None:
    format_ = SimpleNamespace(recall_tools=tools_of("messages") if tools else None)
    request = SimpleNamespace(format=format_, asks=POLICY)
    observed: Any = SimpleNamespace(request=request, decision=SimpleNamespace(offered=offered, view=SimpleNamespace()))
    unused: Any = None
    answering: Any = SimpleNamespace(status=status)
    assert in_rounds(unused, unused, observed, answering) is answering


@by_format
def test_a_round_that_was_cut_tells_no_usage(name: str) -> None:
    """What the beginning of a message says of its answer is no count."""
    rounds = tools_of(name).rounds(POLICY.names)
    frames = FrameSplitter().feed(b"".join(stream(name, whole(name, [("text", "one"), ("text", "two")], 1))))
    for frame in frames[: len(frames) // 2]:
        rounds.frame(frame)
    assert rounds.usage_said is None

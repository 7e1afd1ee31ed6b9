"""Gemini: model and streaming in the path, names in two cases, signatures, arrays of answers, addresses upstream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.compaction.view import Altered, Conversation, Verbatim, View
from app.formats.answers import ContextMembers
from app.formats.gemini import GEMINI
from app.formats.paths import format_at, format_counted, format_posted, keeps_version
from app.formats.reader import MessageReader
from app.formats.refusals import decoded_body, read_overflow
from app.http.upstream import Upstream
from app.tokens.estimate import Costs
from tests.unit.conversations import IDENTITY, count

STATUS = b'"context_status":"summarized"'
TOLD = ContextMembers(STATUS, STATUS + b',"context":{"status":"summarized"}')
BODY: Any = {"contents": [{"role": "user", "parts": [{"text": "Hi."}]}]}


def read(target: str, **members: Any) -> Any:
    return GEMINI.read(json.dumps({**BODY, **members}).encode(), target=target.encode())


@pytest.mark.parametrize(
    ("target", "model", "streams"),
    [
        ("/v1beta/models/gemini-2.5-pro:generateContent", "gemini-2.5-pro", False),
        ("/v1/models/gemini-2.5-pro:streamGenerateContent?alt=sse&key=k", "gemini-2.5-pro", True),
        ("/v1beta/models/gemini-2.5-pro:streamGenerateContent?key=k", "gemini-2.5-pro", False),
        ("/v1/projects/p/locations/l/publishers/google/models/g-1:streamGenerateContent?alt=sse", "g-1", True),
    ],
)
def test_the_path_names_the_model_and_says_whether_to_stream(target: str, model: str, streams: bool) -> None:
    request = read(target)
    assert (request.model, request.answer.stream) == (model, streams)
    assert GEMINI.model_in(b"<p>", target.encode()) == model
    path = target.partition("?")[0].encode()
    assert format_posted(path) == format_at(path) == "gemini"


def test_other_paths_of_the_api_are_its_own_and_none_is_compacted() -> None:
    for path in (b"/v1beta/models", b"/v1beta/cachedContents", b"/upload/v1beta/files", b"/v1/models/m:embedContent"):
        assert (format_at(path), format_posted(path)) == ("gemini", None)
    assert format_counted(b"/v1beta/models/m:countTokens") == "gemini"
    assert format_at(b"/v1/models", ((b"x-goog-api-key", b"k"),)) == "gemini"


@pytest.mark.parametrize(
    ("base_url", "target", "expected"),
    [
        ("https://google.test", b"/v1/models/m:generateContent?key=k", b"/v1/models/m:generateContent?key=k"),
        ("https://gateway.test/google/v1", b"/v1beta/models?pageSize=9", b"/google/v1beta/models?pageSize=9"),
        ("https://google.test/v1beta/openai", b"/v1beta/models", b"/v1beta/models"),
        ("https://gateway.test/api/v1", b"/v1/chat/completions", b"/api/v1/chat/completions"),
    ],
)
async def test_the_version_in_a_path_is_googles_and_no_base_urls(base_url: str, target: bytes, expected: bytes) -> None:
    speaks = frozenset({"gemini", "chat_completions"})
    upstream = Upstream(base_url, 1, 1, 1, b"i", keeps_version=lambda target: keeps_version(speaks, target))
    head, _ = upstream.head(b"POST", target, []).for_body(b"")
    assert head.startswith(b"POST %b HTTP/1.1" % expected)
    await upstream.close()


def test_members_are_read_in_both_cases_and_a_lowered_cap_keeps_the_rest() -> None:
    body = b'{"contents": [], "generation_config": {"max_output_tokens": 900, "topK":1.0}, "system_instruction": {}}'
    request = GEMINI.read(body, target=b"/v1/models/m:generateContent")
    assert (request.answer.output, len(request.raw_messages)) == (900, 1)
    assert request.with_output_cap(body, 500) == body.replace(b"900", b"500")
    calling = {"functionCallingConfig": {"mode": "NONE"}}
    asked = read("/v1/models/m:generateContent", tools={"functionDeclarations": [{"name": "f"}]}, toolConfig=calling)
    assert (asked.has_tools, asked.forbids_tools, len(asked.declarations().tools)) == (True, True, 1)


def talk_of(*contents: Any) -> Conversation:
    raw = [json.dumps(content, separators=(",", ":")).encode() for content in contents]
    messages = MessageReader(IDENTITY, GEMINI.message).read(raw)
    return Conversation(messages, IDENTITY, "t", lambda: Costs([count(m.text) for m in messages], 0), None)


CALLED = {"function_call": {"name": "f", "args": {"a": "x" * 50}}, "thought_signature": "c2ln"}
CALLS: Any = {"role": "model", "parts": [CALLED, {"functionCall": {"name": "f", "args": {}}}]}
RESULTS = {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"r": f"{n}"}}} for n in (1, 2)]}
ASKED = {"parts": [{"text": "Go."}]}


def test_calls_without_ids_are_answered_in_order() -> None:
    result = talk_of(ASKED, CALLS, RESULTS).transcript.messages[2]
    assert [caller and caller.call for caller in result.callers] == [0, 1]
    assert [each.text for each in result.results] == ["1", "2"]


def test_a_call_that_is_changed_gets_the_documented_signature_and_what_is_cut_in_front_of_it_a_users_text() -> None:
    talk = talk_of(ASKED, CALLS, RESULTS)
    cut = Altered(1, (), 1, "masked", calls=((0, '{"a":"x"}'), (1, "{}")))
    first, changed, last = map(json.loads, GEMINI.render(talk, View((cut, Verbatim(2, 3)), 1)))
    assert first["role"] == "user"
    assert changed["parts"][0]["function_call"]["args"] == {"a": "x"}
    assert changed["parts"][0]["thought_signature"] == "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
    assert (changed["parts"][1], last) == (CALLS["parts"][1], RESULTS)


def test_an_array_of_answers_keeps_its_bytes_but_for_the_members_of_its_ends() -> None:
    first, last = (b'{"candidates":[{"content":{"parts":[{"text":"%b"}]}%b}]}' % each for each in (
        (b"a", b""), (b"b", b',"finishReason":"STOP"'),
    ))  # fmt: skip
    editor = GEMINI.editor(TOLD)
    edited = editor.whole(b"[" + first + b"\r\n,\r\n" + last + b"\n]\n")
    assert edited == b"[%b,%b}\r\n,\r\n%b,%b}\n]\n" % (first[:-1], TOLD.status, last[:-1], TOLD.report)
    assert (editor.ended, editor.whole(b"[1]"), editor.whole(b"[")) == (True, b"[1]", b"[")


def test_events_with_line_ends_of_two_bytes_get_members_and_keep_the_rest() -> None:
    frame = b'data: {"candidates": [{"content": {"parts": [{"text": "a"}]}}], "x": 1.50}\r\n\r\n'
    assert GEMINI.editor(TOLD).edit(frame) == frame.replace(b"}\r", b"," + STATUS + b"}\r")


def test_a_length_and_a_bucket_of_a_minute_say_nothing_of_a_window() -> None:
    editor = GEMINI.editor()
    editor.whole(b'{"candidates":[{"content":{"role":"model"},"finishReason":"MAX_TOKENS"}]}')
    assert (editor.ended, editor.at_length, editor.window_full) == (True, False, False)
    bucket = b'{"error":{"code":429,"message":"Quota exceeded for metric: x/input_token_count, limit: 1000000"}}'
    assert read_overflow(429, decoded_body(bucket)) is None


def test_a_summary_is_asked_for_where_the_conversation_is() -> None:
    target = GEMINI.summaries.target
    assert target("m") == b"/v1beta/models/m:streamGenerateContent?alt=sse"
    vertex = b"/v1/projects/p/locations/l/publishers/google/models/other:generateContent"
    assert target("m", vertex, b"key=k") == vertex.replace(b"other:g", b"m:streamG") + b"?alt=sse&key=k"

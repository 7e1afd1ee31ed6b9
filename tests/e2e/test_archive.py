"""The archive, with real clients through a real server: after many compactions the whole conversation comes back.

Letter by letter, to whom it belongs and to nobody else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import anthropic
import msgspec
import openai
import pytest

from app.wire.formats import FORMATS
from lab.simulator import ScriptedCall, Simulator
from tests.databases import stored_rows
from tests.e2e.commands import until
from tests.e2e.compactions import statuses
from tests.e2e.conftest import TABLES
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, get, post, request_bytes, send
from tests.e2e.running import WINDOW, StartSteno, Steno
from tests.faults.proxy import FaultProxy

TURNS = 26
RULES = "Answer as the clerk of the shop, and in one sentence."
CALL = ScriptedCall(name="look_up", arguments='{"order": "ORD-0007"}')
SCHEMA: Any = {"type": "object", "properties": {"order": {"type": "string"}}}
FILLER = "the clerk wrote down what was agreed about the parcel so that nobody has to ask the customer again"
ODD = 'He said "ä 界 \U0001f600 \u2028 \\n", 1e400 times.\n\t'
"""Letters that encoders of JSON write in ways of their own."""
FORMAT_OF = {each.name: each for each in FORMATS}


@pytest.fixture
def simulator() -> Simulator:
    simulator = Simulator(models="any", window=WINDOW, tables=TABLES)
    asks = lambda record: record.kind == "chat" and b"Find it?" in record.body[-1200:]  # noqa: E731
    simulator.when(asks, tool_calls=[CALL])
    return simulator


@dataclass
class Talk:
    """One conversation of one client, and the bodies that the client sent."""

    steno: Steno
    key: str
    name: str
    clients: ExitStack
    history: list[Any] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    actions: set[str] = field(default_factory=set)

    format = ""

    def question(self, number: int) -> str:
        filler = " ".join(islice(cycle(FILLER.split()), 250))
        return f"{self.key} {self.name} {number}: {ODD} {filler}" + (" Find it?" if number % 4 == 3 else "")

    def watch(self, client: Any) -> Any:
        """Notes what it sends, and what was done to it."""
        inner = self.clients.enter_context(client)._client
        inner.event_hooks = {
            "request": [lambda request: self.bodies.append(request.content)],
            "response": [
                lambda answer: (
                    self.actions.update(answer.headers["x-context-actions"].split(","))
                    if "x-context-actions" in answer.headers
                    else None
                )
            ],
        }
        return client

    @property
    def headers(self) -> dict[str, str]:
        return {"x-context-conversation-id": self.name}

    def sent(self) -> list[bytes]:
        """The history of the last request, as it went over the wire."""
        spoken = FORMAT_OF[self.format]
        return list(map(spoken.alone, spoken.read(self.bodies[-1]).raw_messages))

    def turn(self, number: int) -> None:
        raise NotImplementedError


class ChatTalk(Talk):
    format = "chat_completions"

    def turn(self, number: int) -> None:
        if not number:
            self.client: openai.OpenAI = self.watch(openai.OpenAI(base_url=self.steno.base_url, api_key=self.key))
            self.history.append({"role": "system", "content": RULES})
        self.history.append({"role": "user", "content": self.question(number)})
        tools: Any = [{"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}]
        while True:
            answer = (
                self.client.chat.completions.create(
                    model="gpt-4o",
                    messages=[],
                    tools=tools,
                    extra_headers=self.headers,
                    extra_body={"messages": self.history},
                )
                .choices[0]
                .message
            )
            self.history.append(answer.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
            if not answer.tool_calls:
                return
            for call in answer.tool_calls:
                self.history.append({"role": "tool", "tool_call_id": call.id, "content": f"Found {number}."})


class MessagesTalk(Talk):
    format = "messages"

    def turn(self, number: int) -> None:
        if not number:
            self.client: anthropic.Anthropic = self.watch(
                anthropic.Anthropic(base_url=self.steno.url, api_key=self.key)
            )
        self.history.append({"role": "user", "content": self.question(number)})
        tools: Any = [{"name": "look_up", "input_schema": SCHEMA}]
        while True:
            with self.client.messages.stream(
                model="claude-x",
                max_tokens=400,
                system=RULES,
                messages=self.history,
                tools=tools,
                extra_headers=self.headers,
            ) as stream:
                answer = stream.get_final_message()
            blocks = [block.to_dict() for block in answer.content]
            self.history.append({"role": "assistant", "content": blocks})
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": f"Found {number}."} for call in calls]
            self.history.append({"role": "user", "content": results})


class ResponsesTalk(Talk):
    format = "responses"

    def turn(self, number: int) -> None:
        if not number:
            self.client: openai.OpenAI = self.watch(openai.OpenAI(base_url=self.steno.base_url, api_key=self.key))
        self.history.append({"role": "user", "content": self.question(number)})
        tools: Any = [{"type": "function", "name": "look_up", "parameters": SCHEMA, "strict": False}]
        while True:
            answer = self.client.responses.create(
                model="gpt-y",
                instructions=RULES,
                tools=tools,
                store=False,
                extra_headers=self.headers,
                extra_body={"input": self.history},
            )
            self.history += [item.to_dict() for item in answer.output]
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                return
            for call in calls:
                self.history.append(
                    {"type": "function_call_output", "call_id": call.call_id, "output": f"Found {number}."}
                )


TALKS: Mapping[str, type[Talk]] = {each.format: each for each in (ChatTalk, MessagesTalk, ResponsesTalk)}


def as_caller(steno: Steno, key: str, target: str, method: str = "GET", body: bytes | None = None) -> Answer:
    usual = (b"content-type: application/json", f"authorization: Bearer {key}".encode())
    return send(steno.url, request_bytes(body, *usual, method=method, target=target, usual=False), 30)


def pages(steno: Steno, key: str, target: str) -> Iterator[Answer]:
    after = ""
    while True:
        answered = as_caller(steno, key, f"{target}{after}")
        assert answered.status == 200, answered.body
        yield answered
        if not answered.json["has_more"]:
            return
        after = f"&after={answered.json['last_id']}"


def kept(steno: Steno, key: str, name: str) -> list[dict[str, Any]]:
    """All messages, with `sent` as the bytes that stand in the answer."""
    found = []
    for page in pages(steno, key, f"/context/conversations/{name}/messages?limit=7"):
        for raw in (msgspec.json.decode(page.body, type=dict[str, msgspec.Raw])["data"],):
            for entry in msgspec.json.decode(raw, type=list[dict[str, msgspec.Raw]]):
                sent = bytes(entry.pop("sent"))
                found.append({**{name: msgspec.json.decode(value) for name, value in entry.items()}, "sent": sent})
    return found


@pytest.fixture
def archiving(steno: StartSteno) -> Callable[..., Steno]:
    def start(**storage: Any) -> Steno:
        upstream = {"formats": list(FORMAT_OF)}
        return steno(upstream=upstream, storage={"messages": True, **storage})

    return start


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoken", "database"),
    [("chat_completions", "postgres_url"), ("messages", "sqlite_url"), ("responses", "postgres_url")],
)
def test_the_whole_conversation_comes_back_letter_by_letter(
    simulator: Simulator,
    archiving: Callable[..., Steno],
    spoken: str,
    database: str,
    request: pytest.FixtureRequest,
) -> None:
    """26 turns with compactions and tools, of two tenants with two conversations each, side by side."""
    steno = archiving(url=request.getfixturevalue(database))
    with ExitStack() as clients:
        talks = [TALKS[spoken](steno, key, name, clients) for key in ("sk-one", "sk-two") for name in ("a", "b")]
        for number in range(TURNS):
            for talk in talks:
                talk.turn(number)
        for talk in talks:
            assert "summarized" in talk.actions
            said = kept(steno, talk.key, talk.name)
            assert [message["sent"] for message in said] == talk.sent()
            assert {message["format"] for message in said} == {spoken}
            _check(said)
    assert statuses(simulator) == {200}


def _check(said: Sequence[Mapping[str, Any]]) -> None:
    leading = [message for message in said if message["index"] < 0]
    assert [message["kind"] for message in leading] == ["instructions"]
    rest = said[len(leading) :]
    assert [message["index"] for message in rest] == list(range(len(rest)))
    assert [message["previous_id"] for message in rest] == [None, *(message["id"] for message in rest[:-1])]
    kinds = [message["coverage"]["kind"] for message in rest]
    assert kinds[0] == "summarized"
    assert kinds[-1] == "verbatim"
    assert rest[0]["coverage"]["summary_id"].startswith("chk_")
    assert {message["kind"] for message in rest} >= {"user", "assistant"}
    assert all(message["usage"]["prompt"] > 0 for message in said)
    assert all(message["tokens"] > 0 for message in said)


def test_nobody_reads_or_finds_what_another_tenant_said(archiving: Callable[..., Steno]) -> None:
    steno = archiving()
    as_caller(steno, "sk-one", "/v1/chat/completions", "POST", chat(conversation_id="mine"))
    assert [message["role"] for message in kept(steno, "sk-one", "mine")] == ["user"]
    other = as_caller(steno, "sk-two", "/context/conversations/mine/messages")
    assert (other.status, other.json["error"]["code"]) == (404, "conversation_not_found")
    for key, number in (("sk-one", 1), ("sk-two", 0)):
        assert len(as_caller(steno, key, "/context/search?in=messages&q=cart").json["data"]) == number
    own = as_caller(steno, "sk-one", "/context/search?in=all&q=cart").json["data"][0]
    stolen = as_caller(steno, "sk-two", f"/context/search?in=all&q=cart&after={own['id']}")
    assert (stolen.status, stolen.json["error"]["param"]) == (400, "after")


def test_a_branch_is_kept_beside_what_it_left(archiving: Callable[..., Steno]) -> None:
    steno = archiving()
    first = turns(3, 5)
    post(steno.url, chat(first, conversation_id="tree"))
    assert len(kept(steno, "sk-test", "tree")) == len(first)
    edited = [*first[:2], {"role": "user", "content": "Something else."}]
    post(steno.url, chat(edited, conversation_id="tree"))
    said = kept(steno, "sk-test", "tree")
    assert [json.loads(message["sent"]) for message in said] == [*first, edited[-1]]
    assert [message["coverage"] is not None for message in said] == [True, True, *[False] * 5, True]
    assert said[-1]["previous_id"] == said[1]["id"]
    assert (said[-1]["index"], said[2]["index"]) == (2, 2)


def test_replicas_on_one_database_keep_one_conversation(archiving: Callable[..., Steno], shared_url: str) -> None:
    replicas = [archiving(url=shared_url) for _ in range(3)]
    history = turns(12, 20)
    for end in range(1, len(history) + 1, 2):
        for replica in replicas:
            post(replica.url, chat(history[:end], conversation_id="shared"))
    for replica in replicas:
        until(lambda: not replica.services.store.writes.waiting)  # noqa: B023 - it is called at once
    for replica in replicas:
        assert [json.loads(message["sent"]) for message in kept(replica, "sk-test", "shared")] == history


def test_search_finds_messages_beside_summaries(archiving: Callable[..., Steno]) -> None:
    steno = archiving()
    history = turns(15)
    post(steno.url, chat(history, conversation_id="one"))
    found = {
        where: get(steno.url, f"/context/search?q=ORD-0003&in={where}").json["data"]
        for where in ("summaries", "messages", "all")
    }
    assert {hit["object"] for hit in found["summaries"]} == {"summary"}
    sent = [hit["sent"] for hit in found["messages"]]
    assert sorted(sent, key=history.index) == history[4:6]
    ids = {hit["id"] for where in ("summaries", "messages") for hit in found[where]}
    assert {hit["id"] for hit in found["all"]} == ids
    assert get(steno.url, "/context/search?q=ORD-0003").json["data"] == found["summaries"]


def test_deletion_takes_all_and_the_client_may_go_on(archiving: Callable[..., Steno], shared_url: str) -> None:
    steno = archiving(url=shared_url)
    history = turns(4, 20)
    post(steno.url, chat(history[:-2], conversation_id="gone"))
    assert len(kept(steno, "sk-test", "gone")) == len(history) - 2
    assert get(steno.url, "/context/conversations/gone", method="DELETE").status == 200
    assert get(steno.url, "/context/conversations/gone/messages").status == 404
    assert get(steno.url, "/context/search?in=all&q=order").json["data"] == []
    post(steno.url, chat(history, conversation_id="gone"))
    assert [json.loads(message["sent"]) for message in kept(steno, "sk-test", "gone")] == history
    rows = sorted(stored_rows(shared_url)["messages"], key=lambda row: row["position"])
    assert [json.loads(row["sent"]) for row in rows] == history
    assert get(steno.url, "/context/tenant", method="DELETE").status == 200
    assert get(steno.url, "/context/search?in=all&q=order").json["data"] == []
    assert "Question" not in str(stored_rows(shared_url))


def test_an_answer_is_kept_with_the_request_that_has_it(archiving: Callable[..., Steno]) -> None:
    steno = archiving()
    answer = steno.sdk().chat.completions.create(
        model="gpt-4o",
        messages=[{"role": "user", "content": "Hello."}],
        extra_body={"conversation_id": "answers"},
    )
    assert [message["role"] for message in kept(steno, "sk-test", "answers")] == ["user"]
    text = answer.choices[0].message.content
    grown = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": text},
        {"role": "user", "content": "?"},
    ]
    post(steno.url, chat(grown, conversation_id="answers"))
    assert [json.loads(message["sent"]) for message in kept(steno, "sk-test", "answers")] == grown


def test_what_passes_unread_is_not_kept(archiving: Callable[..., Steno]) -> None:
    steno = archiving()
    post(steno.url, chat(conversation_id="unread").replace(b'"model"', b'"model":"x","model"'))
    post(
        steno.url,
        json.dumps({"model": "gpt-y", "input": "Hello.", "previous_response_id": "resp_1"}).encode(),
        target="/v1/responses",
    )
    post(steno.url, chat(conversation_id="planned"), target="/context/plan")
    assert get(steno.url, "/context/search?in=messages&q=hello").json["data"] == []
    assert get(steno.url, "/context/search?in=messages&q=cart").json["data"] == []


def test_nothing_is_kept_or_shown_where_nobody_wants_it(steno: StartSteno, sqlite_url: str) -> None:
    running = steno(storage={"url": sqlite_url})
    post(running.url, chat(conversation_id="one"))
    for target in (
        "/context/conversations/one/messages",
        "/context/search?in=messages&q=a",
        "/context/search?in=all&q=a",
    ):
        answered = get(running.url, target)
        assert (answered.status, answered.json["error"]["code"]) == (404, "messages_not_kept")
    assert get(running.url, "/context/conversations").json["data"]  # Answered once all that waits is stored.
    rows = stored_rows(sqlite_url)
    assert rows["conversations"]
    assert not rows["messages"]


def test_requests_are_answered_while_the_database_is_away_and_messages_are_kept_after(
    archiving: Callable[..., Steno], gate: FaultProxy
) -> None:
    steno = archiving(url=gate.url, timeout_seconds=0.25)
    history = turns(8, 20)
    post(steno.url, chat(history[:3], conversation_id="outage"))
    until(lambda: not steno.services.store.writes.waiting)
    gate.inject("refuse")
    for end in range(5, len(history) + 1, 2):
        assert post(steno.url, chat(history[:end], conversation_id="outage")).status == 200
    assert get(steno.url, "/context/conversations/outage/messages").status == 503
    gate.heal()
    until(lambda: not steno.services.store.writes.waiting)
    until(lambda: get(steno.url, "/context/conversations/outage/messages").status == 200)
    assert [json.loads(message["sent"]) for message in kept(steno, "sk-test", "outage")] == history


def test_a_part_of_the_latest_history_is_read_by_its_indexes(steno: StartSteno) -> None:
    """Of an edited history the branch that was sent last."""
    running = steno(storage={"messages": True})
    for said in ("first", "second"):
        history = [*turns(2)[:-1], {"role": "user", "content": said}]
        assert post(running.url, chat(history, conversation_id="one")).status == 200
    target = "/context/conversations/one/messages"
    part = get(running.url, f"{target}?first_index=3&last_index=9").json
    assert [(each["index"], each["sent"]["content"][:8]) for each in part["data"]] == [(3, "Answer 2"), (4, "second")]
    assert part["has_more"] is False
    assert all(each["usage"] and each["coverage"]["kind"] == "verbatim" for each in part["data"])
    [alone] = get(running.url, f"{target}?first_index=4").json["data"]
    assert alone["id"] == part["last_id"]
    for last in (2, 103):
        refused = get(running.url, f"{target}?first_index=3&last_index={last}")
        assert (refused.status, refused.json["error"]["param"]) == (400, "last_index")

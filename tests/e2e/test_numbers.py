"""Numbers of any size, wherever a client can write one: what came is answered, refused or forwarded, never a 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import pytest
import yaml

from lab.simulator import Simulator
from tests.e2e import running
from tests.e2e.conftest import TABLES
from tests.e2e.histories import MODEL, long_history
from tests.e2e.raw import CHAT, Answer, request_bytes, send
from tests.e2e.running import WINDOW, Steno

TRIED = yaml.safe_load(Path(__file__).with_name("numbers.yaml").read_text("utf-8"))
"""Numbers, and where a request may have one: `%s` stands for it."""
NUMBERS: dict[str, str] = {
    "400 digits": "1" + "0" * 400,
    "minus 400 digits": "-1" + "0" * 400,
    "5,000 digits": "9" * 5_000,
    "a text of 400 digits": '"' + "7" * 400 + '"',
    **TRIED["numbers"],
}
IN_A_HEADER = {**{name: NUMBERS[name] for name in TRIED["also in a header"]}, **TRIED["in a header"]}
MEMBERS: list[str] = [*(f'"{member}":%s' for member in TRIED["members"]), *TRIED["nested"]]

ONE = '{"role":"user","content":"a"}'
HISTORY = json.dumps(long_history())[1:-1]
FORCED = "/context/conversations/known/compact"
OWN_ROUTES = ("/context/plan", "/context/compact", FORCED)


@pytest.fixture(scope="module")
def steno() -> Iterator[Steno]:
    simulator = Simulator(window=WINDOW, tables=TABLES, max_messages=None)
    with pytest.MonkeyPatch.context() as patched, simulator.serve() as server:
        running.forget_environment(patched)
        steno = running.start(server.url, {})
        try:
            yield steno
        finally:
            steno.stop()


def ask(steno: Steno, body: str, target: str = CHAT, method: str = "POST", *headers: bytes) -> Answer:
    return send(steno.url, request_bytes(body.encode(), *headers, method=method, target=target))


def body_with(member: str, number: str, messages: str = HISTORY) -> str:
    """The member in a request that has to be compacted; it stands there once."""
    name = member.partition(":")[0]
    usual = {'"model"': f'"{MODEL}"', '"messages"': f"[{messages}]"}
    others = "".join(f",{key}:{value}" for key, value in usual.items() if key != name)
    return "{" + member.replace("%s", number) + others + "}"


def fails(answered: Answer) -> bool:
    """An answer of 500 or more, or one that is no JSON, or an envelope that names nothing."""
    if answered.status >= 500:
        return True
    events = answered.header("content-type") or ""
    if events.startswith("text/event-stream"):
        return b"internal_error" in answered.body
    told = json.loads(answered.body)
    return answered.status >= 400 and not (isinstance(told, dict) and told["error"]["message"])


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
def test_no_number_in_a_body_is_an_error_of_ours(steno: Steno, number: str) -> None:
    known = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "a"}], "conversation_id": "known"})
    assert ask(steno, known).status == 200
    bodies = {member: body_with(member, number, ONE) for member in MEMBERS}
    bodies |= {
        message: body_with('"n":%s', "1", f'{message.replace("%s", number)},{{"role":"user","content":"b"}}')
        for message in TRIED["messages"]
    }
    first = [*NUMBERS.values()].index(number)
    targets = islice(cycle((CHAT, *OWN_ROUTES)), first, None)  # Each member meets each of them with some number.
    bad = [
        (target, member, answered.status, answered.body[:200])
        for (member, body), target in zip(bodies.items(), targets, strict=False)
        if fails(answered := ask(steno, body, target))
    ]
    assert bad == []


@pytest.mark.parametrize("value", IN_A_HEADER.values(), ids=IN_A_HEADER)
def test_no_number_in_a_header_a_path_or_a_query_is_an_error_of_ours(steno: Steno, value: str) -> None:
    body, written = body_with('"n":%s', "1"), value.replace(" ", "%20") or "%20"
    answers = {header: ask(steno, body, CHAT, "POST", f"{header}: {value}".encode()) for header in TRIED["headers"]}
    for target in TRIED["targets"]:
        request = request_bytes(method="GET", target=target.replace("%s", written))
        answers[target] = send(steno.url, request)
    assert [(where, told.status, told.body[:200]) for where, told in answers.items() if fails(told)] == []


@pytest.mark.parametrize("length", ["1" + "0" * 400, "9" * 5_000, str(2**64), "-1", "1e3", "0x10", "+5", "5 5", ""])
def test_no_length_that_is_announced_is_an_error_of_ours(steno: Steno, length: str) -> None:
    request = request_bytes(None, f"content-length: {length}".encode()) + b"{}"
    assert 400 <= send(steno.url, request).status < 500

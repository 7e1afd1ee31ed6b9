"""Beginnings: a body that is read from where another one ended is read as if it had been read as a whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.formats import reader
from app.formats.chat_completions import CHAT_COMPLETIONS
from app.formats.raw_json import TooManyValues, Unreadable
from app.formats.reader import Beginnings
from app.formats.requests import BodyBounds, WireRequest
from app.runtime.caches import Caches

TEXTS = st.text(st.sampled_from('ab,[{"\\é'), max_size=8)
MESSAGES = st.lists(st.builds(lambda text: {"role": "user", "content": text}, TEXTS), min_size=1, max_size=4)
MEMBERS = st.dictionaries(st.sampled_from(["n", "stream", "user", "metadata", "tools"]), st.none() | TEXTS, max_size=3)


@pytest.fixture(autouse=True)
def short_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SHORTEST", 1)
    monkeypatch.setattr(reader, "JOINED", 2)  # So that these short histories are compared in several steps.


def written(before: dict[str, Any], messages: list[dict[str, Any]], after: dict[str, Any], spaced: bool) -> bytes:
    body = {"model": "m", **before, "messages": messages, **{k: v for k, v in after.items() if k not in before}}
    return json.dumps(body, separators=None if spaced else (",", ":")).encode()


def told(request: WireRequest) -> tuple[object, ...]:
    """All that is known of a request, and what is written of it."""
    source = request.source
    members = {name: (source.raw(name), source.value(name), source.members[name]) for name in source.members}
    return (
        members,
        request.raw_messages,
        (request.model, request.answer.stream, request.answer.choices, request.names, request.declared),
        request.untouched,
        request.with_messages([b"{}"], ask_usage=True),
        source.spliced(remove=["messages"], add=b'"x":1'),
    )


@given(MEMBERS, st.lists(MESSAGES, min_size=2, max_size=4), MEMBERS, st.booleans())
def test_a_body_is_read_alike_whatever_is_known_of_it(
    before: dict[str, Any], turns: list[list[dict[str, Any]]], after: dict[str, Any], spaced: bool
) -> None:
    known = Beginnings()
    messages: list[dict[str, Any]] = []
    for new in turns:
        messages = [*messages, *new]
        body = written(before, messages, after, spaced)
        assert told(CHAT_COMPLETIONS.read(body, beginnings=known)) == told(CHAT_COMPLETIONS.read(body))
        assert known.find(body) is not None


@given(st.binary(max_size=20), st.integers(0, 80), st.integers(0, 12))
@example(b',"messages":[]}', 65, 1)
@example(b',"model":"n"}', 65, 1)
@example(b".5", 53, 0)
@example(b"5", 53, 0)
@example(b"{}", 53, 0)
def test_bytes_that_differ_anywhere_are_read_as_they_are(put: bytes, place: int, cut: int) -> None:
    """Also where that makes them no JSON, or a key stand twice."""
    known, body = Beginnings(), b'{"model":"m","messages":[{"role":"user","content":"a"}],"user":"u"}'
    CHAT_COMPLETIONS.read(body, beginnings=known)
    other = body[:place] + put + body[place + cut :]
    assert outcome(other, known) == outcome(other, None)


def outcome(body: bytes, known: Beginnings | None) -> object:
    try:
        return told(CHAT_COMPLETIONS.read(body, beginnings=known))
    except Unreadable as error:
        return error.reason


def test_the_values_of_a_known_beginning_count() -> None:
    known = Beginnings()
    message = b'{"role":"user","content":[%b]}'
    full = message % b",".join([b"1"] * 900)
    body = b'{"model":"m","messages":[%b]}'
    bounds = BodyBounds(values=1_000)
    CHAT_COMPLETIONS.read(body % full, bounds, known)
    longer = body % b",".join((full, message % b",".join([b"1"] * 200)))
    assert known.find(longer) is not None
    with pytest.raises(TooManyValues):
        CHAT_COMPLETIONS.read(longer, bounds, known)


def test_there_is_room_for_so_many_bytes() -> None:
    known = Beginnings(Caches(5_000))
    bodies = [written({}, [{"role": "user", "content": f"{n}" * 2_000}], {}, spaced=False) for n in range(4)]
    for body in bodies:
        CHAT_COMPLETIONS.read(body, beginnings=known)
    assert [known.find(body) is not None for body in bodies] == [False, False, True, True]


def test_a_body_that_is_written_otherwise_is_read_each_time() -> None:
    known = Beginnings()
    body = json.dumps({"model": "m", "messages": [{}, {}]}, indent=1).encode()
    assert CHAT_COMPLETIONS.read(body, beginnings=known).raw_messages == (b"{}", b"{}")
    assert known.find(body) is None


def test_a_beginning_is_found_only_where_every_byte_of_it_stands() -> None:
    known = Beginnings()
    said = [{"role": "user", "content": f"{number}" * 100} for number in range(3)]
    CHAT_COMPLETIONS.read(written({}, said, {}, spaced=True), beginnings=known)
    longer = written({}, [*said, {"role": "user", "content": "go on"}], {}, spaced=True)
    assert known.find(longer) is not None
    for number in range(3):
        assert known.find(longer.replace(b"%d" % number * 100, b"%d" % number * 99 + b"x")) is None
    assert known.find(longer.replace(b", ", b",  ")) is None


def test_a_beginning_goes_with_the_one_that_grew_out_of_it() -> None:
    """Also where many are as long, and end alike."""
    known = Beginnings(Caches(100_000))
    bodies = [
        [
            written({}, [{"role": "user", "content": f"{number:04}" * 2_500}, *grown], {}, spaced=False)
            for grown in ([], [{"role": "user", "content": "go on" * 20}])
        ]
        for number in range(40)
    ]
    for body in (body for grows in bodies for body in grows):
        CHAT_COMPLETIONS.read(body, beginnings=known)
    assert sum(known.find(first) is not None for first, _ in bodies) <= 10

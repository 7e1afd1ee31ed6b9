"""Envelopes: a body that says the same beside its messages as one before is read as if nothing was known of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from app.errors import InvalidRequest
from app.runtime.caches import Caches
from app.wire import envelopes
from app.wire.beginnings import Beginnings
from app.wire.chat_completions.format import CHAT_COMPLETIONS
from app.wire.members import ResizedObject, TooManyValues, Unreadable
from app.wire.types import BodyBounds, TooManyMessages, WireRequest

TEXTS = st.text(st.sampled_from('ab,[{"\\é'), max_size=8)
MESSAGES = st.lists(st.builds(lambda text: {"role": "user", "content": text}, TEXTS), max_size=4)
MEMBERS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["n", "stream", "user", "metadata", "tools", "context", "x"]),
    st.none() | TEXTS | st.just({"messages": []}),
    max_size=3,
)
BODY = b'{"model":"m","messages":[{"role":"user","content":"Hello."}],"n":1}'


def written(before: dict[str, Any], messages: list[dict[str, Any]], after: dict[str, Any], spaced: bool) -> bytes:
    body = {"model": "m", **before, "messages": messages, **{k: v for k, v in after.items() if k not in before}}
    return json.dumps(body, separators=None if spaced else (",", ":")).encode()


def told(request: WireRequest) -> tuple[object, ...]:
    """All that is known of a request, and what is written of it."""
    source = request.source
    return (
        {name: (source.raw(name), source.value(name), source.members[name]) for name in source.members},
        source.elements("messages"),
        [told for name, told in asdict(request).items() if name not in ("source", "alike")],
        request.untouched,
        request.with_messages([b"{}"], ask_usage=True),
        source.spliced(remove=["messages"], add=b'"x":1'),
        source.spliced(add=b'"y":1'),
    )


def outcome(body: bytes, known: Beginnings | None = None) -> object:
    try:
        return told(CHAT_COMPLETIONS.read(body, beginnings=known))
    except (Unreadable, InvalidRequest) as error:
        return type(error)


def is_known(body: bytes, known: Beginnings) -> bool:
    return isinstance(CHAT_COMPLETIONS.read(body, beginnings=known).source, ResizedObject)


@given(MEMBERS, st.lists(MESSAGES, min_size=2, max_size=4), MEMBERS, st.booleans())
def test_a_body_is_read_alike_whatever_is_known_of_it(
    before: dict[str, Any], turns: list[list[dict[str, Any]]], after: dict[str, Any], spaced: bool
) -> None:
    known = Beginnings()
    for messages in turns:
        body = written(before, messages, after, spaced)
        assert outcome(body, known) == outcome(body)


@given(st.binary(max_size=12), st.integers(0, len(BODY)), st.integers(0, 12))
def test_bytes_that_differ_anywhere_are_read_as_they_are(put: bytes, place: int, cut: int) -> None:
    known = Beginnings()
    CHAT_COMPLETIONS.read(BODY, beginnings=known)
    other = BODY[:place] + put + BODY[place + cut :]
    assert outcome(other, known) == outcome(other)


@pytest.mark.parametrize(
    "array",
    [b'[],"model":"other","x":[]', b'[{}],"messages":[{}]', b'{"a":[]}', b"[", b"]", b"null", b'"[]"', b"", b"[1,]"],
)
def test_nothing_between_passes_for_an_array_that_is_none(array: bytes) -> None:
    """Such as one that ends early, so that further members stand behind it."""
    known = Beginnings()
    CHAT_COMPLETIONS.read(BODY, beginnings=known)
    body = b'{"model":"m","messages":%b,"n":1}' % array
    assert outcome(body, known) == outcome(body)


def test_the_same_envelope_is_read_once() -> None:
    known = Beginnings()
    assert not is_known(BODY, known)
    assert is_known(BODY, known)
    assert is_known(BODY.replace(b"Hello", b"And more"), known)
    assert not is_known(BODY.replace(b'"n":1', b'"n":2'), known)
    assert not is_known(BODY.replace(b'"m"', b'"another"'), known)


def test_bounds_hold_for_what_is_known_as_well() -> None:
    known = Beginnings()
    many = b'{"model":"m","messages":[%b],"n":1}' % b",".join([b'{"role":"user","content":"a"}'] * 20)
    CHAT_COMPLETIONS.read(BODY, beginnings=known)
    assert is_known(many, known)
    with pytest.raises(TooManyMessages):
        CHAT_COMPLETIONS.read(many, BodyBounds(messages=19), known)
    with pytest.raises(TooManyValues):
        CHAT_COMPLETIONS.read(many, BodyBounds(values=10), known)


def test_pins_are_read_each_time() -> None:
    """They count the messages, of which there may be fewer."""
    known = Beginnings()
    pinned = BODY.replace(b'"n":1', b'"context":{"pin":[0]}')
    assert not is_known(pinned, known)
    assert not is_known(pinned, known)
    with pytest.raises(InvalidRequest):
        CHAT_COMPLETIONS.read(pinned.replace(b'{"role":"user","content":"Hello."}', b""), beginnings=known)


def test_a_name_that_stands_in_another_member_is_not_taken_for_the_array() -> None:
    known = Beginnings()
    body = b'{"model":"m","metadata":{"messages":[1]},"messages":[{"role":"user","content":"a"}]}'
    for _ in range(2):
        assert not is_known(body, known)
        assert outcome(body, known) == outcome(body)


def test_long_bodies_are_left_to_beginnings() -> None:
    known, long = Beginnings(), BODY.replace(b"Hello", b"x" * envelopes.SHORT)
    for _ in range(2):
        assert not is_known(long, known)


def test_of_envelopes_that_begin_alike_the_latest_are_known() -> None:
    known = Beginnings()
    bodies = [BODY.replace(b'"n":1', b'"n":%d' % n) for n in range(envelopes.MOST_ALIKE + 1)]
    for body in bodies:
        CHAT_COMPLETIONS.read(body, beginnings=known)
    assert [is_known(body, known) for body in reversed(bodies)] == [True] * envelopes.MOST_ALIKE + [False]


def test_there_is_room_for_so_many_bytes() -> None:
    known = Beginnings(Caches(10_000))
    bodies = [BODY.replace(b'"m"', b'"%d"' % n) for n in range(4)]
    for body in bodies:
        CHAT_COMPLETIONS.read(body, beginnings=known)
    assert [known.envelopes.find(body, "messages", 100) is not None for body in bodies] == [False, False, True, True]


def test_requests_that_say_the_same_beside_their_messages_know_it() -> None:
    known = Beginnings()
    first = CHAT_COMPLETIONS.read(BODY, beginnings=known)
    again = CHAT_COMPLETIONS.read(BODY.replace(b"Hello.", b"And now?"), beginnings=known)
    other = CHAT_COMPLETIONS.read(BODY.replace(b'"n":1', b'"n":2'), beginnings=known)
    assert again.alike is first.alike is not None
    assert other.alike is not first.alike
    assert first.asking(threshold=9).alike is None


def test_what_is_kept_of_a_request_holds_none_of_its_messages() -> None:
    known = Beginnings()
    CHAT_COMPLETIONS.read(BODY, beginnings=known)
    [(_, [envelope])] = known.envelopes._kept.items()
    assert (envelope.request.raw_messages, envelope.request.source) == ((), envelope.rest)
    assert b"Hello" not in envelope.rest.text
    assert CHAT_COMPLETIONS.read(BODY).alike is not CHAT_COMPLETIONS.read(BODY).alike

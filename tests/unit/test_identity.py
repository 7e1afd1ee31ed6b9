"""Identity: digests of histories, the conversation that a history continues, and names of conversations."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.view import Conversation
from app.conversation.identity import LONGEST_NAME, MOST_HEADS, Head, heads_of, possible_heads, recognise
from app.conversation.messages import History
from app.errors import InvalidRequest
from app.proxy.conversation_ids import encoded_name, name_in_header, name_in_json, name_in_path
from tests.unit.conversations import IDENTITY, conversation, message, turns


def test_a_chain_begins_at_the_tenants_own_root() -> None:
    one, other = IDENTITY.chain("one", [b"m"]), IDENTITY.chain("other", [b"m"])
    assert not set(one.digests) & set(other.digests)


def test_histories_share_digests_exactly_as_far_as_they_are_equal() -> None:
    one = IDENTITY.chain("t", [b"a", b"b", b"c"])
    other = IDENTITY.chain("t", [b"a", b"x", b"c"])
    assert one.digests[:2] == other.digests[:2]
    assert not set(one.digests[2:]) & set(other.digests[2:])


def test_parts_are_not_confused_with_their_concatenation() -> None:
    assert IDENTITY.digest(b"ab", b"c") != IDENTITY.digest(b"a", b"bc")


def test_a_history_keeps_the_chain_of_one_tenant() -> None:
    """Many may send the same one."""
    history = History(turns(3))
    digests = [message.digest for message in history]
    for tenant in ("one", "other", "one"):
        assert IDENTITY.chain_of(tenant, history).digests == IDENTITY.chain(tenant, digests).digests
        assert IDENTITY.chain_of(tenant, history) is IDENTITY.chain_of(tenant, history)
        assert history.chained.tenant == tenant


# Recognition


def fresh() -> bytes:
    return b"fresh"


def seen(talk: Conversation, name: str = "conv", tip: int | None = None) -> list[Head]:
    """The heads that a request with this history left behind."""
    found = heads_of(talk.transcript, talk.chain)
    deepest = max(turn for _, turn in found)
    return [Head(digest, name, turn, deepest if tip is None else tip) for digest, turn in found]


def known(talk: Conversation, *heads: Head) -> list[Head]:
    """What a look-up of this history's possible heads finds."""
    possible = set(possible_heads(talk.transcript, talk.chain))
    return [head for head in heads if head.digest in possible]


def identified(talk: Conversation, *heads: Head) -> tuple[str, str | None]:
    found = recognise(talk.chain, known(talk, *heads), IDENTITY, fresh)
    return found.conversation_id, found.forked_from


ASKED = turns(3)[:5]
"""Two whole turns and a question."""


def test_a_history_nobody_knows_gets_the_same_id_from_every_replica() -> None:
    first, second = identified(conversation(*ASKED)), identified(conversation(*ASKED))
    assert first == second
    assert first[0].startswith("conv_")
    assert first[1] is None


def test_an_older_branch_is_a_new_conversation_that_knows_where_it_came_from() -> None:
    branch = conversation(*turns(1), message("user", "asked differently"))
    old = seen(conversation(*turns(2)[:3]), tip=9)
    name, origin = identified(branch, *old)
    assert name != "conv"
    assert origin == "conv"
    assert name != recognise(branch.chain, known(branch, *old), IDENTITY, lambda: b"other").conversation_id


def test_the_deepest_head_decides() -> None:
    short, long = conversation(*turns(1)[:1]), conversation(*ASKED)
    grown = conversation(*turns(3), message("user", "next"))
    assert identified(grown, *seen(short, "short"), *seen(long, "long")) == ("long", None)


def test_of_a_long_history_only_the_latest_places_are_asked_about() -> None:
    talk = conversation(*turns(MOST_HEADS))
    assert len(list(possible_heads(talk.transcript, talk.chain))) == MOST_HEADS


def test_one_turn_behind_the_tip_continues_and_two_do_not() -> None:
    asked = conversation(*ASKED)
    (head,) = [head for head in seen(asked) if head.turn == 3]
    for tip, continues in ((3, True), (4, True), (5, False)):
        name, _ = identified(asked, Head(head.digest, "conv", head.turn, tip))
        assert (name == "conv") is continues


# Names

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=LONGEST_NAME)


def in_header(value: bytes | str) -> str | None:
    raw = value if isinstance(value, bytes) else value.encode()
    return name_in_header("x-context-conversation-id", raw.decode("latin-1"))


def in_path(segment: str) -> str:
    return name_in_path("conversation_id", segment.encode())


def in_json(value: object) -> str | None:
    return name_in_json("conversation_id", json.dumps(value).encode())


def refusal(read: Callable[[], object]) -> str:
    with pytest.raises(InvalidRequest, match="A conversation id is UTF-8 text of at most 256 characters") as refused:
        read()
    return refused.value.message


@given(NAMES.filter(lambda name: name.strip(" ")))
def test_a_name_is_the_same_in_a_header_a_path_and_json(name: str) -> None:
    name = name.strip(" ")
    told = encoded_name(name)
    assert told.isascii()
    assert told.decode().isprintable()
    assert in_header(told) == in_path(quote(name, safe="")) == in_json(name) == name


@pytest.mark.parametrize(("given", "name"), [("50%", "50%"), ("50%zz", "50%zz"), ("%", "%"), ("a%2", "a%2")])
def test_a_percent_sign_that_begins_no_escape_stands_for_itself(given: str, name: str) -> None:
    assert in_header(given) == in_path(given) == name
    assert in_header(encoded_name(name)) == name


def test_a_percent_sign_in_json_is_always_one() -> None:
    assert in_json("a%20b") == "a%20b"
    assert encoded_name("a%20b") == b"a%2520b"
    assert in_header("a%2520b") == "a%20b"


@pytest.mark.parametrize("empty", ["", " ", "   ", "%20"])
def test_an_empty_name_is_none_but_in_a_path(empty: str) -> None:
    assert in_header(empty) is None
    assert in_json(empty.replace("%20", " ")) is None
    assert in_json(None) is None
    assert "it is empty" in refusal(lambda: in_path(empty))


def test_a_long_name_is_counted_in_characters() -> None:
    assert in_json("é" * LONGEST_NAME) == in_header(quote("é" * LONGEST_NAME)) == "é" * LONGEST_NAME
    for read in (in_json, in_header):
        assert "it has 257 characters" in refusal(lambda: read("é" * (LONGEST_NAME + 1)))  # noqa: B023


@pytest.mark.parametrize("character", ["\0", "\n", "\x1b", "\x7f", "\x85"])
def test_control_characters_are_refused(character: str) -> None:
    for read in (lambda: in_json(f"a{character}b"), lambda: in_path(quote(f"a{character}b"))):
        assert f"U+{ord(character):04X}" in refusal(read)


def test_what_is_no_utf8_is_refused() -> None:
    for read in (lambda: in_header(b"caf\xe9"), lambda: in_header("caf%E9"), lambda: in_path("%ff")):
        assert "it is no UTF-8" in refusal(read)

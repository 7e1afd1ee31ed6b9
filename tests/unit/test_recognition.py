"""Which conversation a history continues."""

from app.compaction.view import Conversation
from app.conversation.identity import MOST_HEADS, Head, heads_of, possible_heads, recognise
from tests.unit.conversations import IDENTITY, conversation, message, turns


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
    found = recognise(talk.transcript, talk.chain, known(talk, *heads), IDENTITY, fresh)
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
    assert (
        name
        != recognise(branch.transcript, branch.chain, known(branch, *old), IDENTITY, lambda: b"other").conversation_id
    )


def test_the_deepest_head_decides() -> None:
    short, long = conversation(*turns(1)[:1]), conversation(*ASKED)
    grown = conversation(*turns(3), message("user", "next"))
    assert identified(grown, *seen(short, "short"), *seen(long, "long")) == ("long", None)


def test_of_a_long_history_only_the_latest_places_are_asked_about() -> None:
    talk = conversation(*turns(MOST_HEADS))
    assert len(list(possible_heads(talk.transcript, talk.chain))) == MOST_HEADS


def test_a_history_without_user_messages_leaves_its_end() -> None:
    talk = conversation(message("assistant", "hello"))
    assert heads_of(talk.transcript, talk.chain) == ((talk.chain[1], 0),)
    assert heads_of(conversation().transcript, conversation().chain) == ()


def test_one_turn_behind_the_tip_continues_and_two_do_not() -> None:
    asked = conversation(*ASKED)
    (head,) = [head for head in seen(asked) if head.turn == 3]
    for tip, continues in ((3, True), (4, True), (5, False)):
        name, _ = identified(asked, Head(head.digest, "conv", head.turn, tip))
        assert (name == "conv") is continues

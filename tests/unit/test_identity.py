"""Digests: equal for equal histories, of equal tenants, under one secret, and for nothing else."""

from app.conversation.identity import Identity
from app.conversation.messages import History
from tests.unit.conversations import turns

IDENTITY = Identity(b"secret")


def test_a_chain_begins_at_the_tenants_own_root() -> None:
    one, other = IDENTITY.chain("one", [b"m"]), IDENTITY.chain("other", [b"m"])
    assert not set(one.digests) & set(other.digests)


def test_histories_share_digests_exactly_as_far_as_they_are_equal() -> None:
    one = IDENTITY.chain("t", [b"a", b"b", b"c"])
    other = IDENTITY.chain("t", [b"a", b"x", b"c"])
    assert one.digests[:2] == other.digests[:2]
    assert not set(one.digests[2:]) & set(other.digests[2:])


def test_another_secret_gives_other_digests() -> None:
    assert IDENTITY.digest(b"a") != Identity(b"another").digest(b"a")
    assert IDENTITY.tenant(b"key") != Identity(b"another").tenant(b"key")


def test_parts_are_not_confused_with_their_concatenation() -> None:
    assert IDENTITY.digest(b"ab", b"c") != IDENTITY.digest(b"a", b"bc")


def test_positions_count_the_messages_before() -> None:
    chain = IDENTITY.chain("t", [b"a", b"b"])
    assert [chain.positions[chain[position]] for position in range(3)] == [0, 1, 2]


def test_a_history_keeps_the_chain_of_one_tenant() -> None:
    """Many may send the same one."""
    history = History(turns(3))
    digests = [message.digest for message in history]
    for tenant in ("one", "other", "one"):
        assert IDENTITY.chain_of(tenant, history).digests == IDENTITY.chain(tenant, digests).digests
        assert IDENTITY.chain_of(tenant, history) is IDENTITY.chain_of(tenant, history)
        assert history.chained.tenant == tenant

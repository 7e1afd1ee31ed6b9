"""What a process remembers of a conversation's chunks: the store's last answer, for a while, and not without end."""

from __future__ import annotations

from msgspec.structs import replace

from app.compaction.memory import CHUNK_BYTES, SECONDS, ChunkMemory
from app.runtime.caches import Caches
from app.runtime.erased import Erased
from tests.unit.conversations import chunk, conversation, message, turns

TALK = conversation(*turns(4), message("user", "q"))
CHUNK = chunk(TALK, 0, 4)
PLACE = ("t", "conv")


def found(held: ChunkMemory, place: tuple[str, str] = PLACE) -> list[str]:
    return [each.id for each in held.chunks_in(place, "additive", TALK.chain.digests)]


def test_chunks_apply_where_both_ends_are_in_the_chain() -> None:
    held = ChunkMemory(Caches())
    held.keep(PLACE, "additive", [CHUNK])
    assert held.chunks_in(PLACE, "additive", TALK.chain.digests) == [CHUNK]
    assert held.chunks_in(PLACE, "additive", TALK.chain.digests[:4]) == []
    assert held.chunks_in(PLACE, "rolling", TALK.chain.digests) == []
    assert held.chunks_in(("u", "conv"), "additive", TALK.chain.digests) == []


def test_what_the_store_no_longer_has_is_not_used() -> None:
    held = ChunkMemory(Caches())
    held.keep(PLACE, "additive", [CHUNK, replace(CHUNK, id="other")])
    held.keep(PLACE, "additive", [replace(CHUNK, id="other")])
    assert found(held) == ["other"]
    held.add(PLACE, "additive", replace(CHUNK, id="new"))
    assert found(held) == ["other", "new"]
    held.keep(PLACE, "additive", [])
    assert found(held) == []


def test_what_is_old_is_not_used() -> None:
    now = 0.0
    held = ChunkMemory(Caches(), lambda: now)
    held.keep(PLACE, "additive", [CHUNK])
    now = SECONDS
    assert found(held) == []


def test_what_was_kept_last_stays() -> None:
    held = ChunkMemory(Caches(3 * CHUNK_BYTES))
    for name in ("a", "b", "a", "c"):
        held.keep(("t", name), "additive", [CHUNK])
    assert [name for name in "abc" if found(held, ("t", name))] == ["a", "c"]


def test_a_deleted_conversation_is_forgotten_with_its_chunks_in_others() -> None:
    held = ChunkMemory(Caches())
    held.keep(PLACE, "additive", [CHUNK])
    held.keep(("t", "fork"), "additive", [CHUNK])
    held.keep(("t", "other"), "additive", [replace(CHUNK, conversation_id="other")])
    held.forget(Erased(*PLACE))
    assert [name for name in ("conv", "fork", "other") if found(held, ("t", name))] == ["other"]


def test_a_deleted_chunk_is_forgotten_wherever_it_stands() -> None:
    held = ChunkMemory(Caches())
    for tenant in ("t", "u"):
        held.keep((tenant, "conv"), "additive", [CHUNK, replace(CHUNK, id="fold", level=1, children=(CHUNK.id,))])
        held.keep((tenant, "other"), "additive", [replace(CHUNK, id="other")])
    held.forget_chunks("t", [CHUNK.id])
    assert found(held) == []
    assert found(held, ("t", "other")) == ["other"]
    assert len(found(held, ("u", "conv"))) == 2

"""What a process remembers of chunks: within its tenant and series, for a while, and not without end."""

from __future__ import annotations

from msgspec.structs import replace

from app.compaction.memory import CHUNK_BYTES, SECONDS, ChunkMemory
from app.runtime.caches import Caches
from app.runtime.erased import Erased
from tests.unit.conversations import chunk, conversation, message, turns

TALK = conversation(*turns(4), message("user", "q"))
CHUNK = chunk(TALK, 0, 4)


def test_chunks_apply_where_both_ends_are_in_the_chain() -> None:
    held = ChunkMemory(Caches())
    held.keep("t", [CHUNK])
    assert held.chunks_in("t", "additive", TALK.chain.digests) == [CHUNK]
    assert held.chunks_in("t", "additive", TALK.chain.digests[:4]) == []
    assert held.chunks_in("t", "rolling", TALK.chain.digests) == []
    assert held.chunks_in("u", "additive", TALK.chain.digests) == []


def test_what_is_old_is_not_used() -> None:
    now = 0.0
    held = ChunkMemory(Caches(), lambda: now)
    held.keep("t", [CHUNK])
    now = SECONDS
    assert held.chunks_in("t", "additive", TALK.chain.digests) == []


def test_what_was_kept_last_stays() -> None:
    held = ChunkMemory(Caches(3 * CHUNK_BYTES))
    held.keep("t", [replace(CHUNK, id=id_) for id_ in ("a", "b", "a", "c")])
    assert [found.id for found in held.chunks_in("t", "additive", TALK.chain.digests)] == ["a", "c"]


def test_a_deleted_conversation_is_forgotten() -> None:
    held = ChunkMemory(Caches())
    held.keep("t", [CHUNK, replace(CHUNK, id="other", conversation_id="other")])
    held.forget(Erased.of("t", "conv"))
    assert [found.id for found in held.chunks_in("t", "additive", TALK.chain.digests)] == ["other"]


def test_a_deleted_chunk_is_forgotten_with_the_folds_over_it() -> None:
    held = ChunkMemory(Caches())
    fold = replace(CHUNK, id="fold", level=1, children=(CHUNK.id,))
    for tenant in ("t", "u"):
        held.keep(tenant, [replace(CHUNK, id="later", last_index=9, children=(fold.id,))])
        held.keep(tenant, [fold, CHUNK, replace(CHUNK, id="other")])
    held.forget_chunks("t", [CHUNK.id])
    assert [found.id for found in held.chunks_in("t", "additive", TALK.chain.digests)] == ["other"]
    assert len(held.chunks_in("u", "additive", TALK.chain.digests)) == 4


def test_nothing_of_a_deleted_conversation_is_kept_although_it_is_too_old_to_be_used() -> None:
    now = 0.0
    held = ChunkMemory(Caches(), lambda: now)
    held.keep("t", [CHUNK, replace(CHUNK, id="other", conversation_id="other")])
    now = SECONDS
    held.forget(Erased.of("t", "conv"))
    assert [place for place, _ in held._chunks._held.items()] == [("t", "additive", "other")]


def test_what_could_not_be_stored_is_given_out_once_to_be_stored() -> None:
    held = ChunkMemory(Caches())
    held.keep("t", [CHUNK])
    held.keep("t", [replace(CHUNK, id="late")], stored=False)
    assert held.take_unstored("t", "additive", TALK.chain.digests[:4]) == []
    assert [found.id for found in held.take_unstored("t", "additive", TALK.chain.digests)] == ["late"]
    assert held.take_unstored("t", "additive", TALK.chain.digests) == []
    assert held.chunks_in("t", "additive", TALK.chain.digests) == [CHUNK]


def test_what_the_database_has_is_forgotten_where_nobody_knows_what_was_erased_and_what_is_paid_for_stays() -> None:
    held = ChunkMemory(Caches())
    held.keep("t", [CHUNK])
    held.keep("t", [replace(CHUNK, id="late")], stored=False)
    held.forget_stored()
    assert [found.id for found in held.chunks_in("t", "additive", TALK.chain.digests)] == ["late"]

"""Memory of a process: chunks for when the store is away, and what recall has read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from app.compaction.caches import SECONDS, ChunkMemory, RecallIndexCache
from app.compaction.view import Conversation, Note, Summary, Verbatim, View
from app.runtime.caches import Caches, Erased
from tests.unit.conversations import budget, chunk, conversation, cost, message, turns

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


STOP = 12


class Now:
    """Work that is done at once."""

    async def do(self, _: str, work: Callable[[], Any]) -> Any:
        return work()


def talk(bird: str = "kestrel", more: int = 0) -> Conversation:
    said = [message("user", f"Our {bird} nests behind chapel seven."), message("assistant", "Noted.")]
    said += [message(("user", "assistant")[n % 2], f"Where did that go, {n}?") for n in range(10)]
    said += [message("user", f"{bird} nests behind chapel?")]
    return conversation(*said, *(message("assistant", f"Step {n}.") for n in range(more)))


def request(talk: Conversation, tenant: str = "t", id_: str = "c", **changes: Any) -> Any:
    given: dict[str, Any] = {
        "conversation_key": (tenant, id_),
        "tenant": tenant,
        "conversation": talk,
        "budget": budget(2_000),
        "cost": cost,
        "model": "m",
        "policy": SimpleNamespace(alternates=False),
    }
    return SimpleNamespace(**(given | changes))


def view(talk: Conversation) -> View:
    return View((Summary(chunk(talk, 0, STOP)), Verbatim(STOP, len(talk.transcript))), 100)


def recalled(recaller: RecallIndexCache, asked: Any) -> View:
    return asyncio.run(recaller.recalled(asked, view(asked.conversation)))


def quoted(found: View) -> str:
    return "".join(part.text for part in found.parts if isinstance(part, Note) and part.kind == "recalled")


def recaller() -> RecallIndexCache:
    return RecallIndexCache(Now(), Caches())  # type: ignore[arg-type]


def test_it_reads_on_and_forgets_after_a_deletion() -> None:
    kept = recaller()
    for tenant, id_ in (("t", "c"), ("t", "d"), ("u", "c")):
        assert "kestrel" in quoted(recalled(kept, request(talk(), tenant, id_)))
    before = kept._held.get((("t", "c"), "m"))
    recalled(kept, request(talk(more=3)))
    after = kept._held.get((("t", "c"), "m"))
    assert before is not None
    assert after is not None
    assert after.recollection is before.recollection
    kept.forget(Erased("t", "c"))
    assert [key[0] for key, _ in kept._held.items()] == [("t", "d"), ("u", "c")]
    kept.forget(Erased("t"))
    assert [key[0] for key, _ in kept._held.items()] == [("u", "c")]


def test_branches_and_models_of_a_conversation_are_read_apart() -> None:
    kept = recaller()
    for bird, model in (("kestrel", "m"), ("heron", "m"), ("kestrel", "n"), ("kestrel", "m")):
        found = quoted(recalled(kept, request(talk(bird), model=model)))
        assert f"Our {bird} nests" in found
        assert ({"kestrel", "heron"} - {bird}).pop() not in found
    assert len(kept._held.items()) == 2


def test_what_could_not_be_sent_is_not() -> None:
    """Where the view itself is at fault, nothing is made of it."""
    asked = request(talk())
    broken = replace(view(talk()), parts=view(talk()).parts[:1])
    assert asyncio.run(recaller().recalled(asked, broken)) == broken

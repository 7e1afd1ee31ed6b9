"""Rekeying: what is stored is sealed with the first key, a batch in each transaction, while Steno runs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ARRAY, Table, Text, delete, func, insert, not_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.sealing import HIDDEN, MARK, SEALED, sealing_of
from app.store.tables import message_words, summary_words
from app.store.words import OWNER_BYTES

WORDS = (summary_words, message_words)
ROWS = 100

Key = tuple[Any, ...]


async def seal_some(connection: AsyncConnection, table: Table, after: Key | None) -> tuple[Key | None, int]:
    """Seal some rows behind the key `after` that are not sealed with the first key: where the next ones begin, None at
    the end, and how many. Needs a transaction. Raises StatementRefused where a key is missing."""
    sealing, names, key = sealing_of(connection), SEALED[table], (table.c.tenant, table.c.id)
    is_sealed = table.c[names[0]].startswith(f"{MARK}{sealing.first}:", autoescape=True)
    some = select(*key, *(table.c[name] for name in names)).where(not_(is_sealed)).order_by(*key).limit(ROWS)
    if after is not None:
        some = some.where(tuple_(*key) > tuple_(*after))
    rows = (await connection.execute(some.with_for_update())).mappings().all()
    for row in rows:
        closed = sealing.sealed(table, sealing.opened(table, {str(name): value for name, value in row.items()}))
        own = (table.c.tenant == row["tenant"], table.c.id == row["id"])
        await connection.execute(update(table).where(*own).values({name: closed[name] for name in names}))
    return ((rows[-1]["tenant"], rows[-1]["id"]) if len(rows) == ROWS else None), len(rows)


async def hide_some(connection: AsyncConnection, table: Table, after: Key | None) -> tuple[Key | None, int]:
    """Replace the words of some rows behind the number `after` by digests, as `seal_some` does. Needs a transaction."""
    is_postgresql, sealing = connection.dialect.name == "postgresql", sealing_of(connection)
    held: Any = func.tsvector_to_array(table.c.words, type_=ARRAY(Text)) if is_postgresql else table.c.words
    (last,) = after or (0,)
    some = select(table.c.number, table.c.tenant, table.c.id, table.c.created_at, held.label("words"))
    page = some.where(table.c.number > last).order_by(table.c.number).limit(ROWS)
    rows = (await connection.execute(page)).all()
    changed = 0
    for number, tenant, id_, created_at, stored in rows:
        words = stored if is_postgresql else stored.split()
        if all(word.startswith(HIDDEN, OWNER_BYTES) for word in words):
            continue
        hidden = sealing.hidden(words)
        kept: Any = func.array_to_tsvector(hidden, type_=table.c.words.type) if is_postgresql else " ".join(hidden)
        own = table.c.number == number
        changed += 1
        if is_postgresql:
            # In its place: where the text is erased meanwhile, there is none any more.
            await connection.execute(update(table).where(own).values(words=kept))
            continue
        # Anew, as SQLite's own index follows what is added and removed; with its number, which says what is newest.
        await connection.execute(delete(table).where(own))
        values = {"number": number, "tenant": tenant, "id": id_, "created_at": created_at, "words": kept}
        await connection.execute(insert(table).values(values))
    return ((rows[-1].number,) if len(rows) == ROWS else None), changed

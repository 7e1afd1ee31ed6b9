"""A database of release 0.1: the tables of commit 21db7e6e, and the rows that its `steno serve` stored.

Its settings were `storage.messages: true` and those of `tests.e2e.running`. One client sent the messages of
`examples/chat.py` before the simulator until two summaries were made, went back once, corrected the first summary and
pinned a message; another one, with `clients.tenant: team`, sent four. Keys, links and acts of operators were added by
hand. The indexes of words are empty.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqlalchemy import JSON, Boolean, Connection, LargeBinary, MetaData, Table, insert, text

from app.store.engine import Database

_DATA: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "release_0_1.json").read_text())
CONVERSATIONS: list[dict[str, Any]] = _DATA["conversations"]
"""`key` of the client, `conversation_id`, `messages` up to the last answer, and what `/context/usage` and the
conversation's `/usage` answered."""
ROWS: dict[str, list[dict[str, Any]]] = _DATA["rows"]


async def make_release_0_1(url: str, *, rows: bool = False) -> None:
    """Make its tables in an empty database, and its rows if they are wanted."""
    database = Database(url)
    async with database.migrating() as connection:
        await connection.run_sync(_make)
        if rows:
            await connection.run_sync(_fill)
    await database.close()


def _make(connection: Connection) -> None:
    for statement in _DATA["schema"][connection.dialect.name]:
        connection.exec_driver_sql(statement)
    key = "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)"
    connection.execute(text(f"CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, {key})"))
    connection.execute(text("INSERT INTO alembic_version VALUES ('0029')"))


def _fill(connection: Connection) -> None:
    for name, rows in ROWS.items():
        table = Table(name, MetaData(), autoload_with=connection)
        connection.execute(
            insert(table), [{key: _value(table.c[key].type, value) for key, value in row.items()} for row in rows]
        )


def _value(kind: Any, value: Any) -> Any:
    match kind:
        case LargeBinary() if value is not None:
            return bytes.fromhex(value["hex"])
        case JSON() if value is not None:
            return json.loads(value)
        case Boolean():
            return bool(value)
    return value

"""The store: what is removed together, what it says of what it left out, and whose its file is."""

from __future__ import annotations

from pathlib import Path
from stat import S_IMODE

from app.store import schema
from app.store.engine import Database


def rights_in(folder: Path) -> dict[str, int]:
    return {path.name: S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


async def test_a_database_file_is_nobody_elses_from_its_beginning(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url)
    async with schema.alone(database):
        rights = rights_in(tmp_path)
    await database.close()
    assert "steno.db" in rights
    assert set(rights.values()) == {0o600}

"""Texts that release 0.1 encrypted: decrypted by a migration with their keys, refused without."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection, MetaData, Table, insert, select, update
from typer import Exit

from app.cli.migrate import read_key
from app.store import DatabaseUnusable, Store
from app.store.engine import Database
from app.store.schema import Upgrade
from app.store.tables import summary_chunks
from tests.release_0_1 import make_release_0_1

MARK = "sealed:1:"
ONE, TWO = b"1" * 32, b"2" * 32
TEXTS = {"summary_chunks": ("text", "exact_values", "rules"), "messages": ("sent",)}
PLAIN: dict[str, Any] = {
    "text": "A summary, é.",
    "exact_values": ["A-1", "B-2"],
    "rules": [],
    "sent": '{"role":"user","content":"Hi"}',
}


def encrypted(key: bytes, table: str, column: str, row: dict[str, Any]) -> str:
    """A text as `Sealing` of commit 21db7e6e encrypted it."""
    text = row[column] if isinstance(row[column], str) else json.dumps(row[column])
    place = "\0".join((table, column, row["tenant"], row["id"])).encode()
    nonce = os.urandom(12)
    cipher = AESGCM(blake2b(place, digest_size=32, key=key, person=b"steno-seal").digest())
    closed = b64encode(nonce + cipher.encrypt(nonce, text.encode(), place)).decode()
    return f"{MARK}{blake2b(key, digest_size=4, person=b'steno-key-id').hexdigest()}:{closed}"


def table_of(connection: Connection, name: str) -> Table:
    return Table(name, MetaData(), autoload_with=connection)


def fill(connection: Connection, keys: Sequence[bytes | None]) -> None:
    """One row in each table for each key, or plain where it is None."""
    for name, texts in TEXTS.items():
        table = table_of(connection, name)
        for number, key in enumerate(keys):
            kinds = {each.name: str(each.type) for each in table.columns}
            row: dict[str, Any] = {
                each: b"%d" % number if kind in {"BLOB", "BYTEA"} else [] if kind == "JSON" else 1
                for each, kind in kinds.items()
                if each not in {"continued", "values_kept", "deactivated_at"}
            }
            row |= {each: f"{each} {number}" for each, kind in kinds.items() if kind == "TEXT"}
            row |= {each: PLAIN[each] for each in texts}
            connection.execute(
                insert(table).values(row | {each: encrypted(key, name, each, row) for each in texts if key is not None})
            )


@pytest.fixture
async def old(empty_url: str) -> AsyncIterator[Database]:
    await make_release_0_1(empty_url)
    database = Database(empty_url)
    yield database
    await database.close()


async def rewrite(old: Database, *keys: bytes | None) -> None:
    async with old.writing() as connection:
        await connection.run_sync(fill, keys)


async def migrated(url: str, options: Upgrade) -> list[tuple[str, list[str]]]:
    """The texts and values of the summaries after an upgrade."""
    store = Store(url, timeout=5.0)
    try:
        await store.migrate(options)
        async with store.database.reading() as connection:
            rows = await connection.execute(select(summary_chunks.c.text, summary_chunks.c.exact_values))
            return [(row.text, row.exact_values) for row in rows]
    finally:
        await store.close()


SUMMARY = (PLAIN["text"], PLAIN["exact_values"])


async def test_texts_of_all_keys_are_decrypted_and_plain_ones_left(old: Database, empty_url: str) -> None:
    await rewrite(old, ONE, None, TWO, ONE, ONE)
    options = Upgrade([TWO, ONE])
    assert await migrated(empty_url, options) == [SUMMARY] * 5
    assert options.decrypted == 8


async def test_a_migration_without_the_key_is_refused_and_changes_nothing(old: Database, empty_url: str) -> None:
    await rewrite(old, ONE, None)
    for keys in ([], [TWO]):
        with pytest.raises(DatabaseUnusable, match=r"no --decrypt names the key '\w{8}'.*If a key is lost"):
            await migrated(empty_url, Upgrade(keys))
    assert await migrated(empty_url, Upgrade([ONE])) == [SUMMARY] * 2


async def test_a_text_that_was_changed_or_moved_is_refused(old: Database, empty_url: str) -> None:
    await rewrite(old, ONE, ONE)
    async with old.writing() as connection:
        chunks = await connection.run_sync(lambda sync: table_of(sync, "summary_chunks"))
        other = select(chunks.c.text).where(chunks.c.id == "id 0").scalar_subquery()
        await connection.execute(update(chunks).where(chunks.c.id == "id 1").values(text=other))
    with pytest.raises(DatabaseUnusable, match="was changed after it was encrypted"):
        await migrated(empty_url, Upgrade([ONE]))


async def test_a_plain_text_that_looked_encrypted_is_as_it_was_written(old: Database, empty_url: str) -> None:
    await rewrite(old, None)
    async with old.writing() as connection:
        chunks = await connection.run_sync(lambda sync: table_of(sync, "summary_chunks"))
        await connection.execute(update(chunks).values(text=f" {MARK}abc:def"))
    assert await migrated(empty_url, Upgrade()) == [(f"{MARK}abc:def", PLAIN["exact_values"])]


@pytest.mark.parametrize("held", ["", "abc", "zz" * 32, "ab" * 31])
def test_a_key_that_is_missing_or_malformed_is_refused_without_a_part_of_it(
    held: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEXT_KEY", held)
    for name in ("TEXT_KEY", "NO_KEY"):
        with pytest.raises(Exit):
            read_key(name)
        refused = capsys.readouterr().err
        assert "64 hexadecimal digits" in refused
        assert not held or held not in refused


def test_a_key_is_read_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEXT_KEY", "ab" * 32)
    assert read_key("TEXT_KEY") == b"\xab" * 32

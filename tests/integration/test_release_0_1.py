"""Texts that release 0.1 encrypted: decrypted by a migration with their keys, refused or deleted without."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection, MetaData, Table, insert, select, update

from app.store import Store, schema
from app.store.engine import Database
from app.store.release_0_1 import MARK, REVISION, Decryption, EncryptedTexts, keys_of
from tests.release_0_1 import make_release_0_1

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


def texts_in(connection: Connection) -> dict[str, list[list[Any]]]:
    return {
        name: [list(row) for row in connection.execute(select(*(table.c[each] for each in texts)).order_by(table.c.id))]
        for name, texts in TEXTS.items()
        for table in [table_of(connection, name)]
    }


@pytest.fixture
async def old(empty_url: str) -> AsyncIterator[Database]:
    await make_release_0_1(empty_url)
    database = Database(empty_url)
    yield database
    await database.close()


async def rewrite(old: Database, *keys: bytes | None) -> None:
    async with old.writing() as connection:
        await connection.run_sync(fill, keys)


async def decrypt(old: Database, *keys: bytes, drop: bool = False) -> tuple[Decryption, dict[str, list[list[Any]]]]:
    decryption = Decryption(keys, drop=drop)
    async with old.writing() as connection:
        await connection.run_sync(decryption.run)
        return decryption, await connection.run_sync(texts_in)


EXPECTED = {name: [PLAIN[each] for each in texts] for name, texts in TEXTS.items()}


async def test_texts_of_all_keys_are_decrypted_and_plain_ones_left(old: Database) -> None:
    await rewrite(old, ONE, None, TWO, ONE, ONE)
    decryption, texts = await decrypt(old, TWO, ONE)
    assert texts == {name: [row] * 5 for name, row in EXPECTED.items()}
    assert (decryption.decrypted, decryption.dropped) == (8, 0)


async def test_a_migration_without_the_key_is_refused_and_changes_nothing(old: Database, empty_url: str) -> None:
    await rewrite(old, ONE, None)
    async with old.reading() as connection:
        before = await connection.run_sync(texts_in)
    store = Store(empty_url, timeout=5.0)
    for attempt in (store.start, store.migrate, lambda: store.migrate(Decryption([TWO]))):
        with pytest.raises(EncryptedTexts, match=r"no --decrypt names the key '\w{8}'.*--drop-encrypted"):
            await attempt()
    async with old.reading() as connection:
        assert await schema.current(connection) == REVISION
        assert await connection.run_sync(texts_in) == before
    await store.close()


async def test_a_migration_with_the_key_ends_with_plain_texts(old: Database, empty_url: str) -> None:
    await rewrite(old, ONE, None)
    store = Store(empty_url, timeout=5.0)
    await store.migrate(Decryption([ONE]))
    async with store.database.reading() as connection:
        chunks = await connection.run_sync(lambda sync: table_of(sync, "summary_chunks"))
        rows = await connection.execute(select(chunks.c.text, chunks.c.exact_values))
        assert [tuple(row) for row in rows] == [(PLAIN["text"], PLAIN["exact_values"])] * 2
    await store.close()


async def test_texts_without_their_key_are_deleted_where_that_is_wanted(old: Database) -> None:
    await rewrite(old, ONE, TWO, None)
    decryption, texts = await decrypt(old, TWO, drop=True)
    assert texts == {name: [row] * 2 for name, row in EXPECTED.items()}
    assert (decryption.decrypted, decryption.dropped) == (2, 2)


async def test_a_text_that_was_changed_or_moved_is_refused(old: Database) -> None:
    await rewrite(old, ONE, ONE)
    async with old.writing() as connection:
        chunks = await connection.run_sync(lambda sync: table_of(sync, "summary_chunks"))
        other = select(chunks.c.text).where(chunks.c.id == "id 0").scalar_subquery()
        await connection.execute(update(chunks).where(chunks.c.id == "id 1").values(text=other))
    with pytest.raises(EncryptedTexts, match="was changed after it was encrypted"):
        await decrypt(old, ONE)
    decryption, _ = await decrypt(old, ONE, drop=True)
    assert (decryption.decrypted, decryption.dropped) == (3, 1)


async def test_a_plain_text_that_looked_encrypted_is_as_it_was_written(old: Database) -> None:
    await rewrite(old, None)
    async with old.writing() as connection:
        chunks = await connection.run_sync(lambda sync: table_of(sync, "summary_chunks"))
        await connection.execute(update(chunks).values(text=f" {MARK}abc:def"))
    _, texts = await decrypt(old)
    assert texts["summary_chunks"][0][0] == f"{MARK}abc:def"


@pytest.mark.parametrize("held", ["", "abc", "zz" * 32, "ab" * 31])
def test_a_key_that_is_missing_or_malformed_is_refused_without_a_part_of_it(
    held: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TEXT_KEY", held)
    (tmp_path / "key").write_text(held)
    for place in ("TEXT_KEY", f"{tmp_path}/key", f"{tmp_path}/none"):
        with pytest.raises(ValueError, match="64 hexadecimal digits") as refused:
            keys_of([place])
        assert not held or held not in str(refused.value)


def test_keys_are_read_from_variables_and_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEXT_KEY", "ab" * 32)
    (tmp_path / "key").write_text("cd" * 32 + "\n")
    assert keys_of(["TEXT_KEY", f"{tmp_path}/key"]) == [b"\xab" * 32, b"\xcd" * 32]

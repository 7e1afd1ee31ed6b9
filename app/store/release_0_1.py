"""Upgrade from release 0.1: decryption of texts (`--decrypt`), and an export of rows that nothing reads now.

`steno migrate` does both in the transaction of the migration and before it, so the tables are those of revision 0029.
One release does this: afterwards this module and what calls it are deleted.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection, MetaData, RowMapping, Table, delete, func, inspect, or_, select, update

from app.store.engine import DatabaseUnusable
from app.store.schema import PRIVATE_FILE, make_folder

REVISION = "0029"
"""Newest revision of release 0.1."""
MARK = "sealed:1:"
"""Beginning of an encrypted text, before the id of its key."""
KEY_BYTES = 32
NONCE_BYTES = 12
_TEXTS = {"summary_chunks": ("text", "exact_values", "rules"), "messages": ("sent",)}
"""Columns that may be encrypted, by table. All columns of a row are, or none."""
_LISTS = ("exact_values", "rules")
_MANY = 3
"""Number of reasons that an error lists."""
_EXPORTED = {"client_keys": "keys", "tenant_links": "links between tenants", "operator_acts": "acts of operators"}
"""Tables whose rows a person may miss, with a name for them."""


class EncryptedTexts(DatabaseUnusable):
    """The database has encrypted texts, and their key was not given."""


class RowsToExport(DatabaseUnusable):
    """The database has rows that would be lost, and no file for them was given, or it cannot be written."""


def keys_of(places: Iterable[str]) -> list[bytes]:
    """Read the keys in these environment variables and files. Raises `ValueError` without any part of a key."""
    keys: list[bytes] = []
    for place in places:
        try:
            digits = Path(place).read_text() if "/" in place else os.environ.get(place, "")
            key = bytes.fromhex(digits.strip())
        except (OSError, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise ValueError(
                "--decrypt takes environment variables or files (with a slash) that hold 64 hexadecimal digits each;"
                f" {place} does not, or cannot be read."
            )
        keys.append(key)
    return keys


class Decryption:
    """One decryption of all texts."""

    def __init__(self, keys: Sequence[bytes] = (), *, drop: bool = False) -> None:
        """`drop`: delete rows whose key is missing, instead of raising `EncryptedTexts`."""
        self._keys = {blake2b(key, digest_size=4, person=b"steno-key-id").hexdigest(): key for key in keys}
        self._drop = drop
        self._reasons: dict[str, None] = {}
        self.decrypted = 0
        """Number of rows."""
        self.dropped = 0

    def run(self, connection: Connection) -> None:
        """Decrypt every text. Needs a transaction; raises `EncryptedTexts` if that is impossible."""
        names = set(inspect(connection).get_table_names())
        for name in _TEXTS.keys() & names:
            self._decrypt_table(connection, name)
        if self._reasons and not self._drop:
            reasons = "; ".join(list(self._reasons)[:_MANY])
            raise EncryptedTexts(
                f"Texts in the database are encrypted, and Steno no longer encrypts any: {reasons}. Run `steno migrate"
                " --decrypt NAME` once with each name that storage.encryption had, which decrypts them. `steno migrate"
                " --drop-encrypted` deletes the texts whose key is lost."
            )

    def _decrypt_table(self, connection: Connection, name: str) -> None:
        texts = Table(name, MetaData(), autoload_with=connection)
        beginning = func.substr(texts.c[_TEXTS[name][0]], 1, len(MARK) + 1)
        is_marked = or_(beginning.startswith(MARK), beginning == f" {MARK}")
        for tenant, id_ in connection.execute(select(texts.c.tenant, texts.c.id).where(is_marked)).all():
            own = (texts.c.tenant == tenant, texts.c.id == id_)
            row = connection.execute(select(texts).where(*own)).mappings().one()
            try:
                plain = {text: self._decrypted(name, text, row) for text in _TEXTS[name]}
            except ValueError as reason:
                self._reasons[str(reason)] = None
                if self._drop:
                    connection.execute(delete(texts).where(*own))
                    self.dropped += 1
            else:
                connection.execute(update(texts).where(*own).values(plain))
                self.decrypted += 1

    def _decrypted(self, table_name: str, name: str, row: RowMapping) -> Any:
        """Raises `ValueError` with the reason why the text cannot be decrypted."""
        stored = row[name]
        if not isinstance(stored, str):
            return stored
        if stored.startswith(f" {MARK}"):  # A plain text that looked like an encrypted one.
            return stored[1:]
        if not stored.startswith(MARK):
            return stored
        key, _, encrypted = stored.removeprefix(MARK).partition(":")
        if key not in self._keys:
            raise ValueError(f"no --decrypt names the key {key!r}")
        place = "\0".join((table_name, name, row["tenant"], row["id"])).encode()
        cipher = AESGCM(blake2b(place, digest_size=32, key=self._keys[key], person=b"steno-seal").digest())
        try:
            data = b64decode(encrypted, validate=True)
            text = cipher.decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], place).decode()
        except (ValueError, InvalidTag) as error:
            raise ValueError("a text was changed after it was encrypted") from error
        return json.loads(text) if name in _LISTS else text


class Export:
    """One export of the rows of `_EXPORTED`."""

    def __init__(self, file: Path | None = None) -> None:
        """`file`: for JSON, a row a line; None: raise `RowsToExport` where there are rows."""
        self.file = file
        self.rows = 0
        """Number of exported rows."""

    def run(self, connection: Connection) -> None:
        """Write the rows to the file. Raises `RowsToExport` if that is impossible."""
        tables = [Table(name, MetaData(), autoload_with=connection) for name in _EXPORTED]
        rows = [
            {"table": table.name, **row} for table in tables for row in connection.execute(select(table)).mappings()
        ]
        if not rows:
            return
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        try:
            if self.file is None:
                raise FileNotFoundError("no file is named")
            make_folder(self.file.parent)
            with open(self.file, "w", opener=lambda name, flags: os.open(name, flags, PRIVATE_FILE)) as file:
                file.write(text)
        except OSError as error:
            raise RowsToExport(
                f"The migration drops {len(rows)} rows ({', '.join(_EXPORTED.values())}) and exports them first, but"
                f" {error.strerror or error}. Run `steno migrate --export FILE` with a file that can be written."
            ) from error
        self.rows = len(rows)

"""Sealing: texts are encrypted (AES-GCM) on their way into the database, and bound to their row.

The table, the column, the tenant and the id of a row are part of its key and of what is authenticated: a text that is
moved to another row cannot be opened. So each row has a key of its own, and random nonces need not be counted. The
words that find a text are replaced by keyed digests: a search finds whole words, and no beginnings of them.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.errors import StatementRefused
from app.store.tables import asides, clean, messages, summary_chunks
from app.store.words import OWNER_BYTES

MARK = "sealed:1:"
"""Beginning of a sealed text, before the id of its key."""
HIDDEN = "_h"
"""Mark of a word that is a digest: no letter is written so in a term."""
NONCE_BYTES = 12
SEALED = {summary_chunks: ("text", "exact_values", "rules"), messages: ("sent",), asides: ("text",)}
"""Columns that are sealed, by table. Their rows have a tenant and an id."""


class Sealing:
    """Keys by id, of which the first seals and all open. Without any, texts are stored as they are."""

    def __init__(self, keys: Sequence[bytes] = (), secret: bytes = b"") -> None:
        """`secret`: key of the words' digests, which stays when the others change."""
        self._keys = {_id_of(key): key for key in keys}
        self._words = blake2b(secret, digest_size=32, person=b"steno-words").digest()
        self.first = next(iter(self._keys), None)
        """Id of the key that seals; None if nothing is sealed."""

    def sealed(self, table: Table, row: dict[str, Any]) -> dict[str, Any]:
        """The row's columns as they are stored."""
        if self.first is None:
            # What somebody wrote is not taken for a sealed text.
            return row | {name: f" {row[name]}" for name in SEALED[table] if _is_sealed(row[name])}
        closed = {name: self._seal(_place(table, name, row), row[name]) for name in SEALED[table]}
        return row | closed

    def opened(self, table: Table, row: dict[str, Any]) -> dict[str, Any]:
        """The row's columns as they were given to `sealed`. Raises StatementRefused without the key, or where the text
        is of another row."""
        closed = {name: row[name] for name in SEALED.get(table, ()) if _is_sealed(row[name])}
        if not closed:
            return row
        return row | {name: self._open(_place(table, name, row), value) for name, value in closed.items()}

    def hidden(self, terms: Iterable[str]) -> list[str]:
        """The terms as an index holds them."""
        if self.first is None:
            return list(terms)
        return [term if term.startswith(HIDDEN, OWNER_BYTES) else self._hide(term) for term in terms]

    def _hide(self, term: str) -> str:
        digest = blake2b(term[OWNER_BYTES:].encode(), digest_size=12, key=self._words).hexdigest()
        return f"{term[:OWNER_BYTES]}{HIDDEN}{digest}"

    def _seal(self, place: bytes, value: Any) -> str:
        text = clean(value) if isinstance(value, str) else json.dumps(value)
        nonce = os.urandom(NONCE_BYTES)
        key = str(self.first)
        closed = nonce + _cipher(self._keys[key], place).encrypt(nonce, text.encode(), place)
        return f"{MARK}{key}:{b64encode(closed).decode()}"

    def _open(self, place: bytes, value: str) -> Any:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - nobody else needs it

        key, _, closed = value.removeprefix(MARK).partition(":")
        if key not in self._keys:
            raise StatementRefused(f"it is encrypted with the key {key!r}, which storage.encryption does not have")
        try:
            read = b64decode(closed, validate=True)
            text = _cipher(self._keys[key], place).decrypt(read[:NONCE_BYTES], read[NONCE_BYTES:], place).decode()
        except (ValueError, InvalidTag) as error:
            raise StatementRefused("what is encrypted in the database was changed, or is of another row") from error
        is_list = place.split(b"\0")[1] in (b"exact_values", b"rules")
        return json.loads(text) if is_list else text


PLAIN = Sealing()


def sealing_of(connection: AsyncConnection) -> Sealing:
    """The sealing of the connection's database."""
    found: Sealing | None = getattr(connection.dialect, "steno_sealing", None)
    return found or PLAIN


def _id_of(key: bytes) -> str:
    return blake2b(key, digest_size=4, person=b"steno-key-id").hexdigest()


def _is_sealed(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(MARK)


def _place(table: Table, column: str, row: dict[str, Any]) -> bytes:
    return "\0".join((table.name, column, clean(row["tenant"]), clean(row["id"]))).encode()


def _cipher(key: bytes, place: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - only where something is sealed

    return AESGCM(blake2b(place, digest_size=32, key=key, person=b"steno-seal").digest())

"""References that a client is given for a compaction of ours, to send back in its place.

Theory: the client keeps a text that it cannot read, and gives it back with its history. It could hold the summary
itself; it holds the names of the stored chunks, so that what a tenant deletes is gone, and what it carries stays short.
Nobody but this server can write one (AES-GCM, with a key of the server's secret), and it opens for the tenant it was
given to, in the format it was given in, and for no other.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Sequence
from hashlib import blake2b

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Struct

from app.wire.native import MARK

VERSION = 1
KEY_ID_BYTES = 4
NONCE_BYTES = 12
LONGEST = 100_000
"""Characters of the longest: more than a compaction of any history takes, with forty for each summary."""


class BrokenReference(ValueError):
    """The reference cannot be opened here; the text says why."""


class Reference(Struct, frozen=True):
    chunks: tuple[str, ...]
    """Ids of its summaries, in order."""
    place: bytes
    """Digest of the history that the summaries stand for."""
    made_at: int
    """Time in Unix seconds."""


class References:
    """Sealer and opener of references."""

    def __init__(self, secret: bytes) -> None:
        key = blake2b(secret, digest_size=32, person=b"steno-reference").digest()
        self._cipher = AESGCM(key)
        self._key_id = blake2b(key, digest_size=KEY_ID_BYTES, person=b"steno-key-id").digest()

    def sealed(self, reference: Reference, tenant: str, format_: str) -> str:
        content = msgspec.msgpack.encode((VERSION, reference.chunks, reference.place, reference.made_at))
        nonce = secrets.token_bytes(NONCE_BYTES)
        box = self._cipher.encrypt(nonce, content, _whose(tenant, format_))
        return MARK + urlsafe_b64encode(self._key_id + nonce + box).decode().rstrip("=")

    def opened(self, sealed: str, tenants: Sequence[str], format_: str) -> Reference:
        """Open a reference that was given to one of these tenants. Raises `BrokenReference`."""
        box = _decoded(sealed)
        key_id, rest = box[:KEY_ID_BYTES], box[KEY_ID_BYTES:]
        if key_id != self._key_id:
            raise BrokenReference("it was made with another server secret")
        content = self._content(rest[:NONCE_BYTES], rest[NONCE_BYTES:], tenants, format_)
        version, chunks, place, made_at = msgspec.msgpack.decode(content, type=tuple[int, tuple[str, ...], bytes, int])
        if version != VERSION:
            raise BrokenReference("it was made by another release")
        return Reference(chunks, place, made_at)

    def _content(self, nonce: bytes, box: bytes, tenants: Sequence[str], format_: str) -> bytes:
        for tenant in tenants:
            try:
                return self._cipher.decrypt(nonce, box, _whose(tenant, format_))
            except (InvalidTag, ValueError):
                continue
        raise BrokenReference("it was altered, or given to somebody else, or in another format")


def _decoded(sealed: str) -> bytes:
    text = sealed.removeprefix(MARK)
    if len(text) > LONGEST:
        raise BrokenReference("it is longer than any that is made here")
    try:
        box = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (Error, ValueError) as error:
        raise BrokenReference("it is cut, or altered") from error
    # More than one text stands for the same bytes; only the one that was given is taken.
    if urlsafe_b64encode(box).decode().rstrip("=") != text:
        raise BrokenReference("it is cut, or altered")
    return box


def _whose(tenant: str, format_: str) -> bytes:
    return f"{tenant}\n{format_}".encode("utf-8", "surrogatepass")

"""The operator's link: who has it has shell access or was given it, and sees every tenant. It opens one session."""

from __future__ import annotations

import re
from hashlib import blake2b
from hmac import compare_digest
from secrets import token_hex
from time import time

LINK_SECONDS = 24 * 3_600
"""Seconds for which a link opens a session."""
ID_BYTES = 8
TOKEN_BYTES = 24
"""Bytes of a token's seal: 192 bits."""
_TOKEN = re.compile(r"(?P<issued>[0-9a-f]{12})(?P<id>[0-9a-f]{16})(?P<seal>[0-9a-f]{48})", re.ASCII)


def operator_token(secret: bytes, issued: int | None = None) -> str:
    """Token that is good once, at any worker and any replica. `issued`: milliseconds since 1970; None means now."""
    return _sealed(secret, f"{int(1_000 * time()) if issued is None else issued:012x}{token_hex(ID_BYTES)}")


def _sealed(secret: bytes, written: str) -> str:
    key = inspector_key(secret)
    return written + blake2b(b"operator" + written.encode(), key=key, digest_size=TOKEN_BYTES).hexdigest()


def issued_at(secret: bytes, token: str) -> int | None:
    """Milliseconds since 1970 at which the server made this token; None if it did not. It takes a time that does not
    tell how much of a token is right."""
    read = _TOKEN.fullmatch(token)
    if read is None or not compare_digest(_sealed(secret, read["issued"] + read["id"]), token):
        return None
    return int(read["issued"], 16)


def id_of(token: str) -> str:
    """Id of the link with this token, which is that of the session it opens, too."""
    read = _TOKEN.fullmatch(token)
    return "" if read is None else read["id"]


def operator_link(secret: bytes, base_url: str) -> str:
    """The address that signs the operator in. `base_url` is scheme, host and port."""
    return f"{base_url.rstrip('/')}/ui?token={operator_token(secret)}"


def inspector_key(secret: bytes) -> bytes:
    """Key of the inspector alone: what is made with it means nothing elsewhere."""
    return blake2b(secret, digest_size=32, person=b"steno-inspector").digest()

"""The operator's link: who has it has shell access or was given it, and sees every tenant, for as long as it lasts."""

from __future__ import annotations

import re
from hashlib import blake2b
from hmac import compare_digest
from time import time

LINK_SECONDS = 24 * 3_600
"""How long a link opens sessions."""
TOKEN_BYTES = 24
"""Of its seal: 192 bits."""
_TOKEN = re.compile(r"(?P<issued>[0-9a-f]{12})(?P<seal>[0-9a-f]{48})", re.ASCII)


def operator_token(secret: bytes, issued: int | None = None) -> str:
    """Good at every worker and every replica. `issued`: milliseconds since 1970; now, if it is left out."""
    written = f"{int(1_000 * time()) if issued is None else issued:012x}"
    return (
        written
        + blake2b(b"operator" + written.encode(), key=inspector_key(secret), digest_size=TOKEN_BYTES).hexdigest()
    )


def issued_at(secret: bytes, token: str) -> int | None:
    """When the server made this token, in milliseconds since 1970; None if it did not make it.

    Takes a time that says nothing of how much of it is right.
    """
    read = _TOKEN.fullmatch(token)
    if read is None:
        return None
    issued = int(read["issued"], 16)
    return issued if compare_digest(operator_token(secret, issued), token) else None


def operator_link(secret: bytes, base_url: str) -> str:
    """The address that signs the operator in. `base_url` is scheme, host and port."""
    return f"{base_url.rstrip('/')}/ui?token={operator_token(secret)}"


def inspector_key(secret: bytes) -> bytes:
    """The inspector's own: what is made with it means nothing elsewhere."""
    return blake2b(secret, digest_size=32, person=b"steno-inspector").digest()

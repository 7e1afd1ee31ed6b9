"""The operator's link: who has it has shell access or was given it, and sees every tenant, for as long as it lasts."""

from __future__ import annotations

import re
from hashlib import blake2b
from hmac import compare_digest
from time import time

LINK_SECONDS = 24 * 3_600
"""Seconds for which a link opens sessions."""
TOKEN_BYTES = 24
"""Bytes of a token's seal: 192 bits."""
_TOKEN = re.compile(r"(?P<issued>[0-9a-f]{12})(?P<seal>[0-9a-f]{48})", re.ASCII)


def operator_token(secret: bytes, issued: int | None = None) -> str:
    """Token that is good at every worker and every replica. `issued`: milliseconds since 1970; None means now."""
    written = f"{int(1_000 * time()) if issued is None else issued:012x}"
    return (
        written
        + blake2b(b"operator" + written.encode(), key=inspector_key(secret), digest_size=TOKEN_BYTES).hexdigest()
    )


def issued_at(secret: bytes, token: str) -> int | None:
    """Milliseconds since 1970 at which the server made this token; None if it did not. It takes a time that does not
    tell how much of a token is right."""
    read = _TOKEN.fullmatch(token)
    if read is None:
        return None
    issued = int(read["issued"], 16)
    return issued if compare_digest(operator_token(secret, issued), token) else None


def operator_link(secret: bytes, base_url: str) -> str:
    """The address that signs the operator in. `base_url` is scheme, host and port."""
    return f"{base_url.rstrip('/')}/ui?token={operator_token(secret)}"


def inspector_key(secret: bytes) -> bytes:
    """Key of the inspector alone: what is made with it means nothing elsewhere."""
    return blake2b(secret, digest_size=32, person=b"steno-inspector").digest()

"""The operator's link: who has it has shell access or was given it, and sees every tenant."""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest

TOKEN_BYTES = 24
"""192 bits: a thousand million guesses a second would not find it before the sun goes out. So wrong ones are neither
counted nor slowed down, which could only be used to lock the operator out."""


def operator_token(secret: bytes) -> str:
    """The same at every worker and every replica, for as long as the server secret stays."""
    return blake2b(b"operator", key=inspector_key(secret), digest_size=TOKEN_BYTES).hexdigest()


def is_operator_token(secret: bytes, given: str) -> bool:
    """In a time that says nothing of how much of it is right."""
    return compare_digest(operator_token(secret).encode(), given.encode(errors="replace"))


def operator_link(secret: bytes, base_url: str) -> str:
    """The address that signs the operator in. `base_url` is scheme, host and port."""
    return f"{base_url.rstrip('/')}/ui?token={operator_token(secret)}"


def inspector_key(secret: bytes) -> bytes:
    """The inspector's own: what is made with it means nothing elsewhere."""
    return blake2b(secret, digest_size=32, person=b"steno-inspector").digest()

"""Encrypted content: a text that only the provider reads, and nobody alters."""

from __future__ import annotations

import base64
import hmac
from hashlib import blake2b

_KEY = b"the simulator seals"
_MARK = "gAAAAAB"
_MAC = 16


def seal(kind: str, text: str) -> str:
    """`kind`: the type of item that holds it."""
    data = f"{kind}:{text}".encode()
    return _MARK + base64.urlsafe_b64encode(_mac(data) + data).decode()


def opened(kind: str, sealed: str) -> str | None:
    """None: the provider did not seal it for this type of item."""
    try:
        raw = base64.b64decode(sealed.removeprefix(_MARK).encode("ascii"), b"-_", validate=True)
    except ValueError:
        return None
    mac, data = raw[:_MAC], raw[_MAC:]
    if not sealed.startswith(_MARK) or not hmac.compare_digest(mac, _mac(data)):
        return None
    head, _, text = data.decode().partition(":")
    return text if head == kind else None


def _mac(data: bytes) -> bytes:
    return blake2b(data, key=_KEY, digest_size=_MAC).digest()

"""Hops: which Stenos a request has passed, so that one that comes back to where it was is refused.

Every request that goes up names this instance after those it came through. Nothing is trusted: whoever makes hops up is
refused himself, or reaches nobody whom he would not reach without.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from app.errors import LoopDetected

HOPS = b"steno-hops"
"""Header with the hops: not one of the `x-context-` headers, which releases before this one take out on the way."""
MOST_HOPS = 16
"""Most hops of a request. Behind a balancer each replica is an instance: a circle through it would be run once for each
of them."""

_INSTANCE = re.compile(rb"[0-9a-f]{16}")


def new_instance() -> bytes:
    """Make a name for one running Steno: random, so that it reveals nothing about it."""
    return secrets.token_hex(8).encode()


def hops_in(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Instances that a request came through, in order; values that name none are left out."""
    named = [value for name, value in headers if name == HOPS]
    if not named:
        return []
    return [hop for part in b",".join(named).split(b",") if _INSTANCE.fullmatch(hop := part.strip())]


def check_hops(headers: Iterable[tuple[bytes, bytes]], instance: bytes) -> None:
    """Raises `LoopDetected` for a request that passed this instance before, or too many others."""
    hops = hops_in(headers)
    if instance in hops:
        raise LoopDetected(
            "This request went through this Steno before: the base_url of an upstream leads back here."
            " Point it at the provider."
        )
    if len(hops) > MOST_HOPS:
        raise LoopDetected(
            f"This request went through {len(hops)} Stenos, at most {MOST_HOPS} may stand in a row."
            " Their upstreams probably lead in a circle."
        )


def with_hop(headers: Iterable[tuple[bytes, bytes]], instance: bytes) -> list[tuple[bytes, bytes]]:
    """The headers as they go up."""
    listed = list(headers)
    hops = hops_in(listed)
    kept = [header for header in listed if header[0] != HOPS]
    kept.append((HOPS, b", ".join((*hops, instance))))
    return kept

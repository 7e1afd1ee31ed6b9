"""Terms: what holds for all requests of a caller that say the same beside their messages."""

from __future__ import annotations

from hashlib import blake2b
from time import monotonic

from msgspec import Struct

from app.core.stages.policy import Strategy
from app.proxy.caller import Caller
from app.proxy.measuring import SECONDS, Measure
from app.proxy.options import event_shape, is_recall_off, is_switched_off, name_of, wait_seconds
from app.proxy.services import Services
from app.wire.early import EventShape
from app.wire.format import WireRequest


class Terms(Struct, frozen=True):
    measure: Measure
    named: str | None
    """The client's own name for the conversation."""
    series: str
    """Whose summaries it reads: those made alike, with the same focus."""
    events: EventShape
    wait_seconds: float
    """How long a compaction may hold the request."""
    compaction: bool
    """Whether the caller and the operator allow it."""
    recalls: bool
    """Whether the caller allows that quotations are added."""


_Kept = tuple[object, int, float, Terms]
"""What the requests have in common; until when the terms hold: the provider's revision, and by the monotonic clock."""


def known_terms(request: WireRequest, caller: Caller) -> Terms | None:
    """Those of the caller's latest request, where this one says the same and nothing was learnt since."""
    kept: _Kept | None = caller.kept.get(Terms)
    if kept is None:
        return None
    alike, revision, until, terms = kept
    holds = alike is request.alike and revision == terms.measure.provider.revision and monotonic() < until
    return terms if holds else None


async def terms_of(services: Services, request: WireRequest, caller: Caller, *, remember: bool) -> Terms:
    """Raises `UnknownUpstream`, and `InvalidRequest` for what the request says of its own compaction and cannot be."""
    measured = await services.measuring.of(request, caller, remember=remember)
    rules, events = measured.rules, event_shape(request, caller, services.events.stream)
    terms = Terms(
        measure=measured,
        named=name_of(services.naming, services.repeats, request, caller),
        series=_series(rules.policy.strategy, request.focus),
        events=events,
        wait_seconds=wait_seconds(rules, events, caller),
        compaction=rules.compaction.enabled and not is_switched_off(request, caller),
        recalls=not is_recall_off(request, caller),
    )
    if request.alike is not None:
        kept: _Kept = request.alike, measured.provider.revision, monotonic() + SECONDS, terms
        caller.kept[Terms] = kept
    return terms


def _series(strategy: Strategy, focus: str) -> str:
    """Summaries with a focus are none for a request that has another one, or none."""
    digest = blake2b(focus.encode("utf-8", "surrogatepass"), digest_size=8, person=b"steno-focus")
    return f"{strategy}:{digest.hexdigest()}" if focus else strategy

"""Teeth: the ledger's records of a conversation as the requests of its sawtooth."""

from __future__ import annotations

from collections.abc import Sequence

from app.inspector.sawtooth import MarkedCompaction, Tooth
from app.store import StoredUsage


def teeth_of(records: Sequence[StoredUsage], requests: int, most: int) -> list[Tooth]:
    """Latest requests that were answered, oldest first. `records`: the latest of the conversation, in any order;
    `requests`: how many it has had."""
    calls: dict[str, list[StoredUsage]] = {}
    for stored in sorted(records, key=lambda each: (each.created_at, each.record.id)):
        calls.setdefault(stored.record.request_id, []).append(stored)
    answered = [of_request for of_request in calls.values() if any(_is_message(each) for each in of_request)]
    first = max(1, requests - len(answered) + 1)
    teeth: list[Tooth] = []
    for number, of_request in enumerate(answered, first):
        teeth.append(_tooth(number, of_request, teeth[-1] if teeth else None))
    return teeth[-most:]


def _tooth(number: int, calls: Sequence[StoredUsage], previous: Tooth | None) -> Tooth:
    """Tooth of a request, from its last call where it was sent once more, smaller, after a refusal."""
    latest = next(each for each in reversed(calls) if _is_message(each))
    record, decided = latest.record, latest.record.decided
    costs = [each.record.cost for each in calls if each.record.cost is not None]
    forwarded = record.forwarded or record.tokens.prompt or 0
    sent = record.estimated or forwarded
    grown = None if previous is None else previous.forwarded + max(0, sent - previous.sent)
    return Tooth(
        number=number,
        request_id=record.request_id,
        at=latest.created_at,
        model=record.model,
        sent=sent,
        forwarded=forwarded,
        reported=record.tokens.prompt,
        trigger=decided.trigger if decided else None,
        limit=decided.limit if decided else None,
        window=decided.window if decided else None,
        status=record.status,
        context_status=record.context_status or "",
        actions=decided.actions if decided else (),
        reason=decided.reason if decided else None,
        waited=decided.waited_seconds if decided else None,
        cost=sum(costs) if costs else None,
        compactions=tuple(
            compaction_of(made, sent, forwarded, grown, decided.waited_seconds if decided and not ahead else None)
            for ahead in (False, True)
            if (made := [each for each in calls if each.record.purpose == ("background" if ahead else "summary")])
        ),
    )


def compaction_of(
    calls: Sequence[StoredUsage], sent: int, forwarded: int, grown: int | None, waited: float | None
) -> MarkedCompaction:
    """Compaction of the calls for summaries that one request led to. Summaries made for requests to come have spared
    nothing yet.

    `sent` and `forwarded`: the request's tokens. `grown`: those of the previous payload with the messages that came
    since; None for the first request, whose summaries spared what they replaced.
    """
    ahead = calls[0].record.purpose == "background"
    made = [each.record.made for each in calls if each.record.made is not None]
    kept = [each for each in made if each.summary is not None]
    replaced, summaries = sum(each.replaced for each in kept), sum(each.summary or 0 for each in kept)
    costs = [each.record.cost for each in calls if each.record.cost is not None]
    seconds = [each.seconds for each in made]
    without = forwarded + max(0, replaced - summaries) if grown is None else grown
    return MarkedCompaction(
        before=forwarded if ahead or not kept else max(forwarded, min(sent, without)),
        after=forwarded,
        replaced=replaced,
        summaries=summaries,
        made=len(kept),
        calls=len(calls),
        seconds=waited if waited is not None else max(seconds, default=None),
        cost=sum(costs) if costs else None,
        ahead=ahead,
    )


def _is_message(stored: StoredUsage) -> bool:
    return stored.record.purpose == "message"

"""`/ui/conversations/{id}`: one conversation, from what the client sends to what goes out and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from msgspec import Struct
from msgspec.structs import replace

from app.api.messages import Markdown, handoff_of
from app.api.plan import step_in_words
from app.compaction.chunks import SummaryChunk
from app.conversation.reasons import Code
from app.inspector.formats import counted, whole
from app.inspector.grid import grid_of
from app.inspector.landing import curl_of
from app.inspector.pages import HEADERS
from app.inspector.payload import Fate, Fates, Formats, Said, entry_of, formats_of, places_of, said_in
from app.inspector.sawtooth import NARROW, WIDE, Tooth, plot_of, teeth_of
from app.inspector.visits import NoSuchPage, PageRoute, TheVisit, Visit
from app.proxy.conversation_ids import name_in_path
from app.proxy.exchange import REQUEST
from app.store import StoredConversation, StoredHistory, StoredMessage, UsagePage
from app.store.chunks import chunks_named, find_summary, read_summaries
from app.store.conversations import find_conversation, find_pins
from app.store.histories import find_titles
from app.store.tables import Paging
from app.store.usage import read_records

Tone = Literal["plain", "over", "done", "bad"]
Plan = Mapping[str, Any]
"""Plan as it is stored: see `account_of` in `compaction/fallback`."""
_WORD = re.compile(r"[a-z_]+")
_BY_WORD = {str(code): code for code in Code}
SOURCES = {
    "config": "set in the settings",
    "provider": "as its provider says",
    "learnt": "learnt from a refusal",
    "bundled": "from the bundled list of models",
    "default": "assumed: nobody says how large it is",
}
"""Sources of a window, in words."""


class Explained(NamedTuple):
    title: str
    text: str
    tone: Tone = "plain"


def explained(plan: Plan | None, sent: int, parts: Sequence[Mapping[str, Any]]) -> list[Explained]:
    """Explanation of a payload. `sent`: tokens of the latest request; without a plan nothing was due for it."""
    if plan is None:
        sentence = f"The client's {whole(sent)} tokens were under the trigger, and its bytes went out as they came."
        return [Explained("Nothing was due", sentence)]
    return list(_explained(plan, parts))


def _explained(plan: Plan, parts: Sequence[Mapping[str, Any]]) -> Iterator[Explained]:
    came, went = plan["estimated"], plan["forwarded"]
    yield Explained(
        "Room",
        f"A window of {whole(plan['window'])}, {SOURCES.get(plan['window_source'], plan['window_source'])};"
        f" the prompt may use {whole(plan['limit'])}.",
    )
    over = came - plan["trigger"]
    how = f"{whole(over)} over the trigger of" if over > 0 else "within the trigger of"
    yield Explained(
        "Received", f"{whole(came)} tokens, {how} {whole(plan['trigger'])}.", "over" if over > 0 else "plain"
    )
    yield Explained(
        "Minimum",
        f"{whole(plan['floor'])} tokens of it are never touched: instructions, tools and the last user message."
        f" A compaction aims at {whole(plan['target'])}.",
    )
    yield from map(_tried, plan["steps"])
    if stands := _stands_for(parts):
        yield stands
    if quoted := sum(part["tokens"] for part in parts if part["kind"] in ("recalled", "exact_values", "state")):
        yield Explained("Quoted", f"{whole(quoted)} tokens of what the last user message is about.", "done")
    spared = came - went
    yield Explained("Went out", f"{whole(went)} tokens" + (f", {whole(spared)} fewer." if spared > 0 else "."), "done")


def _tried(step: Mapping[str, Any]) -> Explained:
    name, outcome = step["step"], step["outcome"]
    title, tone = _TRIED.get((name, outcome)) or _ENDED.get(outcome, ("Not summarised", "bad"))
    return Explained(title, step_in_words(step), tone)


_TRIED: Mapping[tuple[str, str], tuple[str, Tone]] = {
    ("stored", "fits"): ("Checked", "plain"),
    ("stored", "too_large"): ("Checked", "over"),
    ("mask", "set"): ("Masked", "done"),
    ("mask", "put_off"): ("Mask put off", "plain"),
    ("summarise", "made"): ("Summarised", "done"),
    ("summarise", "awaited"): ("Waited", "plain"),
    ("summarise", "in_background"): ("Put off", "plain"),
    ("summarise", "takes_too_long"): ("Went on", "plain"),
    ("summarise", "lease_lost"): ("Overtaken", "plain"),
}
_ENDED: Mapping[str, tuple[str, Tone]] = {"sent": ("Chosen", "done"), "refused": ("Not enough", "bad")}
"""Words and tone of each outcome of a view."""


def _stands_for(parts: Sequence[Mapping[str, Any]]) -> Explained | None:
    chunks = [part for part in parts if part["kind"] == "summarized"]
    if not chunks:
        return None
    covered = sum(part["last_index"] - part["first_index"] + 1 for part in chunks)
    tokens = sum(part["tokens"] for part in chunks)
    summaries = counted(len(chunks), "summary", "summaries")
    stand = "stands" if len(chunks) == 1 else "stand"
    return Explained("In it", f"{summaries} {stand} for {whole(covered)} messages, in {whole(tokens)} tokens.", "done")


def meanings(*reasons: str | None) -> list[tuple[str, str]]:
    """Reasons named in these lines, each once, with its meaning."""
    found = dict.fromkeys(word for reason in reasons for word in _WORD.findall(reason or ""))
    return [(word, _BY_WORD[word].meaning) for word in found if word in _BY_WORD]


TEETH = 200
"""Number of requests that the sawtooth shows, wide and on a narrow screen."""
NARROW_TEETH = 40
CALLS = 3 * TEETH
"""Records of the ledger that are read for the sawtooth."""
LONGEST_COMMAND = 100_000
LONGEST_DOWNLOAD = 64_000_000
"""Characters of a request that is shown as a command, on a page and in a file."""
OUTPUT = 1_024
"""Tokens that the answer to a request shown as a command may have."""
SUMMARIES = 20
MESSAGES = 50
"""Messages on a page of the timeline, and of the payload."""
DONE: Mapping[str, str] = {
    "pinned": "The message is pinned: from the next request on it stays in the payload, whatever is summarised.",
    "compacted": "The summaries are made and stored, for the next request that needs them.",
    "edited": "The text is saved, and used from the next request on.",
    "deleted": "The summary is deleted: its messages are sent again, or summarised anew.",
    "unpinned": "The pin is gone. Where a summary stands for the message, its copy leaves the payload.",
}
"""Sentences that say after the redirect what an action came to, by its name."""

router = APIRouter(route_class=PageRoute, include_in_schema=False)


async def _conversation(visit: TheVisit, conversation_id: Annotated[str, Path()]) -> StoredConversation:
    """Conversation of the path, which comes undecoded from the router."""
    name = name_in_path("conversation_id", conversation_id.encode("latin-1"))
    conversation = await visit.find(find_conversation, name)
    if conversation is None:
        raise NoSuchPage
    return conversation


TheConversation = Annotated[StoredConversation, Depends(_conversation)]
"""Conversation of the tenant whose data are shown; anybody else's is not there."""


class Row(Struct, frozen=True):
    """Message in the timeline."""

    index: int
    fate: Fate | None
    """Fate of the message; None for leading instructions."""
    said: Said | None
    tokens: int | None
    """Tokens of the message as it came."""
    pinned: bool
    """True where the message is pinned from the next request on."""


class Screenful(Struct, frozen=True):
    """Part of the messages that a page shows."""

    first: int
    last: int
    count: int

    @property
    def before(self) -> int | None:
        return self.first - MESSAGES if self.first else None

    @property
    def after(self) -> int | None:
        return self.last + 1 if self.last + 1 < self.count else None


def page_at(wanted: int | None, count: int) -> Screenful:
    """Page that holds a message; the latest one if none is wanted."""
    at = count - 1 if wanted is None else min(max(wanted, 0), count - 1)
    first = max(0, at) // MESSAGES * MESSAGES
    return Screenful(first, min(first + MESSAGES, count) - 1, count)


@router.get("/ui/conversations/{conversation_id}")
async def show_conversation(
    visit: TheVisit,
    conversation: TheConversation,
    at: Annotated[int | None, Query(ge=1)] = None,
    through: Annotated[int | None, Query(ge=1)] = None,
    done: Annotated[str, Query()] = "",
) -> Response:
    """`at` and `through` are numbers of messages."""
    wanted, upto = (None if number is None else number - 1 for number in (at, through))
    return await page_of(visit, conversation, at=wanted, through=upto, done=DONE.get(done))


async def page_of(
    visit: Visit,
    conversation: StoredConversation,
    *,
    at: int | None = None,
    through: int | None = None,
    done: str | None = None,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    """Page of a conversation, with what an action came to: `done` or a `problem`. `through`: the message up to which
    its form is to compact."""
    parts = conversation.parts
    ledger = await visit.find(read_records, conversation.id, Paging(CALLS, order="desc"), with_turns=False)
    summaries = await visit.find(read_summaries, conversation.id, Paging(SUMMARIES, order="desc"))
    teeth = teeth_of(ledger.page.data, ledger.sums.messages.requests, TEETH)
    latest = teeth[-1] if teeth else None
    return visit.page(
        "conversation.html",
        status=status,
        conversation=conversation,
        title=(await visit.find(find_titles, [conversation.id])).get(conversation.id),
        done=done,
        problem=problem,
        through=through,
        usage=ledger.sums,
        teeth=teeth,
        plots=[plot for plot in (plot_of(teeth, WIDE), plot_of(teeth[-NARROW_TEETH:], NARROW)) if plot],
        latest=latest,
        grid=grid_of(parts, conversation.window, latest.limit if latest else None),
        **_why(conversation, parts, latest),
        summaries=replace(summaries, data=sorted(summaries.data, key=_newest_first)),
        costs=_by_summary(ledger),
        keeps_messages=visit.services.keeps_messages,
        # To ask for summaries with.
        needs_key=visit.services.providers.of(conversation.model, None, visit.tenant).settings.api_key is None,
        **await _timeline(visit, conversation, parts, at),
    )


def _why(conversation: StoredConversation, parts: Sequence[Mapping[str, Any]], latest: Tooth | None) -> dict[str, Any]:
    """Explanation of the latest payload. The plan is of the latest request that had one: those after it went as they
    came, or as it says."""
    plan = msgspec.json.decode(conversation.plan, type=dict[str, Any]) if conversation.plan else None
    is_latest = plan is not None and latest is not None and plan["request_id"] == latest.request_id
    shown = parts if is_latest else ()
    reasons = (conversation.reason, *(step["reason"] for step in (plan or {"steps": ()})["steps"]))
    return {
        "steps": explained(plan, conversation.tokens_before, shown),
        "plan": plan,
        "is_latest": is_latest,
        "meanings": meanings(*reasons),
    }


async def _timeline(
    visit: Visit, conversation: StoredConversation, parts: Sequence[Mapping[str, Any]], at: int | None
) -> dict[str, Any]:
    services, fates = visit.services, Fates(parts)
    paging = page_at(at, fates.number)
    pinned = {pin.position for pin in await visit.find(find_pins, conversation.id)}
    stretches, rows = fates.stretches, []
    if services.keeps_messages:
        leading = next((part["messages"] for part in parts if part["kind"] == "instructions"), 0)
        first = paging.first or -leading
        history = await _latest_history(visit, conversation)
        found = history.between(first, paging.last) if history else []
        rows = _rows(found, range(first, paging.last + 1), fates, pinned, formats_of(services))
    shown = [each for each in stretches if paging.first <= each.last and each.first <= paging.last]
    return {"paging": paging, "stretches": stretches, "shown_stretches": shown, "rows": rows, "pinned": pinned}


def _rows(found: Sequence[StoredMessage], places: range, fates: Fates, pinned: set[int], formats: Formats) -> list[Row]:
    by_index = {message.index: message for message in found}
    return [
        Row(
            index=index,
            fate=fates.of(index) if index >= 0 else None,
            said=said_in(stored, formats) if (stored := by_index.get(index)) else None,
            tokens=stored.tokens if stored else None,
            pinned=index in pinned,
        )
        for index in places
    ]


def _newest_first(chunk: SummaryChunk) -> tuple[int, int]:
    """Summaries with those of the latest messages first: what one compaction made in parts was stored in any order."""
    return -chunk.last_index, -chunk.level


def _by_summary(ledger: UsagePage) -> dict[str, Any]:
    """Cost of making each summary, by its id, as far as the latest records have it."""
    return {
        made.summary_id: stored.record
        for stored in ledger.page.data
        if (made := stored.record.made) is not None and made.summary_id is not None
    }


@router.get("/ui/conversations/{conversation_id}/payload")
async def show_payload(
    visit: TheVisit, conversation: TheConversation, page: Annotated[int, Query(ge=1, le=1_000_000)] = 1
) -> Response:
    """The latest payload as it went out, a page at a time, and on the first one the client's request as a command."""
    services, places = visit.services, places_of(conversation.parts)
    paging = page_at((page - 1) * MESSAGES, len(places))
    shown = places[paging.first : paging.last + 1]
    history = await _latest_history(visit, conversation)
    stored = {message.index: message for message in history.messages} if history else {}
    named = [place.part["summary_id"] for place in shown if "summary_id" in place.part]
    chunks = {chunk.id: chunk for chunk in await services.store.request(chunks_named, visit.tenant, named)}
    formats, shows_request = formats_of(services), bool(stored) and not paging.first
    return visit.page(
        "payload.html",
        conversation=conversation,
        entries=[entry_of(place, stored, chunks, formats) for place in shown],
        paging=paging,
        page=paging.first // MESSAGES + 1,
        pages=max(paging.count - 1, 0) // MESSAGES + 1,
        keeps_messages=services.keeps_messages,
        has_request=shows_request,
        command=_command(visit, conversation, history) if shows_request else "",
    )


async def _latest_history(visit: Visit, conversation: StoredConversation) -> StoredHistory | None:
    """Stored history of the conversation's latest request; None where it is not kept."""
    if not visit.services.keeps_messages:
        return None
    history = await visit.services.store.history(visit.tenant, conversation.id)
    return history if history and history.is_latest else None


@router.get("/ui/conversations/{conversation_id}/request.sh")
async def read_request(visit: TheVisit, conversation: TheConversation) -> Response:
    """The client's latest request to Steno as a shell command, where it is stored."""
    history = await _latest_history(visit, conversation)
    command = _command(visit, conversation, history, LONGEST_DOWNLOAD)
    if not command:
        raise NoSuchPage
    name = {"content-disposition": 'attachment; filename="request.sh"'}
    return PlainTextResponse(command, headers=HEADERS | name)


def _command(
    visit: Visit, conversation: StoredConversation, history: StoredHistory | None, longest: int = LONGEST_COMMAND
) -> str:
    """Shell command that repeats a request; empty where it is too long, or not stored."""
    if history is None or (spoken := formats_of(visit.services).get(history.format)) is None:
        return ""
    if sum(len(message.sent) for message in history.messages) > longest:
        return ""
    url = visit.request.base_url
    sent = [message.sent.encode("utf-8", "replace") for message in history.messages]
    body = spoken.assembled(conversation.model, sent, OUTPUT)
    return curl_of(f"{url.scheme}://{url.netloc}", spoken, conversation.id, body)


@router.get("/ui/conversations/{conversation_id}/handoff.md")
async def read_handoff(visit: TheVisit, conversation: TheConversation) -> Response:
    services, tenant = visit.services, visit.tenant
    write = await handoff_of(
        services.store, services.formats, tenant, conversation, keeps_messages=services.keeps_messages
    )
    name = {"content-disposition": 'attachment; filename="handoff.md"'}
    return Markdown(await services.work.do(tenant, write), headers=HEADERS | name)


@router.get("/ui/conversations/{conversation_id}/events")
async def stream_events(visit: TheVisit, conversation: TheConversation) -> Response:
    """Stream of what begins and ends meanwhile: see `live`."""
    live, record = visit.inspector.live, visit.request.scope[REQUEST]
    if record.method == "HEAD":  # Nobody would read what holds one of the places.
        return Response(media_type="text/event-stream", headers=HEADERS)
    if not live.has_room(visit.tenant):
        return PlainTextResponse("Too many pages are watching.", 503, HEADERS)
    frames = live.events(visit.services, visit.tenant, conversation.id, visit.session.expires)
    return StreamingResponse(frames, media_type="text/event-stream", headers=HEADERS)


@router.get("/ui/conversations/{conversation_id}/summaries/{summary_id}")
async def show_summary(
    visit: TheVisit, conversation: TheConversation, summary_id: str, done: Annotated[str, Query()] = ""
) -> Response:
    return await summary_page(visit, conversation, summary_id, done=DONE.get(done))


async def summary_page(
    visit: Visit,
    conversation: StoredConversation,
    summary_id: str,
    *,
    done: str | None = None,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    """A summary beside what it was made from."""
    chunk = await visit.find(find_summary, conversation.id, summary_id)
    if chunk is None:
        raise NoSuchPage
    history = await visit.services.store.history(visit.tenant, conversation.id) if not chunk.level else None
    is_source = history is not None and chunk.through_digest in history.digests
    kept = history.between(chunk.first_index, chunk.last_index) if history and is_source else []
    formats = formats_of(visit.services)
    ledger = await visit.find(read_records, conversation.id, Paging(CALLS, order="desc"), with_turns=False)
    return visit.page(
        "summary.html",
        status=status,
        conversation=conversation,
        chunk=chunk,
        carried=[chunk.first_index + offset for offset in chunk.carried],
        children=await visit.services.store.request(chunks_named, visit.tenant, chunk.children),
        sources=[(message.index, said_in(message, formats)) for message in kept],
        call=_by_summary(ledger).get(chunk.id),
        keeps_messages=visit.services.keeps_messages,
        done=done,
        problem=problem,
    )

"""A conversation's latest payload for the pages: treatment of each message, entries of the payload, and explanation.

The store has the coverage of the payload: the kind and size of each part. Stored messages and summaries are shown with
their text, shortened messages with their original text. Steno does not store the notes that it writes for one request:
the page shows only their kind and size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from app.api.conversations import coverage_at, message_in
from app.compaction.chunks import SummaryChunk
from app.compaction.prompts import chunk_text
from app.conversation.messages import Kind
from app.conversation.reasons import Code
from app.inspector.pages import whole
from app.store import StoredMessage

FATES: Mapping[str, str] = {"summarized": "in a summary", "pruned": "left out"}
"""Displayed words for kinds of parts. For any other kind, its name is displayed."""
LONGEST = 20_000
"""Maximum characters of a message on a page."""
GLANCE = 320
"""Maximum characters of a message's preview."""
KINDS = {Kind.CLIENT: "user's program", Kind.RESULT: "tool result"}
"""Displayed words for kinds of messages. For any other kind, its name is displayed."""

Part = Mapping[str, Any]


class Stretch(Struct, frozen=True):
    """Consecutive messages with the same treatment in the payload."""

    first: int
    last: int
    kind: str
    """Kind of the part, as in the coverage."""
    summary_id: str | None
    """Id of the summary that replaces the messages."""
    pinned: bool
    """True if the payload also contains a verbatim copy of the messages."""
    recalled: bool
    """True if the payload quotes passages of the messages."""
    tokens: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def word(self) -> str:
        return FATES.get(self.kind, self.kind)


def message_count(parts: Sequence[Part]) -> int:
    """Return the number of messages after the leading instructions."""
    return 1 + max((part["last_index"] for part in parts if "last_index" in part), default=-1)


def stretches_of(parts: Sequence[Part]) -> list[Stretch]:
    """Split all messages into stretches, in order. A stretch ends where a part or a quoted message begins or ends. If a
    message is also in a summary, the part with the message itself determines the stretch's kind."""
    count = message_count(parts)
    edges = {0, count}
    for part in parts:
        if "first_index" in part:
            edges |= {part["first_index"], part["last_index"] + 1}
        elif part["kind"] == "recalled":
            edges |= {edge for index in part["messages"] for edge in (index, index + 1)}
    starts = pairwise(sorted(edge for edge in edges if 0 <= edge <= count))
    return [_stretch(parts, first, stop) for first, stop in starts]


def _stretch(parts: Sequence[Part], first: int, stop: int) -> Stretch:
    others = [part for part in parts if part["kind"] not in ("pinned", "recalled")]
    shown = coverage_at(others, first)
    return Stretch(
        first,
        stop - 1,
        kind=shown.kind if shown else "unknown",
        summary_id=shown.summary_id if shown else None,
        pinned=coverage_at([part for part in parts if part["kind"] == "pinned"], first) is not None,
        recalled=any(part["kind"] == "recalled" and first in part["messages"] for part in parts),
        # A summary's tokens count for the stretch with its first message.
        tokens=sum(part["tokens"] for part in others if first <= part.get("first_index", -1) < stop),
    )


def folded(stretches: Sequence[Stretch]) -> list[list[Stretch]]:
    """Group stretches into rows of a page: one row for each summary, and one for each other stretch."""

    def row(each: Stretch) -> object:
        return each.summary_id if each.kind == "summarized" else each.first

    return [list(group) for _, group in groupby(stretches, row)]


class Said(Struct, frozen=True):
    """Message as a page shows it."""

    kind: str
    text: str
    beside: str = ""
    """Names of the parts that are not in `text`, such as `2 attachments, reasoning`."""
    left: int = 0
    """Number of omitted characters."""

    @property
    def glance(self) -> str:
        """Return the preview of the text; empty if the text is short."""
        return self.text[:GLANCE].rstrip() if len(self.text) > GLANCE or self.text.count("\n") > 5 else ""


def said_in(stored: StoredMessage) -> Said:
    """Return a stored message for display. If Steno cannot read the message, the shown text is its JSON."""
    if (message := message_in(stored.sent, stored.format)) is None:
        return _cut("other", stored.sent)
    lines = [text for text in message.texts if text] + [f"{call.name}({call.arguments})" for call in message.calls]
    beside = [f"{len(message.media)} attachment{'s' * (len(message.media) > 1)}"] if message.media else []
    beside += ["reasoning"] if message.thoughts or message.encrypted else []
    return _cut(KINDS.get(message.kind, message.kind.name.lower()), "\n".join(lines), ", ".join(beside))


def _cut(kind: str, text: str, beside: str = "") -> Said:
    return Said(kind, text[:LONGEST], beside, max(0, len(text) - LONGEST))


_WHOLE = ("instructions", "verbatim", "carried", "pinned")
"""Kinds of parts whose messages are unchanged."""
_NOT_STORED = "Steno makes it anew for each request and does not store it."
_NOTES = {
    "instructions": "Not stored.",
    "tools": "Tools, the response format and additions of the provider. Steno never stores their text.",
    "stub": "Steno's note that messages were left out.",
    "user_words": f"The user's words in messages that are left out. {_NOT_STORED}",
    "client_instructions": f"Instructions of the client in messages that are left out, repeated. {_NOT_STORED}",
    "exact_values": f"Exact values of messages that are left out. {_NOT_STORED}",
    "state": f"The agent's plan, its last failure and its files, from messages that are left out. {_NOT_STORED}",
}
Place = tuple[Part, StoredMessage | None]
"""Place in the payload: a part with one of its stored messages, or with None if the part has no stored message."""


class Entry(Struct, frozen=True):
    """One entry of the payload: a message, a summary, or another part, which has only a kind and a size."""

    kind: str
    """Kind of the part, as in the coverage."""
    tokens: int
    index: int | None = None
    said: Said | None = None
    note: str | None = None
    summary_id: str | None = None

    @property
    def word(self) -> str:
        return "summary" if self.kind == "summarized" else FATES.get(self.kind, self.kind).replace("_", " ")


def places_of(parts: Sequence[Part], messages: Mapping[int, StoredMessage]) -> Iterator[Place]:
    """Yield all places, in the order of the payload. `messages`: stored messages by index; empty if none are stored."""
    for part in parts:
        first, last = part.get("first_index", 0), part.get("last_index", -1)
        if part["kind"] == "instructions":
            first = -part["messages"]
        own = () if part["kind"] in ("summarized", "pruned") else range(first, last + 1)
        if stored := [messages[index] for index in own if index in messages]:
            yield from ((part, message) for message in stored)
        elif part.get("messages", True):
            yield part, None
        if tools := part.get("tools_tokens"):
            yield {"kind": "tools", "tokens": tools}, None


def entry_of(place: Place, chunks: Mapping[str, SummaryChunk]) -> Entry:
    """Return the entry at a place. `chunks`: stored summaries by id."""
    part, message = place
    kind, tokens = part["kind"], part["tokens"] - part.get("tools_tokens", 0)
    if message is not None:
        said = said_in(message)
        if kind in _WHOLE:
            return Entry(kind, message.tokens, message.index, said)
        note = f"Sent cut to about {tokens:,} tokens; the shorter text is not stored. This is the original."
        return Entry(kind, tokens, message.index, said, note)
    if kind == "summarized":
        if (chunk := chunks.get(part["summary_id"])) is None:
            return Entry(kind, tokens, note="This summary is not stored any more.", summary_id=part["summary_id"])
        return Entry(kind, tokens, said=_cut("user", chunk_text(chunk)), summary_id=chunk.id)
    if "first_index" in part:
        first, last = part["first_index"] + 1, part["last_index"] + 1
        which = f"#{first}" if first == last else f"#{first} to #{last}"
        return Entry(kind, tokens, first - 1, note=f"{'Left out' if kind == 'pruned' else 'Not stored'}: {which}.")
    if kind == "recalled":
        quoted = ", ".join(f"#{message + 1}" for message in part["messages"])
        return Entry(kind, tokens, note=f"Passages of {quoted}, quoted for this request. {_NOT_STORED}")
    return Entry(kind, tokens, note=_NOTES.get(kind))


Tone = Literal["plain", "over", "done", "bad"]
SOURCES = {
    "config": "set in the settings",
    "provider": "as the provider reports",
    "learnt": "learnt from a refusal",
    "bundled": "from the bundled list of models",
    "default": "a guess, because its size is unknown",
}
"""Displayed words for the sources of a window."""
_STEPS: Mapping[str, tuple[str, Tone, str]] = {
    "stored.fits": ("Checked", "plain", "With {summaries} from the store, the prompt fits: {tokens} tokens"),
    "stored.too_large": ("Checked", "over", "With {summaries} from the store, the prompt has {tokens} tokens"),
    "mask.set": ("Masked", "done", "From here on, results of tools that the assistant has answered are shortened"),
    "mask.put_off": ("Mask put off", "plain", "Shortening results of tools would cost more than it saves"),
    "summarise.made": ("Summarised", "done", "Made {summaries}, {tokens} tokens in all"),
    "summarise.awaited": ("Waited", "plain", "Another request was making the summary that was due"),
    "summarise.in_background": ("Put off", "plain", "The summary that is due is made after the answer"),
    "summarise.takes_too_long": ("Went on", "plain", "The summary was still being made: the request went without it"),
    "summarise.lease_lost": ("Overtaken", "plain", "Another process made the summary first"),
    "summarise.failed": ("Not summarised", "bad", "A summary was due and could not be made"),
    "summarise.deleted": ("Not summarised", "bad", "The conversation was deleted while its summary was made"),
    "summarise.store_away": ("Not summarised", "bad", "The database did not answer"),
    "summarise.nothing_to_summarise": ("Not summarised", "bad", "No messages are left that a summary could replace"),
    "summarise.not_begun": ("Not summarised", "bad", "A summary was due, and none was begun"),
}
"""Title, tone and sentence by step and outcome, for the steps before the choice of a payload."""
_PAYLOADS = {
    "least": "The smallest change under the trigger",
    "widest": "Every stored summary and mask",
    "fit": "The history with large texts shortened",
    "prune": "The history without its oldest messages",
    "truncate": "The history with all remaining texts cut short",
    "without_summaries": "The history cut, without summaries",
    "unchanged": "The request as it came",
}
"""Descriptions of the payloads that a plan may try, by step."""


class Explained(NamedTuple):
    title: str
    text: str
    tone: Tone = "plain"


def explained(plan: Mapping[str, Any] | None, sent: int) -> Iterator[Explained]:
    """Explain a payload: the numbers of its plan, and each tried step with its outcome. `plan`: the stored plan (see
    `account_of` in `compaction/decision`), or None if no compaction was due. `sent`: tokens of the latest request."""
    if plan is None:
        sentence = (
            f"The client's {whole(sent)} tokens were under the trigger, and Steno forwarded the request unchanged."
        )
        yield Explained("Nothing was due", sentence)
        return
    came, went, trigger = plan["estimated"], plan["forwarded"], plan["trigger"]
    source = SOURCES.get(plan["window_source"], plan["window_source"])
    yield Explained(
        "Room", f"A window of {whole(plan['window'])} tokens, {source}; the prompt may use {whole(plan['limit'])}."
    )
    over = f"{whole(came - trigger)} over" if came > trigger else "within"
    received = f"{whole(came)} tokens, {over} the trigger of {whole(trigger)}."
    yield Explained("Received", received, "over" if came > trigger else "plain")
    yield Explained(
        "Minimum",
        f"{whole(plan['floor'])} tokens never change: instructions, tools and the last user message."
        f" A compaction aims at {whole(plan['target'])}.",
    )
    yield from map(_step, plan["steps"])
    fewer = f", {whole(came - went)} fewer." if came > went else "."
    yield Explained("Forwarded", f"{whole(went)} tokens{fewer}", "done")


def _step(step: Mapping[str, Any]) -> Explained:
    name, outcome, number = step["step"], step["outcome"], step["summaries"]
    title, tone, text = _STEPS.get(f"{name}.{outcome}", (name, "plain", outcome))  # For steps of another release.
    if name in _PAYLOADS:
        title, text = "Not enough" if outcome == "refused" else "Chosen", _PAYLOADS[name] + " ({tokens} tokens)"
        tone = "bad" if outcome == "refused" else "done"
    summaries = "one summary" if number == 1 else f"{number or 'no'} summaries"
    text = text.format(summaries=summaries, tokens=whole(step["tokens"]))
    return Explained(title, f"{text}: {step['reason']}." if step["reason"] else f"{text}.", tone)


def meanings(*reasons: str | None) -> list[tuple[str, str]]:
    """Return the code and the meaning of each reason that these texts name, each reason once."""
    codes = {str(code): code for code in Code}
    found = dict.fromkeys(word for reason in reasons for word in re.findall(r"[a-z_]+", reason or ""))
    return [(word, codes[word].meaning) for word in found if word in codes]

"""The answer on its way to the client: our members go in, and what would be a second beginning comes out.

A stream passes frame by frame, nearly always as it came: only what begins or ends it is looked into, and even that
keeps all its other bytes. The first frame gets the status, the one that ends the response everything. A provider
opens its stream before it looks at the prompt: what it says until the first item does not count as an answer, and an
error behind it is a refusal.

Numbers ascend and one stream has one id, whoever began it: where we did, each frame is given the next number and our
id; and an error of ours behind the provider's frames is given theirs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from app.wire.members import RawObject, Unreadable, holds_more_values, split_array
from app.wire.responses.early import CompactionEvents
from app.wire.sse import MOST_VALUES, data_of, last_end
from app.wire.streamed import MOST_RAW
from app.wire.usage import LONGEST_USAGE, Usage, says_window_full, text_of, usage_of

BEGINNINGS = frozenset({"response.created", "response.in_progress", "response.queued"})
COUNTLESS = frozenset({*BEGINNINGS, "keepalive", "ping"})
"""Frames that are no part of an answer."""
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_NOTABLE = re.compile(
    rb'"type"\s*+:\s*+"(?:response\.(?:completed|incomplete|failed|created)|error)"|"error"\s*+:\s*+\{'
)
"""A frame without any of these says nothing new of itself."""
_TEXT = re.compile(rb'"delta"\s*+:\s*+"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
"""Possessive, because what it would go back to takes 500 MB for a frame of escapes."""
_NUMBER = re.compile(rb'"sequence_number"\s*+:\s*+([0-9]{1,9})')
_LAST_NUMBER = b'"sequence_number"'
LONGEST_TEXT = 1 << 20
"""Bytes of a frame whose text is counted; a longer one holds a picture."""
LONGEST_ID = 1_000


@dataclass(slots=True)
class ResponsesEditor:
    """One answer, streamed or whole."""

    first_members: bytes
    last_members: bytes
    early: CompactionEvents | None = None
    """What was sent before the provider's frames."""
    usage_said: object = None
    """What the answer said of the tokens it cost, as received."""
    model: str = ""
    """What it called the model, beside that; likewise the tier."""
    tier: str = ""
    searches: int = 0
    """Of the web, that it made."""
    window_full: bool = False
    text_bytes: int = 0
    begun: bool = False
    complete: bool = False
    failed: bool = False
    refusal: bytes = b""
    _told: bool = False
    """The first frame that gets the status has come."""
    _id: str = ""
    """Of the response, as the client knows it."""
    _next: int = 0
    """The number of the next frame."""

    def __post_init__(self) -> None:
        if self.early is not None and self.early.begins:
            self._told, self._id, self._next = True, self.early.id, self.early.number

    @property
    def usage(self) -> Usage | None:
        return usage_of(self.usage_said, self.model, self.tier, self.searches)

    @property
    def _continues(self) -> bool:
        """Whether the provider's frames go on with a response that we began."""
        return self.early is not None and self.early.begins

    def whole(self, body: bytes) -> bytes:
        if holds_more_values(body, MOST_RAW):
            return body
        try:
            response = RawObject(body)
        except Unreadable:
            return body
        self.complete, self.text_bytes = True, len(body)
        self._read_end(response)
        return response.with_status(self.last_members)

    def quiet(self, frames: bytes, start: int) -> int:
        if not self.begun or self._continues:
            return start
        notable = _NOTABLE.search(frames, start)
        stop = len(frames) if notable is None else last_end(frames, start, notable.start())
        if stop - start <= LONGEST_TEXT:
            self.text_bytes += sum(map(len, _TEXT.findall(frames, start, stop)))
        if (place := frames.rfind(_LAST_NUMBER, start, stop)) != -1 and (found := _NUMBER.match(frames, place)):
            self._next = int(found[1]) + 1
        return stop

    def edit(self, frame: bytes) -> bytes:
        data = data_of(frame)
        if data is None:
            return frame
        start, stop = data
        text = frame[start:stop]
        if len(text) <= LONGEST_TEXT:
            self.text_bytes += sum(len(written[1]) for written in _TEXT.finditer(text))
        if self.begun and not self._continues and _NOTABLE.search(text) is None:
            if found := _NUMBER.search(text):
                self._next = int(found[1]) + 1
            return frame
        if holds_more_values(text, MOST_VALUES):
            return frame
        try:
            said = RawObject(text)
        except Unreadable:
            return frame
        edited = self._edited(said)
        if edited is None:
            return b""
        return frame if edited == text else frame[:start] + edited + frame[stop:]

    def _edited(self, said: RawObject) -> bytes | None:
        """What a frame says, as the client gets it; None for one that would begin the answer again."""
        type_ = said.value("type")
        if type_ in BEGINNINGS and self._continues:
            return None
        replaced = self._in_place(said)
        if type_ == "error" or (type_ not in COUNTLESS | ENDS and said.value("error")):
            self._fail(said.text)
            return said.spliced(replaced)
        members = b"" if self._told else self._first_members()
        self._told = True
        if type_ in ENDS:
            self.complete = True
            if (raw := said.raw("response")) is not None and raw.startswith(b"{"):
                self._end(str(type_), RawObject(raw))
            members = self.last_members or members
        else:
            self.begun = self.begun or type_ not in COUNTLESS
        return RawObject(said.spliced(replaced)).with_status(members) if members else said.spliced(replaced)

    def _first_members(self) -> bytes:
        outcome = self.early.outcome if self.early is not None else b""
        return b",".join(members for members in (outcome, self.first_members) if members)

    def _end(self, type_: str, response: RawObject) -> None:
        self._read_end(response)
        if type_ == "response.failed":
            error = response.raw("error") or b"null"
            self._fail(b'{"error":%b}' % error)
        else:
            self.begun = True

    def _fail(self, error: bytes) -> None:
        self.refusal = self.refusal if self.begun or self.failed else error
        self.failed = self.complete = True

    def _read_end(self, response: RawObject) -> None:
        """What a response says of itself, where it is over."""
        if len(response.raw("usage") or b"") <= LONGEST_USAGE:
            self.usage_said = response.value("usage")
        self.model, self.tier = text_of(response, "model"), text_of(response, "service_tier")
        self.searches = searches_in(response.raw("output"))
        details = response.value("incomplete_details")
        self.window_full = isinstance(details, dict) and says_window_full(details.get("reason"))

    def _in_place(self, said: RawObject) -> dict[str, bytes]:
        """The members to replace, so that the frame goes on from what the client has got."""
        replaced: dict[str, bytes] = {}
        number = said.value("sequence_number")
        if isinstance(number, int):
            sent = self._next if self._continues else max(self._next, number)
            self._next = sent + 1
            if sent != number:
                replaced["sequence_number"] = b"%d" % sent
        response = said.raw("response")
        if response is not None and response.startswith(b"{"):
            known = RawObject(response)
            id_ = known.value("id")
            if isinstance(id_, str) and len(id_) <= LONGEST_ID:
                self._id = self._id or id_
                if id_ != self._id:
                    replaced["response"] = known.spliced({"id": msgspec.json.encode(self._id)})
        return replaced


def searches_in(output: bytes | None) -> int:
    """How many searches of the web an output holds. To open a page that one found costs nothing."""
    if output is None or b"web_search_call" not in output:
        return 0
    try:
        items = [RawObject(raw) for raw in split_array(output)]
    except Unreadable:
        return 0
    actions = [item.value("action") for item in items if item.value("type") == "web_search_call"]
    return sum(not isinstance(action, dict) or action.get("type", "search") == "search" for action in actions)

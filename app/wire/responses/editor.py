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

from app.wire.answers import AnswerEditor
from app.wire.members import RawObject, Unreadable, split_array
from app.wire.responses.early import CompactionEvents
from app.wire.usage import LONGEST_USAGE, Usage, says_window_full, text_of, usage_of

BEGINNINGS = frozenset({"response.created", "response.in_progress", "response.queued"})
COUNTLESS = frozenset({*BEGINNINGS, "keepalive", "ping"})
"""Frames that are no part of an answer."""
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_NUMBER = re.compile(rb'"sequence_number"\s*+:\s*+([0-9]{1,9})')
_LAST_NUMBER = b'"sequence_number"'
LONGEST_ID = 1_000


@dataclass(slots=True)
class ResponsesEditor(AnswerEditor):
    """One answer, streamed or whole."""

    NOTABLE = re.compile(
        rb'"type"\s*+:\s*+"(?:response\.(?:completed|incomplete|failed|created)|error)"|"error"\s*+:\s*+\{'
    )
    TEXT = re.compile(rb'"delta"\s*+:\s*+"((?:[^"\\]++|\\.)*+)"', re.DOTALL)

    early: CompactionEvents | None = None
    """The frames that were sent before the provider's."""
    searches: int = 0
    """Web searches that the model made."""
    _told: bool = False
    """Whether the first frame that gets the status has come."""
    _id: str = ""
    """Id of the response, as the client knows it."""
    _next: int = 0
    """Number of the next frame."""

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

    def quiet(self, frames: bytes, start: int) -> int:
        if self._continues:
            return start
        stop = super(ResponsesEditor, self).quiet(frames, start)
        if (place := frames.rfind(_LAST_NUMBER, start, stop)) != -1 and (found := _NUMBER.match(frames, place)):
            self._next = int(found[1]) + 1
        return stop

    def _passes(self, text: bytes) -> bool:
        if self._continues or not super(ResponsesEditor, self)._passes(text):
            return False
        if found := _NUMBER.search(text):
            self._next = int(found[1]) + 1
        return True

    def _edited(self, said: RawObject) -> bytes:
        type_ = said.value("type")
        if type_ in BEGINNINGS and self._continues:
            return b""
        replaced = self._in_place(said)
        if type_ == "error" or (type_ not in COUNTLESS | ENDS and said.value("error")):
            self._fail(said.text)
            return said.spliced(replaced)
        members = b"" if self._told else self._first_members()
        self._told = True
        if type_ in ENDS:
            self.ended = True
            if (raw := said.raw("response")) is not None and raw.startswith(b"{"):
                self._end(str(type_), RawObject(raw))
            members = self.finish_members or members
        else:
            self.begun = self.begun or type_ not in COUNTLESS
        return RawObject(said.spliced(replaced)).with_status(members) if members else said.spliced(replaced)

    def _first_members(self) -> bytes:
        outcome = self.early.outcome if self.early is not None else b""
        return b",".join(members for members in (outcome, self.first_members) if members)

    def _end(self, type_: str, response: RawObject) -> None:
        self._read_whole(response)
        if type_ == "response.failed":
            error = response.raw("error") or b"null"
            self._fail(b'{"error":%b}' % error)
        else:
            self.begun = True

    def _fail(self, error: bytes) -> None:
        self.refusal = self.refusal if self.begun or self.failed else error
        self.failed = True

    def _read_whole(self, answer: RawObject) -> None:
        if len(answer.raw("usage") or b"") <= LONGEST_USAGE:
            self.usage_said = answer.value("usage")
        self.model, self.tier = text_of(answer, "model"), text_of(answer, "service_tier")
        self.searches = searches_in(answer.raw("output"))
        details = answer.value("incomplete_details")
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
    """Number of web searches in an output. To open a page that one found costs nothing."""
    if output is None or b"web_search_call" not in output:
        return 0
    try:
        items = [RawObject(raw) for raw in split_array(output)]
    except Unreadable:
        return 0
    actions = [item.value("action") for item in items if item.value("type") == "web_search_call"]
    return sum(not isinstance(action, dict) or action.get("type", "search") == "search" for action in actions)

"""Asking: functions of Steno's own among a request's tools, and one answer made of several rounds.

Where a model calls one of these functions, Steno answers and asks the provider again. The client sees one answer: what
each round says to it, in order, as if the provider had said it at once, and nothing of the calls. `Rounds` puts it
together, frame by frame or whole; whatever edits answers comes behind it and sees one answer only. A round whose stream
cannot be put together again asks nothing more: what stands in it for the client passes.

A model may call the client's functions beside ours. Then the answer is over, since the client has to act; what came
before, our calls and their results are an `Aside`, which goes back to its place when the client's results come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw, Struct

from app.core.reasons import Code
from app.core.tokens.declarations import Tool
from app.errors import UpstreamUnreadable
from app.wire.members import RawObject, split_array
from app.wire.objects import object_of
from app.wire.sse import data_of
from app.wire.types import WireRequest

Json = dict[str, Any]

LARGEST_ROUND = 64 << 20
"""Bytes of the frames of one round. The longest answers of today's models, a frame a token, take half of it."""


class Called(Struct, frozen=True):
    """A call of one of our functions."""

    id: str
    name: str
    arguments: str


class Aside(Struct, frozen=True):
    """Part of an answer that the provider knows and the client does not, each as raw JSON of the format. As JSON
    itself it is stored for as long as the turn may run."""

    call_id: str
    """Id of the client's call that it stands with."""
    before: tuple[Raw, ...] = ()
    """Messages of the rounds before the one with this call."""
    within: tuple[tuple[int, Raw], ...] = ()
    """Calls of ours beside the client's, each with the number of parts before it that the client has of the answer:
    of its calls in Chat Completions, of its blocks in Messages, of its items in Responses."""
    results: tuple[Raw, ...] = ()
    """Results of these calls."""
    lead: int = 0
    """Number of parts that the client has of its round: in Messages of all of it, in Responses before the call."""
    had: int = 0
    """Number of blocks or items that it has of the rounds before, which say them already."""

    @property
    def size(self) -> int:
        """Bytes of what it holds."""
        return len(b"".join(self._raws))

    @property
    def text(self) -> str:
        """Text that it costs about as many tokens as."""
        return b"".join(self._raws).decode("utf-8", "replace")

    @property
    def _raws(self) -> Sequence[Raw]:
        return (*self.before, *(raw for _, raw in self.within), *self.results)


@dataclass(slots=True)
class Rounds:
    """One answer out of several. A format says what its frames are."""

    names: Collection[str]
    """Names of our functions."""
    usage_said: Any = field(default=None, init=False)
    """Usage of the round under way, as the provider gives it."""
    whole_calls: bool = field(default=True, init=False)
    """Whether what the round said can be put together again."""
    number: int = field(default=0, init=False)
    """Number of the round, from 0."""
    failed: bool = field(default=False, init=False)
    """Whether the round broke off, or the provider sent an error in it."""
    _is_plain: bool = field(default=False, init=False)
    """Whether the round is the answer without our functions."""
    _has_said: bool = field(default=False, init=False)
    """Whether the client has anything of the round."""
    _taken: int = field(default=0, init=False)
    """Bytes of the round's frames so far."""
    _past: list[bytes] = field(default_factory=list, init=False)
    """Raw messages of the rounds before: what the model said, and our results."""
    _spent: Any = field(default=None, init=False)
    """Usage of the rounds before."""
    _held: list[bytes] = field(default_factory=list, init=False)
    """Frames of the round that wait until it is known whether the answer ends with it."""
    _done: bytes = field(default=b"", init=False)
    """Frame `[DONE]` of the round, which some providers send in every format."""
    _early: bytes = field(default=b"", init=False)
    """Frames that waited, and go before the one that let them go."""
    _body: bytes = field(default=b"", init=False)
    """The round as it came, where it came in one piece."""

    @property
    def calls(self) -> list[Called]:
        """Calls of ours in the round under way."""
        raise NotImplementedError

    @property
    def asks(self) -> bool:
        """Whether the round ended, and the model waits for our results alone."""
        return self._is_over and not self._others and bool(self.calls)

    @property
    def falls_back(self) -> bool:
        """Whether the round failed before the client had any of it, and the answer can be asked for without it."""
        return self.failed and self.number > 0 and not self._is_plain and not self._has_said

    @property
    def is_mixed(self) -> bool:
        """Whether the model called the client's functions beside ours, or after a round of ours."""
        return self.whole_calls and self._is_over and bool(self._others) and bool(self._past or self.calls)

    @property
    def _is_over(self) -> bool:
        """Whether the round had an end of its own, and no error."""
        raise NotImplementedError

    @property
    def _others(self) -> Sequence[str]:
        """Ids of the client's calls in the round."""
        raise NotImplementedError

    def frame(self, frame: bytes) -> bytes:
        """A frame of a stream, as it passes now; empty for one that is held or left out.

        Raises `UpstreamUnreadable` where the round is larger than `LARGEST_ROUND`.
        """
        data = data_of(frame)
        if data is None:
            return frame
        start, stop = data
        text = frame[start:stop]
        if text.startswith(b"[DONE]"):
            self._done = frame
            return b""
        try:
            said = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return frame
        if not isinstance(said, dict):
            return frame
        self._taken += len(text)
        if self._taken > LARGEST_ROUND:
            raise UpstreamUnreadable(
                f"The provider's answer has more than {LARGEST_ROUND} bytes. Steno reads no more while the model may "
                f"ask for what was left out: shorten the answer, or set compaction.ask to off."
            )
        passed = self._passed(text, said)
        if self.falls_back:
            return b""
        early, self._early = self._early, b""
        self._has_said = self._has_said or bool(early) or (passed is not None and said.get("type") != "ping")
        if passed is None:
            return early
        return early + (frame if passed == text else frame[:start] + passed + frame[stop:])

    def _passed(self, text: bytes, said: Json) -> bytes | None:
        """Data of a frame as they pass now; None for nothing."""
        raise NotImplementedError

    def whole(self, body: bytes) -> bool:
        """Take a round that came in one piece; returns whether it is an answer of the format."""
        raise NotImplementedError

    def said(self) -> list[bytes]:
        """Raw messages of what the model said in the round, our calls among them."""
        raise NotImplementedError

    def results(self, answers: Sequence[str]) -> list[bytes]:
        """Raw messages of the results of our calls."""
        return self._results(answers)

    def _results(self, answers: Sequence[str]) -> list[bytes]:
        return [msgspec.json.encode(self._result(*pair)) for pair in zip(self.calls, answers, strict=True)]

    def _result(self, call: Called, text: str) -> Json:
        """The result of a call."""
        raise NotImplementedError

    def so_far(self) -> list[bytes]:
        """Raw messages of all rounds until now, which follow the payload."""
        return [*self._past, *self.said()]

    def go_on(self, answers: Sequence[str]) -> list[bytes]:
        """Begin the next round, with these results of our calls; returns the raw messages that follow the payload."""
        self._past += [*self.said(), *self.results(answers)]
        return self._begin()

    def start_anew(self) -> None:
        """Begin another round without results: nothing of the one under way is known to the provider then."""
        self._past = []
        self._begin()
        self._is_plain = True

    def _begin(self) -> list[bytes]:
        self._spent = summed(self._spent, self.usage_said)
        self.usage_said, self.whole_calls = None, True
        self._held, self._done, self._early, self._body = [], b"", b"", b""
        self.failed, self._has_said, self._taken = False, False, 0
        self.number += 1
        self._reset()
        return list(self._past)

    def _reset(self) -> None:
        """Forget the round under way."""
        raise NotImplementedError

    def aside(self, answers: Sequence[str]) -> Aside | None:
        """Aside for the results of the client's calls; None if it made none."""
        others = self._others
        if not others:
            return None
        within, seen = [], 0
        for own in self._parts():
            if own is None:
                seen += 1
            else:
                within.append((seen, Raw(own)))
        past, results = tuple(map(Raw, self._past)), tuple(map(Raw, self._results(answers)))
        return Aside(others[0], past, tuple(within), results, *self._kept(seen))

    def _parts(self) -> Iterable[bytes | None]:
        """Parts of the round in order: each call of ours as the provider takes it back, None for any other part."""
        raise NotImplementedError

    def _kept(self, seen: int) -> tuple[int, int]:  # noqa: ARG002 - some formats say neither
        """The aside's `lead` and `had`, where the round has so many parts that are not ours."""
        return 0, 0

    def end(self) -> bytes:
        """Frames that end the stream."""
        raise NotImplementedError

    def ended_whole(self) -> bytes:
        """The answer in one piece."""
        raise NotImplementedError


class RecallTools:
    """How a format offers our functions, and puts back what belongs to them."""

    rounds: type[Rounds]

    def objection(self, request: WireRequest) -> Code | None:
        """Reason for which they are not offered with a request; None where they may be."""
        if request.answer.choices != 1:
            return Code.ASK_CHOICES
        if request.forbids_tools or not self._is_free(request.source):
            return Code.ASK_TOOL_CHOICE
        if object_of(self._shape(request.source)).get("type") in ("json_schema", "json_object"):
            return Code.ASK_JSON
        return self._unsafe(request)

    def _shape(self, source: RawObject) -> object:
        """Member that says what an answer has to look like."""
        raise NotImplementedError

    def _is_free(self, source: RawObject) -> bool:
        """Whether the model may call what it likes."""
        choice = source.value("tool_choice")
        return choice in (None, "auto") or (isinstance(choice, dict) and choice.get("type") == "auto")

    def _unsafe(self, request: WireRequest) -> Code | None:  # noqa: ARG002 - some formats have none
        """Reason of the format's own."""
        return None

    def tool(self, tool: Tool) -> Json:
        """A function as the format declares it."""
        raise NotImplementedError

    def offered(self, payload: bytes, tools: Sequence[Tool]) -> bytes:
        """A body that declares our functions after the client's. Raises `Unreadable`."""
        source = RawObject(payload)
        declared = self.declared(source.raw("tools"), tools)
        return source.spliced({"tools": declared}) if "tools" in source else source.spliced(add=b'"tools":' + declared)

    def declared(self, clients: bytes | None, tools: Sequence[Tool]) -> bytes:
        """The member `tools` with our functions after the client's. Raises `Unreadable`."""
        declared = [] if clients in (None, b"null") else split_array(clients)
        return b"[%b]" % b",".join([*declared, *(msgspec.json.encode(self.tool(tool)) for tool in tools)])

    def restored(self, raw_messages: list[bytes], aside: Aside) -> list[bytes] | None:
        """A payload's messages with an aside in its place; None where that is not found, or where an id that is not
        unique leaves it open."""
        needle = msgspec.json.encode(aside.call_id)
        holding = [place for place, raw in enumerate(raw_messages) if needle in raw]
        places = [place for place in holding if aside.call_id in self._called(object_in(raw_messages[place]))]
        return self._restored(raw_messages, aside, places[0]) if len(places) == 1 else None

    def _called(self, message: Json) -> Sequence[object]:
        """Ids of the calls in a message."""
        raise NotImplementedError

    def _restored(self, raw_messages: list[bytes], aside: Aside, place: int) -> list[bytes] | None:
        """The messages with an aside at the place of its call."""
        raise NotImplementedError


def summed(one: Any, other: Any) -> Any:
    """The sum of two usages in a provider's own shape: numbers are added, whatever else there is stays the later."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return {name: summed(one.get(name), other.get(name)) for name in {**one, **other}}
    if _is_number(one) and _is_number(other):
        return one + other
    return other


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def object_in(raw: bytes | Raw) -> Json:
    """An object; empty where it is none."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}

"""Summary calls: write the request for a summary, adapt it after a refusal, and read the answer.

The answer is a stream or one JSON object, as Steno requested. `FormatSpec` names the members.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from app.compaction.prompts import SummaryRequest
from app.formats.raw_json import Path, holds_more_values, object_of, values_at
from app.formats.refusals import decoded_body
from app.formats.requests import WireRequest
from app.formats.spec import Ending, FormatSpec, SummaryAnswer
from app.formats.sse import MOST_VALUES, FrameSplitter
from app.formats.usage import bill_of, read_usage, usage_members

Json = Mapping[str, Any]

STRING_BYTES = 50
"""Memory overhead of a Python string."""
WORD = re.compile(r"[A-Za-z0-9_-]{1,60}")
"""Pattern of finish reasons that Steno may copy into a header to explain a missing summary."""
_TOO_LARGE = re.compile(rb"too (?:large|high|big)|at most|exceed|less than")
_SPACE = b" \t\r\n"


class SummaryReader:
    """Parser of a summary call's answer. It takes the bytes of a stream or of one JSON object, in pieces."""

    def __init__(self, spec: FormatSpec) -> None:
        self._spec = spec
        self.error: object = None
        """Parsed JSON of an error that the provider sent with status 200."""
        self.error_is_first = False
        """Whether the error came before any content. If so, the provider refused the request."""
        self.unreadable = False
        self.done = False
        self.length = 0
        self._texts: list[str] = []
        self._begun = False
        """Whether any part of an answer has arrived."""
        self._ended = False
        self._failed = False
        self._word = spec.assumed_reason
        self._calls = False
        self._refused = False
        self._usage: dict[str, Any] = {}
        self._model = self._tier = ""
        self._start: bytes | None = b""
        """Bytes received before Steno knows whether they are a stream or JSON."""
        self._json: bytearray | None = None
        self._splitter = FrameSplitter()
        self._incomplete = 0

    @property
    def answer(self) -> SummaryAnswer | None:
        """The answer; None until it has ended, and after an error."""
        if self._failed or not self._ended:
            return None
        word = "refusal" if self._refused else self._word
        ending = Ending.CALLED if self._calls else self._spec.ending_of(word)
        word = "" if ending is Ending.FINISHED else word
        usage = read_usage(self._usage, self._model)
        return SummaryAnswer("".join(self._texts), ending, word, usage, bill_of(self._usage, self._model, self._tier))

    @property
    def held(self) -> int:
        """Approximate memory of the reader in bytes. Reasoning takes no memory, because the reader drops it."""
        return self._incomplete + STRING_BYTES * len(self._texts) + self.length + len(self._json or b"")

    def feed(self, chunk: bytes) -> None:
        if self._start is not None:
            chunk = (self._start + chunk).lstrip(_SPACE)
            self._start = None if chunk else b""
            if chunk[:1] in (b"{", b"["):
                self._json = bytearray()
        if self._json is not None:
            self._json += chunk
            return
        self._incomplete += len(chunk)
        for frame in self._splitter.feed(chunk):
            self._incomplete -= len(frame)
            self._read_frame(frame)

    def end(self) -> None:
        if self._json is not None:
            self._read(bytes(self._json), in_one_piece=True)
        else:
            self._read_frame(self._splitter.flush(), is_complete=False)

    def _read_frame(self, frame: bytes, *, is_complete: bool = True) -> None:
        lines = (line.removeprefix(b"data:") for line in frame.splitlines() if line.startswith(b"data:"))
        data = b"\n".join(line.removeprefix(b" ") for line in lines)
        if data.startswith(b"[DONE]"):
            self.done = True
            self._ended = self._ended or self._spec.done_ends
        elif data and not self.done:
            self._read(data, is_complete=is_complete)

    def _read(self, data: bytes, *, in_one_piece: bool = False, is_complete: bool = True) -> None:
        said = None if holds_more_values(data, MOST_VALUES) else decoded_body(data)
        if isinstance(said, dict):
            if said.get("error") or object_of(said.get("response")).get("error") or said.get("type") == "error":
                self._fail(said)
            elif in_one_piece and not any(isinstance(held, dict | list) for held in self._at(said, self._spec.whole)):
                self._fail(None)
            else:
                self._take(said)
                self.done = self.done or in_one_piece
                self._ended = self._ended or in_one_piece
        elif is_complete:  # An incomplete last frame is ignored, because the answer may be complete without it.
            self._fail(None)

    def _fail(self, error: object) -> None:
        self._failed = self.done = True
        self.error, self.unreadable = error, error is None
        self.error_is_first = not self._begun

    @staticmethod
    def _at(said: Json, paths: Iterable[Path]) -> Iterator[Any]:
        return (value for path in paths for value in values_at(said, path))

    def _take(self, said: Json) -> None:
        spec = self._spec
        texts = [text for text in self._at(said, spec.texts) if isinstance(text, str)]
        if not (self._texts or texts):
            texts += [text for text in self._at(said, spec.late_texts) if isinstance(text, str)]
        self._texts += filter(None, texts)
        self.length += sum(map(len, texts))
        self._calls = self._calls or any(self._at(said, spec.calls))
        self._refused = self._refused or any(self._at(said, spec.refusals))
        if reason := next(filter(None, self._at(said, spec.reasons)), None):
            self._ended = True
            self._word = reason if isinstance(reason, str) and WORD.fullmatch(reason) else "other"
        usage, model, tier = usage_members(spec, said)
        self._usage |= usage  # If a stream reports usage twice, the second report counts.
        self._model, self._tier = model or self._model, tier or self._tier
        self._begun = self._begun or bool(usage or texts or self._ended or self._calls or self._refused)


def member_named(members: Iterable[str], refusal: bytes) -> str | None:
    """Return the first of these request members that a provider's error names. `refusal`: the body of the error."""
    return next((name for name in members if re.search(rf"(?<!\w){re.escape(name)}(?!\w)".encode(), refusal)), None)


class Manners(Struct, frozen=True):
    """Learnt quirks of a model at an upstream, for summary calls: the output cap's name, and members to leave out."""

    cap: str
    without: frozenset[str] = frozenset()


class SummaryDialect:
    """Writer of summary calls in one format. See `SummarySpec`."""

    def __init__(self, spec: FormatSpec, request: type[WireRequest]) -> None:
        """Steno replaces `/v1` in the path of `spec` by the path of the upstream's base URL."""
        self.spec, self._request = spec, request

    def reader(self) -> SummaryReader:
        return SummaryReader(self.spec)

    def cap(self, model: str) -> str:
        return self.spec.summary.caps[self.spec.summary.reasoning.search(model) is not None]

    def options(
        self, manners: Manners, model: str, most: int, allowance: int, parameters: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the members of a call that a provider may refuse: an output cap of `most` tokens (plus `allowance` for
        a model that reasons first), the operator's parameters, and the streaming options."""
        spec = self.spec.summary
        reasons = spec.reasoning.search(model) is not None
        bound = max(spec.least_output, most + (allowance if reasons else 0))
        wanted = {manners.cap: bound, **(spec.restrained(model) if reasons else {}), **parameters, **spec.always_sent}
        # Without a stream, leave out the stream options, too.
        left_out = {*manners.without, *(("stream_options",) if "stream" in manners.without else ())}
        return {name: value for name, value in wanted.items() if name not in left_out}

    def taught(self, manners: Manners, refusal: bytes, sent: Mapping[str, Any]) -> Manners | None:
        """Return the quirks for another try; None if the refusal names no option. `sent`: the refused options."""
        spec = self.spec.summary
        elsewhere = {name for name, pattern in spec.other_errors.items() if pattern.search(refusal)}
        meant = [name for name in spec.optional if name in sent and name not in elsewhere]
        also = (name for name, pattern in spec.unnamed_errors.items() if name in meant and pattern.search(refusal))
        if (refused := member_named(meant, refusal) or next(also, None)) is None:
            # If the cap is only too large, its other name would not help.
            if spec.caps[1].encode() in refusal and not _TOO_LARGE.search(refusal):
                cap = spec.caps[b"'%b'" % spec.caps[0].encode() in refusal]
                if cap != manners.cap:
                    return replace(manners, cap=cap)
            refused = member_named((name for name in sent if name not in spec.own_members), refusal)
        return replace(manners, without=manners.without | {refused}) if refused else None

    def quoting(self, request: SummaryRequest, model: str, options: Mapping[str, Any]) -> bytes:
        prompt = self.spec.summary.quoting(request.instructions, request.transcript)
        return msgspec.json.encode({**self._named(model), **prompt, **self._held(options)})

    def continuing(
        self,
        messages: Sequence[bytes],
        cached: Mapping[str, bytes],
        instructions: str,
        model: str,
        options: Mapping[str, Any],
    ) -> bytes:
        """Return a body that appends the instructions to the conversation, so that the provider can use its cache.
        `messages` and `cached` (see `WireRequest.cached`) contain raw JSON of this format."""
        spec = self.spec.summary
        members = {name: msgspec.Raw(raw) for name, raw in cached.items()}
        choices = {
            member: value
            for declaring, member, value in spec.forbidding
            if cached.get(declaring, b"null") not in (b"null", b"[]")
        }
        history = self._request.history_of((*messages, msgspec.json.encode(self.spec.user_message(instructions))))
        others = {**self._named(model), **members, **choices, **self._held(options)}
        return b"{%b,%b" % (history, msgspec.json.encode(others)[1:])

    def _named(self, model: str) -> dict[str, str]:
        return {} if self.spec.address else {"model": model}

    def _held(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        holder = self.spec.summary.options_member
        return {holder: options} if holder else options

    def target(self, model: str, asked: bytes = b"", query: bytes = b"") -> bytes:
        """Return path and query of a summary call. `asked` is the path of the client's request if the summary goes to
        the same provider. `query` may contain API keys."""
        spec, path = self.spec, self.spec.path
        if spec.address is not None:
            named = quote(model, safe="").encode()
            path = path.replace(b"{model}", named)
            if found := spec.address.match(asked):
                path = asked[: found.start("model")] + named + b":"
            path = path.rpartition(b":")[0] + b":" + spec.summary.streaming
        return path + (b"&" if b"?" in path else b"?") + query if query else path

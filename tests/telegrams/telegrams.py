"""Telegrams: an API that nobody has, to see what a format has to say of itself and whether nothing else has to change.

A log of telegrams is posted to `/v1/telegrams`. Each is from the `office`, which instructs, from the `sender`, from the
`clerk`, who answers and orders, or from the `depot`, which delivers any number of orders at once, by their numbers. A
stream has a member for each thing that is said: `open`, `word`, `order`, and `close`, which charges.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any, ClassVar

import msgspec

from app.core.history.blocks import is_programs
from app.core.history.messages import Kind, Media, Message, ToolCall
from app.core.history.own_words import told_in
from app.core.history.told import Told
from app.core.summary.gate import Ending
from app.core.summary.prompts import SummaryRequest
from app.core.tokens.declarations import Declarations
from app.core.view.view import Altered, Conversation, View
from app.wire.answers import AnswerEditor, Answers
from app.wire.format import WireFormat
from app.wire.media import pixels
from app.wire.members import RawObject, Unreadable
from app.wire.objects import decoded_object, spliced, text_at, without, written_alike
from app.wire.provider_errors import error_body
from app.wire.rendering import joined, placed
from app.wire.requests import elements_of, tool_of, unread
from app.wire.sse import event
from app.wire.streamed import read_whole, taken_apart
from app.wire.summaries import Collected, SummaryDialect
from app.wire.types import Draft, Headers, WireRequest
from app.wire.usage import Usage, says_window_full, text_of, usage_of

Json = Mapping[str, Any]

NAME = "telegrams"
PATH = b"/v1/telegrams"
KINDS = {"office": Kind.INSTRUCTIONS, "sender": Kind.USER, "clerk": Kind.ASSISTANT, "depot": Kind.RESULT}


class TelegramRequest(WireRequest, frozen=True):
    """A request. Its history is `log`, its tools are `gear`."""

    HISTORY = "log"
    OUTPUT_MEMBERS = ("most",)
    DECLARING_MEMBERS = ("gear",)
    TOOL_MEMBERS = ("gear",)
    CACHED_MEMBERS = ("gear",)

    @property
    def is_typical(self) -> bool:
        return "enclosure" not in self.source

    def declarations(self) -> Declarations:
        gear = elements_of(self.source, "gear")
        return Declarations(tuple(tool_of(each, "takes") for each, _ in gear), others=(*unread(self.source, ["gear"]),))


# Telegrams


def texts_of(telegram: Json) -> tuple[str, ...]:
    """What a telegram says: a text or several; the depot's with what it delivers."""
    if "deliveries" in telegram:
        return tuple(text_at(each, "text") for each in _objects(telegram["deliveries"]))
    said = telegram.get("text")
    return (said,) if isinstance(said, str) else tuple(said or ())


def _objects(held: object) -> list[dict[str, Any]]:
    return [each for each in held if isinstance(each, dict)] if isinstance(held, list) else []


def read_telegram(raw: bytes, ignore: Sequence[re.Pattern[str]] = ()) -> Draft:
    telegram = decoded_object(raw, "A telegram")
    if not (role := text_at(telegram, "from")):
        raise Unreadable("A telegram is from nobody.")
    kind, texts = KINDS.get(role, Kind.OTHER), texts_of(telegram)
    pictures = tuple(Media("image", len(url), "", *pixels(url)) for url in telegram.get("pictures") or ())
    if kind is Kind.USER and not pictures and is_programs(texts):
        kind = Kind.CLIENT
    orders, deliveries = _objects(telegram.get("orders")), _objects(telegram.get("deliveries"))
    read = Message(
        kind,
        role,
        texts,
        raw,
        b"",
        calls=tuple(ToolCall(str(o.get("no")), text_at(o, "what"), _written(o.get("with"))) for o in orders),
        answers=tuple(str(each.get("no")) for each in deliveries),
        media=pictures,
        told=told_in(texts) if kind is Kind.USER and not pictures else Told.NOT,
    )
    meant = {**telegram, "text": "".join(without(text, ignore) for text in texts)}
    return Draft(read, written_alike({name: said for name, said in meant.items() if said not in (None, "", [])}))


def _written(value: object) -> str:
    return msgspec.json.encode(value).decode()


def note(text: str | Sequence[str]) -> bytes:
    return msgspec.json.encode({"from": "sender", "text": text})


def _altered(raw: bytes, part: Altered) -> bytes:
    """A telegram with other texts, and with the orders that are left."""
    telegram = decoded_object(raw)
    replaced: dict[str, Any] = {}
    if part.texts != texts_of(telegram):
        if "deliveries" in telegram:
            held = zip(_objects(telegram["deliveries"]), part.texts, strict=True)
            replaced["deliveries"] = [{**each, "text": text} for each, text in held]
        else:
            replaced["text"] = part.texts[0] if isinstance(telegram["text"], str) else part.texts
    if part.calls:
        orders = _objects(telegram["orders"])
        replaced["orders"] = [{**orders[place], "with": msgspec.Raw(said.encode())} for place, said in part.calls]
    encoded = {name: msgspec.json.encode(value) for name, value in replaced.items()}
    return spliced(raw, encoded, ("orders",) if part.calls == () else ())


def _joined(one: bytes, other: bytes, keeps_first: bool) -> bytes:
    texts = [*texts_of(decoded_object(one)), *texts_of(decoded_object(other))]
    return spliced(one if keeps_first else other, {"text": msgspec.json.encode(texts)})


# Answers


def charged(charge: object) -> dict[str, Any] | None:
    """A charge in the words that Steno reads."""
    if not isinstance(charge, dict):
        return None
    return {"input_tokens": charge.get("read"), "output_tokens": charge.get("wrote")}


@dataclass(slots=True)
class TelegramEditor(AnswerEditor):
    NOTABLE = re.compile(rb'"(?:close|error)"')
    CONTENT = re.compile(rb'"word"\s*+:\s*+"[^"]')
    TEXT = re.compile(rb'"word"\s*+:\s*+"((?:[^"\\]++|\\.)*+)"', re.DOTALL)

    @property
    def usage(self) -> Usage | None:
        return usage_of(self.usage_said, self.model)

    def _read_whole(self, answer: RawObject) -> None:
        self.usage_said, self.model = charged(answer.value("charge")), text_of(answer, "model")
        self.window_full = says_window_full(answer.value("end"))

    def _edited(self, said: RawObject) -> bytes:
        if "error" in said:
            self._fail(said.text)
            return said.text
        members = b"" if self.begun else self.first_members
        self.begun = True
        if (closed := said.raw("close")) is not None:
            self.ended, members = True, self._last_members()
            self._read_whole(RawObject(closed))
        return said.with_status(members) if members else said.text


class TelegramAnswers(Answers):
    noun = "telegram"
    editing = TelegramEditor

    def frames_of(self, request: WireRequest, headers: Headers, body: bytes) -> Iterator[bytes]:  # noqa: ARG002 - all streams are alike
        with taken_apart(self.noun):
            whole = read_whole(body)
            if not whole.value("error") and "text" not in whole:
                raise Unreadable("It has no text.")
        if whole.value("error"):
            yield self.failed(error_body(200, headers, body, time()))
            return
        said = {name: whole.raw(name) or b"null" for name in ("id", "model", "text", "charge", "end")}
        yield event(b'{"open":{"id":%b,"model":%b}}' % (said["id"], said["model"]))
        yield event(b'{"word":%b}' % said["text"])
        for order in whole.elements("orders") if "orders" in whole else ():
            yield event(b'{"order":%b}' % order)
        yield event(b'{"close":{"end":%b,"charge":%b,"model":%b}}' % (said["end"], said["charge"], said["model"]))


# Summaries


class _Telegram(Collected):
    endings: ClassVar[Mapping[str, Ending]] = {
        "sent": Ending.FINISHED,
        "paper_out": Ending.CUT_OFF,
        "declined": Ending.REFUSED,
    }
    cut_off = "paper_out"

    def take(self, said: Json) -> None:
        self.begun = self.begun or not said.keys().isdisjoint({"word", "order", "close"})
        self._add(text_at(said, "word"))
        self._calls = self._calls or "order" in said
        if isinstance(closed := said.get("close"), dict):
            self._take_end(closed)

    def take_whole(self, said: Json) -> bool:
        self._add(text_at(said, "text"))
        self._calls = bool(said.get("orders"))
        self._take_end(said)
        return "text" in said

    def _take_end(self, said: Json) -> None:
        self._take_reason(said.get("end"))
        self._take_names(said)
        self._usage = charged(said.get("charge"))


class TelegramSummaries(SummaryDialect):
    name = NAME
    target = PATH
    own_members = frozenset({"model", "log", "most", "stream", "gear"})
    optional = ("stream",)
    caps = ("most", "most")
    collected = _Telegram

    def quoting(self, request: SummaryRequest, model: str, options: Json) -> bytes:
        log = [{"from": "office", "text": request.instructions}, {"from": "sender", "text": request.transcript}]
        return msgspec.json.encode({"model": model, "log": log, **options})

    def continuing(
        self, messages: Sequence[bytes], cached: Mapping[str, bytes], instructions: str, model: str, options: Json
    ) -> bytes:
        log = msgspec.Raw(b"[%b]" % b",".join((*messages, note(instructions))))
        gear = {name: msgspec.Raw(raw) for name, raw in cached.items()}
        return msgspec.json.encode({"model": model, "log": log, **gear, **options})


class Telegrams(WireFormat):
    name = NAME
    path = PATH
    request = TelegramRequest
    answers = TelegramAnswers()
    summaries = TelegramSummaries()
    message = staticmethod(read_telegram)

    def render(self, conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
        payload = placed(conversation, view, note, _altered)
        return joined(payload, _joined, "sender") if alternate else [each.raw for each in payload]


TELEGRAMS: WireFormat = Telegrams()

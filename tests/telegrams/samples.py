"""Samples of telegrams, for the suite that every format is tried with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.core.history.messages import Kind
from app.core.summary.gate import Ending, SummaryAnswer
from app.core.tokens.usage import Tokens
from tests.conformance.samples import Samples

LOG = (
    rb'{"from":"office","text":"Be kind. \u00e9 \/"}',
    rb'{"text":["Find both."],"from":"sender","x_unknown":{"b":[],"a":1e3}}',
    b'{"from":"clerk","text":"","orders":[{"no":1,"what":"find","with":{"a": 1}} ,\t{"no":2,"what":"look","with":{}}]}',
    b'{"from":"depot" , "deliveries":[{"no":2,"text":"nothing"},{"no":1,"text":"%b"}]}' % (b"found it here; " * 40),
    b'{"from":"clerk","text":"One of them."}',
    b'{"from":"sender","text":"And the other?","seal":"ann"}',
    b'{"from":"clerk","text":"It is gone."}',
    b'{"from":"sender","text":"Since when?"}',
)
_BODY = (
    b'{"paper": 1.0,"gear":[ {"name":"find" ,"takes":{"type":"object"}}],\n "log" : [ %b ], "model": "morse-1",'
    b' "stream":true%%b\t}\r\n' % b" ,\n ".join(LOG)
)
_OWN = b', "context": {"pin": [1], "instructions": "dates"}, "conversation_id":"c"'


def _text_of(raw: bytes) -> str:
    telegram = json.loads(raw)
    held = [each["text"] for each in telegram["deliveries"]] if "deliveries" in telegram else telegram["text"]
    return held if isinstance(held, str) else "\n".join(held)


def frame(**said: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(said).encode()


def close(end: str = "sent", **charge: Any) -> bytes:
    return frame(close={"end": end, "charge": charge or None})


def _told_in(sent: bytes) -> Mapping[str, object]:
    told: Mapping[str, object] = json.loads(sent.removeprefix(b"data: ")) if sent.startswith(b"data: ") else {}
    return told


def _check_stream(frames: Sequence[bytes]) -> None:
    """It opens once and first, and an error or a close is its last."""
    said = [told for each in frames if (told := _told_in(each))]
    assert ["open" in told for told in said] == [True] + [False] * (len(said) - 1)
    assert not {"close", "error"}.isdisjoint(said[-1])


def _whole(text: str, end: str = "sent", **members: Any) -> bytes:
    return json.dumps({"id": "t", "model": "morse-1", "text": text, "end": end, **members}).encode()


BEGINNING = (
    b": their comment\n\n",
    frame(open={"id": "t", "model": "morse-1-b"}, x_unknown=1.5),
    frame(word="The note "),
    frame(word="is: 42."),
)
CLOSED = close(read=70, wrote=9)
TOO_LONG = {"message": "This model's maximum context length is 8192 tokens; your log has 9000 tokens.", "code": "long"}
OVERFLOW = frame(error=TOO_LONG)
OTHER = {"error": {"message": "No such office.", "code": "no_office"}}

SAMPLES = Samples(
    request=_BODY % b"",
    with_own_members=_BODY % _OWN,
    unreadable=(b'{"model":"m"}', b'{"log":[]}', b'{"model":"m","log":{}}', b"[]", b"<p>", b""),
    model="morse-1",
    kinds=(
        *(Kind.INSTRUCTIONS, Kind.USER, Kind.ASSISTANT, Kind.RESULT),
        *(Kind.ASSISTANT, Kind.USER, Kind.ASSISTANT, Kind.USER),
    ),
    instructions=1,
    cuts=(0, 1, 3, 4, 5, 6),
    result=2,
    others=(
        (b'{"from":"messenger","text":"a"}', Kind.OTHER),
        (b'{"from":"sender","text":"<system-reminder>a</system-reminder>"}', Kind.CLIENT),
    ),
    shown=(),
    alike=((b'{"from":"sender","text":"a"}', b'{"text":["a"],"from":"sender"}'),),
    unlike=(
        (b'{"from":"sender","text":"a"}', b'{"from":"sender","text":"b"}'),
        (b'{"from":"sender","text":"a"}', b'{"from":"clerk","text":"a"}'),
    ),
    text_of=_text_of,
    stream=(*BEGINNING, CLOSED),
    unasked=(*BEGINNING, CLOSED),
    tells_usage=True,
    ends_at=4,
    stream_usage=Tokens(prompt=70, completion=9),
    whole=(
        b'{"id":"t", "x_unknown":1.50,"model":"morse-1","text":"\\u00e9","end":"sent",'
        b'"charge":{"read":12,"wrote":3} }\n'
    ),
    whole_usage=Tokens(prompt=12, completion=3),
    full_stream=(*BEGINNING, close("context_full")),
    full_whole=_whole("t", "context_full"),
    check_stream=_check_stream,
    told_in=_told_in,
    overflow=(400, json.dumps({"error": TOO_LONG}).encode()),
    overflow_frame=OVERFLOW,
    refusal=(401, json.dumps(OTHER).encode(), "No such office."),
    answers=(
        (b"".join((*BEGINNING, CLOSED)), SummaryAnswer("The note is: 42.", usage=Tokens(70, 9))),
        (frame(word="t") + close("paper_out"), SummaryAnswer("t", Ending.CUT_OFF, "paper_out")),
        (frame(order={}) + close("orders"), SummaryAnswer("", Ending.CALLED, "orders")),
        (_whole("t", charge={"read": 5}), SummaryAnswer("t", usage=Tokens(5))),
        (_whole("t", "declined"), SummaryAnswer("t", Ending.REFUSED, "declined")),
        (_whole("t", "odd"), SummaryAnswer("t", Ending.OTHER, "odd")),
    ),
    no_answers=(
        b"",
        b"<p>",
        b"[]",
        b"{}",
        b"".join(BEGINNING),
        b"".join((*BEGINNING, OVERFLOW)),
        json.dumps(OTHER).encode(),
    ),
    lessons=(("m", json.dumps({"error": {"message": "temperature must be left out"}}).encode(), "temperature", ""),),
    nothing_taught=(b"", json.dumps(OTHER).encode()),
)

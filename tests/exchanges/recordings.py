"""Recordings: whole payloads and what Steno added to answers, written so that a person can read the difference.

What came from the client stands as a reference: `=3` is element 3 of its history, `=3..9` are seven of them. `^2:1` is
element 1 of the second recorded payload of the variant. Ids, times and ports are placeholders.
"""

from __future__ import annotations

import difflib
import fcntl
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.exchanges.answers import body_in, headers_in
from tests.exchanges.cases import FORMATS, MODES, Variant
from tests.exchanges.histories import ABROAD, FILLER, MEMBER, PATHS, Json, texts_in
from tests.exchanges.matching import member
from tests.exchanges.playing import (
    Answer,
    Exchange,
    context_of,
    data_in,
    frames_in,
    is_same_answer,
    is_stream,
    own_members,
    without_own_data,
)
from tests.exchanges.provider import Call

Texts = Sequence[tuple[str, str]]
"""References, and the client's texts that they stand for."""

FOLDER = Path(__file__).parent / "recorded"
WIDTH = 220
"""Columns in which a JSON value stands on one line."""
DEEPEST = 3
"""Columns of indentation at most: deeper ones took a fifth of the files."""
SHORTEST_FILLER = 60
SHORTEST_TEXT = 40
"""Characters from which a text of the client's is referred to inside another."""
LONGEST_BODY = 4_000
SHORTEST_SHARED = 60
MOST_ALIKE = 3
"""Lines in a row that quote the client's messages one after the other, from which they are one."""
USUAL_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "steno-hops", "connection", "date", "server",
                           "x-context-request-id", "x-accel-buffering", "cache-control"})  # fmt: skip
CHANCE = {
    "conversation": re.compile(r"\bconv_[0-9a-f]{24}\b"),
    "summary": re.compile(r"\bchk_[0-9a-f]{32}\b"),
    "compaction": re.compile(r"\bcmp_[0-9a-f]{24}\b"),
    "request": re.compile(r"\breq_[0-9a-f]{24}\b"),
    "usage": re.compile(r"\buse_[0-9a-f]{24}\b"),
    "completion": re.compile(r"\bchatcmpl-[0-9a-f]{24}\b"),
    "calibration": re.compile(r"\bcal_[0-9a-f]{32}\b"),
    "hash": re.compile(r"\b[0-9a-f]{32}\b"),
    "mark": re.compile(r"\b(?=\w*\d)[0-9a-f]{8}\b(?!-)"),
}
CLOCK = (
    re.compile(r"(?<=\"created\":)(1[7-9]|[2-9]\d)\d{8}\b"),
    re.compile(r"(?<=[:,\[ ])-?(1[7-9]|[2-9]\d)\d{11}\b"),
    re.compile(r"\b20(2[5-9]|[3-9]\d)-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)"),
)

SECONDS = re.compile(r"(?<=seconds\":)\d+\.\d+")


@dataclass(slots=True)
class Placeholders:
    """Stand-ins for what differs from run to run, numbered by their first appearance in a variant."""

    variant: Variant
    port: str
    _numbers: dict[str, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def replaced(self, text: str) -> str:
        text = text.replace(f"sk-{self.variant.slug}-", "sk-").replace(f"-{self.variant.slug}", "")
        text = text.replace(self.port, "<provider>")
        for kind, pattern in CHANCE.items():
            text = pattern.sub(lambda found, kind=kind: self._number(kind, found[0]), text)  # type: ignore[misc]
        for pattern in CLOCK:
            text = pattern.sub("<time>", text)
        return SECONDS.sub("<time>", text)

    def value(self, value: Any) -> Any:
        return json.loads(_quoted_times(self.replaced(json.dumps(value, ensure_ascii=False, separators=(",", ":")))))

    def _number(self, kind: str, found: str) -> str:
        if found not in self._numbers:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._numbers[found] = f"<{kind} {self._counts[kind]}>"
        return self._numbers[found]


def _quoted_times(text: str) -> str:
    """Placeholders in place of numbers become strings."""
    return re.sub(r"(?<=[:\[,]) ?<time>(?=[,}\]])", '"<time>"', text)


@dataclass(slots=True)
class Recorder:
    """Makes the recording of one variant."""

    placeholders: Placeholders
    _payloads: int = 0
    _known: dict[str, str] = field(default_factory=dict)
    """References by the elements that stand in full."""

    def record(self, exchanges: Sequence[Exchange]) -> Json:
        payloads = {str(one.number): [self._call(one, call) for call in one.calls] for one in exchanges if one.calls}
        answers = {str(one.number): self._answer(one) for one in exchanges}
        return {"payloads": payloads, "answers": answers}

    def _call(self, exchange: Exchange, call: Call) -> Json:
        self._payloads += 1
        made: Json = {"summary call": True} if call.is_summary else {}
        target = call.received.target.decode("latin-1")
        if (
            target.encode() != exchange.sent.split(b" ", 2)[1]
            if exchange.format == "gemini"
            else target != PATHS.get(exchange.format or "")
        ):
            made["path"] = self.placeholders.replaced(target)
        if headers := self._headers_up(exchange, call):
            made["headers"] = headers
        body = exchange.sent.partition(b"\r\n\r\n")[2]
        if call.received.body == body:
            return {**made, "body": "="} if body else made
        theirs = _object(call.received.body)
        if theirs is None or call.format is None:
            return {**made, "body": self._text(call.received.body.decode("utf-8", "replace"))}
        texts = _client_texts(exchange)
        if members := self._members(exchange.body or {}, theirs, MEMBER[call.format], texts, call.is_summary):
            made["members"] = members
        return {**made, "history": self._history(exchange, call, texts)} if call.elements else made

    def _headers_up(self, exchange: Exchange, call: Call) -> Json:
        """Headers that the provider got and the client did not send, and the client's that it did not get (null)."""
        sent = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in call.received.headers}
        lines = exchange.sent.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")[1:]
        given = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        changed: Json = {name: value for name, value in sent.items() if given.get(name) != value}
        changed |= dict.fromkeys(name for name in given if name not in sent)
        usual = {**dict.fromkeys(USUAL_HEADERS), "accept-encoding": "identity", "accept": "application/json"}
        kept = {name: value for name, value in changed.items() if name not in usual or usual[name] not in (None, value)}
        return {name: value and self.placeholders.replaced(value) for name, value in sorted(kept.items())}

    def _members(self, given: Json, sent: Json, history: str, texts: Texts, is_summary: bool) -> Json:
        """Members that the client did not send, and the client's that were left out (null)."""
        if is_summary:
            given = {name: value for name, value in given.items() if not name.startswith("stream")}
        changed = {name: value for name, value in sent.items() if given.get(name, ...) != value}
        if isinstance(sent.get(history), list):
            changed.pop(history, None)
        left_out = [] if is_summary else [name for name in given if name not in sent]
        return {name: self._value(value, texts) for name, value in changed.items()} | dict.fromkeys(left_out)

    def _history(self, exchange: Exchange, call: Call, texts: Texts) -> list[Any]:
        places = {element: at for at, element in reversed(list(enumerate(exchange.elements)))}
        made: list[Any] = []
        for at, element in enumerate(call.elements):
            if element in places:
                place = places[element]
                if made and isinstance(made[-1], str) and (run := re.fullmatch(r"=(\d+)(?:\.\.(\d+))?", made[-1])):
                    last = int(run[2] or run[1])
                    if last + 1 < len(exchange.elements) and exchange.elements[last + 1] == element:
                        made[-1] = f"={run[1]}..{last + 1}"
                        continue
                made.append(f"={place}")
                continue
            made.append(self._element(json.loads(element), at, texts))
        return made

    def _element(self, element: Any, at: int, texts: Texts) -> Any:
        value = self._value(element, texts)
        written = json.dumps(value, ensure_ascii=False, sort_keys=True)
        if written in self._known:
            return self._known[written]
        self._known[written] = f"^{self._payloads}:{at}"
        return value

    def _value(self, value: Any, texts: Texts = ()) -> Any:
        """A JSON value with references in its texts; a text of several lines is a list of lines."""
        match value:
            case str():
                lines = self._text(value, texts).split("\n")
                return lines[0] if len(lines) == 1 else {"lines": _without_runs(lines)}
            case dict():
                return {key: self._value(inner, texts) for key, inner in value.items()}
            case list():
                return [self._value(inner, texts) for inner in value]
        return value

    def _text(self, text: str, texts: Texts = ()) -> str:
        for reference, own in texts:
            if own in text:
                text = text.replace(own, reference)
        return self.placeholders.replaced(without_filler(text))

    def _answer(self, exchange: Exchange) -> Json:
        answer, payload = exchange.answer, exchange.payload
        made: Json = {"status": answer.status} if answer.status != 200 else {}
        if "metrics" in exchange.seen:
            return made  # Durations among them differ each time.
        if answer.is_cut:
            made["cut"] = True
        theirs = headers_in(payload.steps) if payload else []
        headers = {
            name: self.placeholders.replaced(value)
            for name, value in answer.headers
            if name not in USUAL_HEADERS and (name, value) not in theirs
        }
        if told := _told_twice(answer, headers):
            made["headers as in context"] = told
            headers = {name: value for name, value in headers.items() if name not in TOLD}
        if headers:
            made["headers"] = headers
        if payload is not None and is_same_answer(answer, payload, exchange.body):
            added = self._added(answer)
            return {**made, "added": added} if added else {**made, "body": "the provider's"}
        return {**made, "body": self._own_body(answer)} if answer.body else made

    def _added(self, answer: Answer) -> Any:
        """What Steno added to the provider's answer: members, or frames and members of frames by their number."""
        if not is_stream(answer):
            return self.placeholders.value(own_members(answer.body))
        added: Json = {}
        for number, frame in enumerate(frames_in(answer.body)):
            if without_own_data(frame) is None:
                added[str(number)] = self._frame(frame)
            elif told := own_members(data_in(frame)):
                added[str(number)] = {"members": self.placeholders.value(told)}
        return added

    def _frame(self, frame: bytes) -> Any:
        data = _object(data_in(frame))
        name = frame.partition(b"\n")[0].decode()
        if data is None:
            head, brace, written = name.partition(" {")
            inner = _object((brace.strip() + written).encode())
            return [head, self.placeholders.value(inner)] if inner is not None else self.placeholders.replaced(name)
        return self.placeholders.value(data)

    def _own_body(self, answer: Answer) -> Any:
        if is_stream(answer):
            return [self.placeholders.replaced(frame.decode("utf-8", "replace")) for frame in frames_in(answer.body)]
        value = answer.json
        if value is None:
            text = self._text(answer.body.decode("utf-8", "replace"))
            return text if len(text) <= LONGEST_BODY else f"{text[:200]}... ({len(text)} characters)"
        return self.placeholders.value(self._value(value))


TOLD = {
    "x-context-status": "status",
    "x-context-conversation-id": "conversation_id",
    "x-context-tokens-before": "tokens.estimated",
    "x-context-tokens-after": "tokens.forwarded",
    "x-context-window": "tokens.window",
    "x-context-actions": "actions",
    "x-context-reason": "reason",
}
"""Headers that say what stands in the member `context`, too."""


def _told_twice(answer: Answer, headers: Mapping[str, str]) -> bool:
    """True if every header of these agrees with the answer's `context`."""
    context = context_of(answer)
    if not isinstance(context, dict):
        return False
    for name, path in TOLD.items():
        value = member(context, path)
        said = ", ".join(value) if isinstance(value, list) else value
        if (answer.header(name) if name in headers else None) != (None if said in (None, "", ...) else str(said)):
            return False
    return True


def _object(body: bytes) -> Json | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _without_runs(lines: list[str]) -> list[str]:
    """Lines in which messages of the client that are quoted one after the other, each under a heading, are one."""
    made: list[str] = []
    at = 0
    while at < len(lines):
        run = _run(lines, at)
        if run > MOST_ALIKE:
            first, last = lines[at + 1], lines[at + 2 * run - 1]
            made += [lines[at], f"{first} .. {last}, each under such a heading"]
            at += 2 * run
        else:
            made.append(lines[at])
            at += 1
    return made


def _run(lines: list[str], at: int) -> int:
    """How many pairs of a heading and a whole message of the client, the next one each time, begin here."""
    number, first, heading = 0, 0, ""
    while at + 1 < len(lines) and (found := re.fullmatch(r"⟨=(\d+)⟩", lines[at + 1])):
        shape = re.sub(r"\d+|\b(user|assistant|tool|system|developer)\b", "", lines[at])
        if number == 0:
            heading, first = shape, int(found[1])
        elif shape != heading or int(found[1]) != first + number:
            break
        number, at = number + 1, at + 2
    return number


def _client_texts(exchange: Exchange) -> Texts:
    """References and texts of the client's messages, the longest first."""
    found: dict[str, str] = {}
    for at, element in enumerate(exchange.elements):
        for text in texts_in(json.loads(element)):
            if len(text) >= SHORTEST_TEXT:
                found.setdefault(text, f"⟨={at}⟩")
                found.setdefault(json.dumps(text)[1:-1], f"⟨={at}⟩")
    return sorted(((reference, text) for text, reference in found.items()), key=lambda pair: -len(pair[1]))


_ENDLESS = {filler: " ".join([filler] * 400) for filler in (FILLER, ABROAD)}


def without_filler(text: str) -> str:
    """A text with each long run of filler replaced by its length."""
    for filler, endless in _ENDLESS.items():
        start, pieces, at = filler[:24], [], 0
        while (found := text.find(start, at)) >= 0:
            length = _common(text[found : found + len(endless)], endless)
            cut = length >= SHORTEST_FILLER
            pieces.append(text[at:found] + (f"⟨{length} of filler⟩" if cut else text[found : found + length]))
            at = found + length
        text = "".join(pieces) + text[at:]
    return text


def _common(one: str, other: str) -> int:
    return next(
        (at for at, (here, there) in enumerate(zip(one, other, strict=False)) if here != there),
        min(len(one), len(other)),
    )


def file_of(variant: Variant) -> tuple[Path, str]:
    """File of a variant's recording, and the case's name in it."""
    file, _, case = variant.name.partition("/")
    return FOLDER / variant.topic / f"{file}.json", case or file


_ORDER = [f"{format_}-{mode}" for format_ in FORMATS for mode in MODES]


def key_of(variant: Variant) -> str:
    """Its name in the file; a recording is the same on every database."""
    return f"{variant.format}-{variant.mode}"


def read(variant: Variant) -> Json | None:
    path, case = file_of(variant)
    if not path.exists():
        return None
    found: Json | None = _resolved(json.loads(path.read_text("utf-8"))).get(case, {}).get(key_of(variant))
    return found


def write(variant: Variant, recording: Json) -> None:
    """Put a recording into its file, which other processes may write at the same time."""
    path, case = file_of(variant)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        held = _resolved(json.loads(path.read_text("utf-8"))) if path.exists() else {}
        held.setdefault(case, {})[key_of(variant)] = recording
        _replace(path, held)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing recordings in this folder."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(path: Path, held: Json) -> None:
    ordered = {name: dict(sorted(held[name].items(), key=lambda pair: _ORDER.index(pair[0]))) for name in sorted(held)}
    made = path.with_suffix(".new")
    made.write_text(_written(_shared(ordered)), "utf-8")
    made.replace(path)  # Other processes read without the lock.


def without_case(variants: Iterable[Variant], *, removed: bool) -> list[str]:
    """Names of the recordings of which there is no case any more. `removed`: they are taken out."""
    known: dict[Path, set[tuple[str, str]]] = {}
    for variant in variants:
        path, case = file_of(variant)
        if variant.is_recorded:
            known.setdefault(path, set()).add((case, key_of(variant)))
    found = []
    for path in sorted(FOLDER.rglob("*.json")):
        with _locked(path.parent):
            held = _resolved(json.loads(path.read_text("utf-8")))
            names = known.get(path, set())
            stale = [(case, key) for case, keys in held.items() for key in keys if (case, key) not in names]
            found += [f"{path.parent.name}/{path.stem}/{case}-{key}" for case, key in stale]
            if stale and removed:
                for case, key in stale:
                    del held[case][key]
                kept = {case: keys for case, keys in held.items() if keys}
                _replace(path, kept) if kept else path.unlink()
    return found


def difference(recorded: Json | None, played: Json) -> str:
    """A unified diff of two recordings."""
    before = [] if recorded is None else _written(recorded).splitlines()
    lines = difflib.unified_diff(before, _written(played).splitlines(), "recorded", "played", lineterm="", n=4)
    return "\n".join(lines)


def _shared(held: Json) -> Json:
    """Calls and answers that are those of another variant of the case, by its name."""
    for variants in held.values():
        whole = {name: json.loads(json.dumps(recording)) for name, recording in variants.items()}
        for name, recording in variants.items():
            for part, number, at in _places(recording):
                own = _at(recording, part, number, at)
                others = itertools.takewhile(lambda other, name=name: other != name, whole)  # type: ignore[misc]
                same = (other for other in others if _at(whole[other], part, number, at) == own)
                if len(json.dumps(own)) > SHORTEST_SHARED and (other := next(same, None)):
                    _set(recording, part, number, at, f"as in {other}")
    return held


def _resolved(held: Json) -> Json:
    for variants in held.values():
        for recording in variants.values():
            for part in [part for part, calls in recording.items() if isinstance(calls, str)]:
                recording[part] = variants[recording[part].removeprefix("as in ")][part]
            for part, number, at in _places(recording):
                own = _at(recording, part, number, at)
                if isinstance(own, str):
                    _set(recording, part, number, at, _at(variants[own.removeprefix("as in ")], part, number, at))
    return held


def _places(recording: Json) -> list[tuple[str, str, int | None]]:
    """Part, number of the request, and place of each call and answer of a recording."""
    calls = [("payloads", number, at) for number, calls in recording["payloads"].items() for at in range(len(calls))]
    return [*calls, *(("answers", number, None) for number in recording["answers"])]


def _at(recording: Json, part: str, number: str, at: int | None) -> Any:
    found = recording[part].get(number)
    return found if at is None or found is None or at >= len(found) else found[at]


def _set(recording: Json, part: str, number: str, at: int | None, value: Any) -> None:
    if at is None:
        recording[part][number] = value
    else:
        recording[part][number][at] = value


def _written(value: Any) -> str:
    return "".join(_lines(value, 0)) + "\n"


def _lines(value: Any, depth: int) -> Iterator[str]:
    """JSON with each value that fits on one line."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + depth <= WIDTH or not isinstance(value, dict | list) or not value:
        yield flat
        return
    pairs = value.items() if isinstance(value, dict) else ((None, one) for one in value)
    yield "{" if isinstance(value, dict) else "["
    for number, (key, inner) in enumerate(pairs):
        yield ("," if number else "") + "\n" + " " * min(depth + 1, DEEPEST)
        if key is not None:
            yield json.dumps(key, ensure_ascii=False) + ": "
        yield from _lines(inner, depth + 1)
    yield "\n" + " " * min(depth, DEEPEST) + ("}" if isinstance(value, dict) else "]")


__all__ = ["Placeholders", "Recorder", "body_in", "difference", "file_of", "read", "without_case", "write"]

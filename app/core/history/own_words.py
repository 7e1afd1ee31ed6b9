"""Own words: which of the words in a user's message its sender wrote himself.

What a tool, a document or a mail says is somebody else's, whatever role carries it. Whoever writes those can write
anything into them: the end of a fence or a tag, the tag that a client puts around what its user typed, the words that
announce a result. But what announces them stands before them, where they do not reach. So, in a message,

- what is announced goes on to the end of the message, over all of its parts (`passed_on` lists the words). One thing
  alone counts behind that: the part in which Cline and Roo give the user's words in place of a result (`_feedback`);
- what stands between the first fence and the last one is nobody's own, nor what stands between the first tag of a name
  and the last of that name. Words between two pasted documents are lost by that; words out of a document are never
  taken for the sender's;
- where most of the user's messages are results, what stands before a result in its message counts only in a part that
  begins with one of the tags that clients put around what was typed.

A message is judged by itself and by what stands before it, so in a history that has grown the same is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from msgspec import Struct

from app.core.history import passed_on
from app.core.history.blocks import typed_in, without_blocks_in
from app.core.history.messages import Kind, Message
from app.core.history.passed_on import (
    ANSWER_TAG,
    ASKING_TOOLS,
    CLIENT_TAGS,
    DENIED,
    OWN_TAGS,
    RESULT_TAGS,
    STEMS,
    WRITING_TOOLS,
)
from app.core.history.told import Told

LONGEST_MESSAGE = 16_384
"""Characters. Of what is longer the beginning and the end are read, half of these each: what stands between was hardly
typed. Texts of one message share them."""
MOST_TEXTS = 64
"""Most texts of one message that are read; of more, the first and the last."""
LOOKED_AT = 2_000
"""Characters at the beginning and at the end of a message that say whether it is a result."""
LONGEST_HEADING = 500
"""Characters at the end of a line that are read as a heading."""

GAP = "\0"
"""Sign in place of what is not read of a long text."""
_HIDDEN = "\ue000"
"""Sign in place of each character that is not the sender's, so that all places stay the same."""

Span = tuple[int, int]
"""Start and stop, in characters."""

_TAG = re.compile(r"<(/?)([A-Za-z][\w.:-]{0,63})(?:\s[^<>]{0,1000})?(?<!/)>")
_ALONE = re.compile(r"^[ \t]*(?:</?[A-Za-z][^<>\n]{0,1000}>)[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(?:(?:[-*+>]|\d{1,2}[.)])[ \t]*)?(?:```[^`\n]*|~~~[^\n]*)$", re.MULTILINE)
_RECORD = re.compile(r"\s*(?:\{.*\}|\[.*\])\s*", re.DOTALL)
_QUOTED_LINE = re.compile(
    r"^(?:[ \t]*[>|]|(?: {4,}|\t+)(?![-*•–\d \t])|(?i:" + passed_on.CLIENT_LINES + r"))[^\n]*$", re.MULTILINE
)
_CONTINUED = re.compile(rf"\s*{passed_on.CONTINUED}", re.IGNORECASE)
_HEADING_END = re.compile(r"[:：][*_]{0,2}[ \t]*\n")
_LINE_ENDS = str.maketrans(dict.fromkeys("\r\v\f\x85\u2028\u2029", "\n"))
_IN_LINES = re.compile(r"[^\n]")
_SHOWN = re.compile(f"[^{_HIDDEN}]+")

_DECORATION = r"^[ \t]*+(?:[^\w\s]{1,8}[ \t]{0,4}){0,3}"
"""Signs before the first word of a line: those of a heading or a list, brackets, a picture."""


def _line_with(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile(f"{_DECORATION}(?:{'|'.join(patterns)})", re.MULTILINE | re.IGNORECASE)


_RESULT = _line_with(pattern for patterns in passed_on.RESULTS.values() for pattern in patterns)
_ASKS = ("?", "？")
_UNMISTAKABLE = re.compile("|".join(passed_on.UNMISTAKABLE), re.IGNORECASE)
_RESULT_END = _line_with(passed_on.RESULT_ENDS)
_DOCUMENT = _line_with(pattern for patterns in passed_on.DOCUMENTS.values() for pattern in patterns)
_NAMES_DOCUMENT = re.compile(passed_on.HEADING_WORDS, re.IGNORECASE)
_NAMES_RULE = re.compile(passed_on.RULE_WORDS, re.IGNORECASE)
_NOTE = _line_with(passed_on.NOTES)
_OWN_TAG = rf"(?:{'|'.join(sorted(OWN_TAGS))})"
_OWN_TAGS = re.compile(rf"<(/?){_OWN_TAG}>", re.IGNORECASE)
_OWN_EDGE = re.compile(rf"^[ \t]*<{_OWN_TAG}>|</{_OWN_TAG}>[ \t]*$", re.MULTILINE | re.IGNORECASE)
_BEFORE_OWN = rf"(?:{'|'.join(passed_on.OWN_SENTENCES)})"
_BEFORE_OWN_TAG = re.compile(rf"^{_BEFORE_OWN}\s*\n(?=<{_OWN_TAG}>)", re.MULTILINE | re.IGNORECASE)
_OWN_BEGINNING = re.compile(rf"\s*(?:{_BEFORE_OWN}\s*)?<{_OWN_TAG}>", re.IGNORECASE)
_OWN_PART = re.compile(
    rf"\s*(?P<before>{_BEFORE_OWN}\s*)?<(?P<tag>{_OWN_TAG}|{ANSWER_TAG})>(?P<words>.*)</(?P=tag)>\s*",
    re.DOTALL | re.IGNORECASE,
)
_CALLED = re.compile(r"\s*\[(?P<tool>\w{2,64})(?: for .*)?\][ \t]*Result:\s*", re.DOTALL)
"""A whole part of Cline's or Roo's: the next one is the result."""


class _Read(Struct, frozen=True):
    """A message's texts as one, with a line end between each two, as far as they are read."""

    text: str
    lines: str
    """Text with each kind of line end as one."""
    parts: tuple[Span, ...]
    """The texts that say anything."""


@dataclass(slots=True)
class _Tagged:
    """Text between the tags of a name, as far as it is read."""

    start: int
    part: int
    """Number of the latest part with one of the tags."""
    end: int = -1
    depth: int = 0
    """Tags that are open."""


def own_words(messages: Sequence[Message], start: int = 0, stop: int | None = None) -> Iterator[tuple[int, list[str]]]:
    """The user's messages from `start` up to `stop`: the index of each, and the pieces of it that he wrote himself.

    What comes before `start` says how the client writes results, and whether it announced what comes now.
    """
    users = results = 0
    is_announced = False
    for index, message in enumerate(messages[:stop]):
        if message.kind is not Kind.USER and not message.is_told:
            is_announced = False
            continue
        texts = message.own_texts
        if index >= start:
            yield index, [] if is_announced else words_of(texts, 2 * results > max(users - 1, 1))
        users += 1
        results += is_result(texts)
        is_announced = is_announced or _only_announces(texts)


def words_of(texts: Sequence[str], is_protocol: bool = False) -> list[str]:
    """The pieces of a message that its sender wrote himself, in their order.

    `texts`: of one message, without those that its format knows as somebody else's. `is_protocol`: most of the user's
    messages before it are results.
    """
    read = _read([typed_in(text) or text for text in texts if not _CONTINUED.match(text)])
    # Tags may be in a fence, and fences between tags: neither hides where the other begins.
    own = _blank(read.lines, _tagged(read))
    own = _blank(own, [*_fenced(own, read.parts), *_fenced(read.lines, read.parts, is_closed=True)])
    result = _first_result(read)
    end = min(result, _first_document(read))
    spans: list[Span] = []
    for start, stop in ((start, min(stop, end)) for start, stop in read.parts):
        if start >= stop or _RECORD.fullmatch(read.lines, start, stop):
            continue
        if is_protocol and result < len(read.lines) and not _OWN_BEGINNING.match(read.lines, start, stop):
            continue
        spans += _inside_own_tags(own, start, stop) if _NOTE.match(read.lines, start, stop) else [(start, stop)]
    own = _OWN_EDGE.sub(_hidden, _QUOTED_LINE.sub(_hidden, own))
    pieces = [read.text[place:end] for start, stop in spans for place, end in _visible(own, start, stop)]
    if feedback := _feedback(read, result):
        pieces += words_of([read.text[slice(*feedback)]])
    return pieces


def before_results(texts: Sequence[str]) -> list[str]:
    """The beginning of each text that is no result: all of it, or as much as stands before one, or nothing.

    `texts`: of one message, as for `words_of`. Results are found in what is read of each.
    """
    read = _joined([text[:LONGEST_MESSAGE] for text in texts])
    result = _first_result(read)
    feedback, _ = _feedback(read, result) or (-1, -1)
    kept, place = [], 0
    for text in texts:
        stop = place + len(text[:LONGEST_MESSAGE])
        is_whole = stop <= result < stop + 1 or stop < result or place <= feedback < stop
        kept.append(text if is_whole else text[: max(0, result - place)])
        place = stop + 1
    return kept


def is_result(texts: Sequence[str]) -> bool:
    """Whether a user's message is a result: it begins with one, or ends as only results do."""
    said = [text for text in texts if text.strip()]
    if not said:
        return False
    beginning, end = said[0].lstrip()[:LOOKED_AT], said[-1][-LOOKED_AT:]
    return _is_tagged(beginning) or bool(_RESULT.match(beginning) or _RESULT_END.search(end))


def _is_tagged(beginning: str) -> bool:
    tag = _TAG.match(beginning)
    return tag is not None and tag[2].lower() in RESULT_TAGS


def told_in(texts: Sequence[str]) -> Told:
    """How surely a user's message with these texts, and nothing else, is what a tool said.

    In doubt it is less sure: whatever else of it may be its sender's own, no stage may take away.
    """
    said = without_blocks_in(texts)
    if not is_result(said):
        return Told.NOT
    beginning, end = said[0].lstrip()[:LOOKED_AT], said[-1][-LOOKED_AT:]
    if words_of(said):  # Behind a tag that ends it may still be the tool that speaks.
        return Told.PERHAPS if _is_tagged(beginning) else Told.NOT
    if said != tuple(text for text in texts if text.strip()) or any(map(_OWN_TAGS.search, said)):
        return Told.PERHAPS
    is_observed = _RESULT.match(beginning) and _RESULT_END.search(end)
    if _is_tagged(beginning) or _UNMISTAKABLE.match(beginning) or is_observed:
        return Told.SURELY
    return Told.PERHAPS if end.rstrip().endswith(_ASKS) else Told.LIKELY


def _only_announces(texts: Sequence[str]) -> bool:
    """Whether a message ends with the words that announce a result or a document: the next message is it."""
    last = next((text for text in reversed(texts) if text.strip()), "")[-LOOKED_AT:].translate(_LINE_ENDS).rstrip()
    announced = last.rstrip("-=*_~` \n")
    line = announced[announced.rfind("\n") + 1 :]
    if not line.endswith((":", "：")) and announced == last:
        return False
    return bool(_CALLED.fullmatch(last) or _RESULT.match(line) or _DOCUMENT.match(f"{line}\n")) or _is_heading(line)


def _read(texts: Sequence[str]) -> _Read:
    """The part of a message that is read: of one that is too long the beginning, and the end if nothing is announced
    between."""
    if len(texts) > MOST_TEXTS:
        half = MOST_TEXTS // 2
        left_out = texts[half:-half]
        texts = (*texts[:half], GAP, *(() if any(map(_may_announce, left_out)) else texts[-half:]))
    if sum(map(len, texts)) <= LONGEST_MESSAGE:
        return _joined(texts)
    most, read = LONGEST_MESSAGE // len(texts), list[str]()
    half = most // 2
    for text in texts:
        if len(text) <= most:
            read.append(text)
        elif _may_announce(text[half:-half]):
            read.append(f"{text[:half]}{GAP}")
            break
        else:
            read.append(f"{text[:half]}{GAP}{text[-half:]}")
    return _joined(read)


def _joined(texts: Sequence[str]) -> _Read:
    text = "\n".join(texts)
    ends = accumulate(len(each) + 1 for each in texts)
    parts = tuple((end - 1 - len(each), end - 1) for each, end in zip(texts, ends, strict=True) if each.strip())
    return _Read(text, text.translate(_LINE_ENDS), parts)


def _may_announce(left_out: str) -> bool:
    said = left_out.lower()
    return any(stem in said for stem in STEMS)


def _tagged(read: _Read) -> Iterator[Span]:
    """Spans between two tags of a name, and after one that nothing ends.

    Of a name whose tags are all of a part and come again in a later one, each by itself: between two documents in
    parts of their own somebody may have written.
    """
    begun: dict[str, _Tagged] = {}
    for number, part in enumerate(read.parts):
        for tag in _TAG.finditer(read.lines, *part):
            name = tag[2].lower()
            if name in OWN_TAGS:
                continue
            held = begun.get(name)
            if held is None or (not tag[1] and held.part < number and _is_whole(read, held)):
                start = read.lines.rfind(GAP, 0, tag.start()) if tag[1] else tag.start()
                if start < 0:
                    continue
                if held is not None:
                    yield held.start, held.end
                held = begun[name] = _Tagged(start, number)
            held.part = number
            held.depth += -1 if tag[1] else 1
            if tag[1]:
                held.end = tag.end()
    for name, held in begun.items():
        yield held.start, held.end if held.end >= 0 else _end_of(read, held.start, name)


def _is_whole(read: _Read, held: _Tagged) -> bool:
    """Whether tags and what is between them are all of a part."""
    start, stop = read.parts[held.part]
    return (
        held.depth <= 0
        and start <= held.start
        and not read.lines[start : held.start].strip()
        and not read.lines[held.end : stop].strip()
    )


def _end_of(read: _Read, start: int, name: str) -> int:
    """End of what a tag begins if no tag ends it. It may also be a word in a sentence, and begin nothing."""
    is_known = name in CLIENT_TAGS and ("-" in name or "_" in name)
    if is_known or GAP in read.lines[start:] or _ALONE.match(read.lines, read.lines.rfind("\n", 0, start) + 1):
        return len(read.lines)
    return start


def _fenced(text: str, parts: Sequence[Span], is_closed: bool = False) -> Iterator[Span]:
    """Spans between the first fence of a part and the last one, and after one that nothing ends, unless all are taken
    for closed."""
    for start, stop in parts:
        fences = [*_FENCE.finditer(text, start, stop)]
        if len(fences) % 2 and not is_closed:
            yield fences[0].start(), len(text)
            return
        if fences:
            yield fences[0].start(), fences[-1].end()


def _enclosed(read: _Read) -> Iterator[Span]:
    """Spans that clients put between two tags, to the first end of each: whoever writes in it can write one."""
    for start, stop in read.parts:
        begun: dict[str, int] = {}
        for tag in _TAG.finditer(read.lines, start, stop):
            name = tag[2].lower()
            if tag[1]:
                if name in begun:
                    yield begun.pop(name), tag.end()
            elif name in CLIENT_TAGS or not read.lines[start : tag.start()].strip():
                begun.setdefault(name, tag.start())


def _first_result(read: _Read) -> int:
    """Start of the results; the length of all where there is none."""
    text = _blank(read.lines, _enclosed(read), "\n")
    found = _RESULT.search(text)
    ends = _RESULT_END.search(text)
    places = [found.start()] if found else []
    places += [start for start, stop in read.parts if ends and start <= ends.start() < stop]
    return min(places, default=len(text))


def _first_document(read: _Read) -> int:
    """Start of the first announced words of somebody else; the length of all where none are."""
    text = _blank(read.lines, [*_enclosed(read), *_pairs(read)], "\n")
    text = _BEFORE_OWN_TAG.sub(lambda said: "\n" * len(said[0]), text)
    found = _DOCUMENT.search(text)
    last = found.start() if found else len(text)
    for heading in _HEADING_END.finditer(text, 0, last):
        line = text.rfind("\n", 0, heading.start()) + 1
        if _is_heading(text[max(line, heading.start() - LONGEST_HEADING) : heading.start()]):
            return heading.start()
    return last


def _is_heading(line: str) -> bool:
    return bool(_NAMES_DOCUMENT.search(line)) and not _NAMES_RULE.search(line)


def _pairs(read: _Read) -> Iterator[Span]:
    """Spans between fences, each with the next one."""
    for start, stop in read.parts:
        fences = [*_FENCE.finditer(read.lines, start, stop)]
        for opening, closing in zip(fences[::2], fences[1::2], strict=False):
            yield opening.start(), closing.end()


def _feedback(read: _Read, result: int) -> Span | None:
    """Words of the user in place of a result, as Cline and Roo write it: [tool] Result: | words in a tag.

    That is the last part but for what clients add. It counts where no result can stand: behind a tool that asks the
    user, behind "denied" in place of the result, and as a denial with its reason behind tools whose results begin with
    words of the client.
    """
    texts = [read.lines[start:stop] for start, stop in read.parts]
    place = next((number for number, (start, stop) in enumerate(read.parts) if start <= result < stop), len(texts))
    called = _CALLED.fullmatch(texts[place]) if place < len(texts) else None
    if called is None or texts[place][: result - read.parts[place][0]].strip():
        return None
    last = len(texts) - 1
    while last > place and _is_added(texts[last]):
        last -= 1
    said = _OWN_PART.fullmatch(texts[last])
    if said is None:
        return None
    tool, reason = called["tool"], (said["before"] or "").lower()
    is_asked = tool in ASKING_TOOLS and last == place + 1
    is_reason = tool in WRITING_TOOLS and last == place + 1 and reason.startswith(DENIED.lower().rstrip("."))
    is_denied = last == place + 2 and texts[place + 1].strip() == DENIED
    if not (is_asked or ((is_reason or is_denied) and said["tag"].lower() != ANSWER_TAG)):
        return None
    start, stop = said.span("words")
    return read.parts[last][0] + start, read.parts[last][0] + stop


def _is_added(text: str) -> bool:
    """Whether a part is what clients add by themselves, such as their environment."""
    tag = _TAG.match(text.strip())
    return tag is not None and tag[2].lower() in CLIENT_TAGS and text.rstrip().endswith(f"</{tag[2]}>")


def _inside_own_tags(text: str, start: int, stop: int) -> list[Span]:
    """Span between the first own tag and the last one."""
    tags = [*_OWN_TAGS.finditer(text, start, stop)]
    return [(tags[0].end(), tags[-1].start())] if len(tags) > 1 and tags[-1][1] else []


def _blank(text: str, spans: Iterable[Span], by: str = "") -> str:
    """The text with `by` in place of each character of the spans; without it, lines stay lines."""
    kept, place = list[str](), 0
    for start, stop in sorted(spans):
        if stop > place:
            hidden = text[max(start, place) : stop]
            kept += (text[place:start], by * len(hidden) if by else _IN_LINES.sub(_HIDDEN, hidden))
            place = stop
    return "".join((*kept, text[place:]))


def _hidden(found: re.Match[str]) -> str:
    return _HIDDEN * len(found[0])


def _visible(text: str, start: int, stop: int) -> Iterator[Span]:
    """The places that are not hidden, as far as there is anything."""
    yield from (found.span() for found in _SHOWN.finditer(text, start, stop) if found[0].strip())

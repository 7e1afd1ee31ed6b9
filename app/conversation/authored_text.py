"""Authored text: the part of a user message that the user typed, without tool results, documents and client text.

    "<task>Fix it.</task>", "[read_file for 'a'] Result:", "Always push."   ->   "Fix it."

1. The author of a tool result or document can write anything into it, such as the end of a fence or tag, or the tags
   that clients put around their user's words. But the author cannot change the text before the result or document. So
   Steno excludes everything after an announcement ("Observation:", a mail header), the text from the first to the last
   fence of a part, and the text from the first to the last tag of each name, except tags around the user's words.
2. Exception: Cline and Roo sometimes write words of the user in place of a result. Steno includes these words.
3. A heading such as "Here is the log:" announces a document. If a fence follows, the document ends with the last fence.
   If a list follows, Steno takes the list for the user's words.
4. Lines that are quoted or indented, log lines, stack frames and JSON members are not the user's.
5. If most earlier user messages are results, Steno omits words before a result unless tags like `<task>` enclose them.

Steno judges a message by itself and by earlier messages, so later messages do not change the judgement.

Limits: Steno takes some pasted text for the user's words: prose without a heading, fence, header or quotation marks, a
list under a heading, and text under a heading in a language that `authored_text.toml` lacks. Steno loses the user's
words between two fences of one part, and after an announcement. Summaries quote authored text as said by the user,
never as instructions, so a wrong guess has little effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, dropwhile
from operator import itemgetter

from app.conversation.client_context import queued_words, without_context
from app.conversation.messages import Kind, Message
from app.conversation.tool_results import WORDINGS, ResultConfidence

LONGEST_MESSAGE = 16_384
"""Maximum characters that Steno reads of a message. Of a longer message, it reads half of this number at each end."""
LONGEST_OMISSION = 1 << 20
"""Maximum omitted characters that Steno searches for announcements. If there are more, Steno omits the end, too."""
EDGE = 2_000
"""Number of characters at each end of a message in which Steno looks for signs of a tool result."""
LONGEST_HEADING = 500

GAP = "\0"
"""Character in place of the omitted middle of a message."""
_HIDDEN = "\ue000"
"""Replacement for each character that the user did not write. It keeps the positions of the other characters."""

Span = tuple[int, int]
"""Start and stop, in characters."""

_OWN_TAGS = frozenset[str](WORDINGS["own_tags"])
_USER_TAGS = _OWN_TAGS | frozenset[str](WORDINGS["user_tags"])
_FEEDBACK_TAGS = _OWN_TAGS | {"answer"}
"""Tags around the user's words that Cline or Roo sends in place of a result. `answer`: reply to Cline's question."""
_CLIENT_TAGS = frozenset[str]((*WORDINGS["result_tags"], *WORDINGS["client_tags"]))


def _pattern(written: str) -> re.Pattern[str]:
    return re.compile(written, re.MULTILINE | re.IGNORECASE)


def _line(name: str) -> re.Pattern[str]:
    """Return a pattern for lines that begin with one of `WORDINGS[name]`, possibly after list markers or an emoji."""
    return _pattern(rf"^[ \t]*+(?:[^\w\s]{{1,8}}[ \t]{{0,4}}){{0,3}}(?:{'|'.join(WORDINGS[name])})")


_RESULT, _RESULT_END, _DOCUMENT = map(_line, ("results", "result_ends", "documents"))
_CERTAIN = _pattern(WORDINGS["certain_results"])
_HEADING = _pattern(rf"(?!.*(?:{WORDINGS['rule_words']})).*(?:{WORDINGS['document_words']})")
_CONTINUED, _DENIED = _pattern(rf"\s*{WORDINGS['continued']}"), _pattern(WORDINGS["denied"])
_QUOTED_LINE = _pattern(rf"^{WORDINGS['quoted_lines']}")
_BEFORE_OWN = _pattern(WORDINGS["own_sentences"])
_OWN_TAG = _pattern(rf"(?:^[ \t]{{0,3}})?<(?P<end>/?)(?:{'|'.join(_OWN_TAGS)})>")
_OWN_PART = _pattern(
    rf"\s*(?:{_BEFORE_OWN.pattern}\s*)?<(?P<tag>{'|'.join(_FEEDBACK_TAGS)})>(?P<words>[\s\S]*)</(?P=tag)>\s*"
)
_RESULT_TAG = _pattern(rf"<(?:{'|'.join(WORDINGS['result_tags'])})(?:\s[^<>]{{0,1000}})?>")
_ADDED = _pattern(rf"<({'|'.join(_CLIENT_TAGS)})(?:\s[^<>]{{0,1000}})?></\1>")
"""Pattern of an element that a client adds as a separate part. `_without_content` has already emptied the element."""
_CALLED = _pattern(r"\s*\[(?P<tool>\w{2,64})(?: for [\s\S]*)?\][ \t]*Result:\s*")
"""Pattern of a part with which Cline or Roo announces that the next part is a tool result."""
_TAG = re.compile(r"<(/?)([A-Za-z][\w.:-]{0,63})(?:\s[^<>]{0,1000})?(?<!/)>")
_FENCE = _pattern(r"^[ \t]*(?:(?:[-*+>]|\d{1,2}[.)])[ \t]*)?(?:`{3,}[^`\n]*|~{3,}[^\n]*)$")
_FENCE_PAIR = _pattern(rf"{_FENCE.pattern}[\s\S]*?{_FENCE.pattern}")
_RECORD = re.compile(r'\s*(?:\{(?=\s*["}])[\s\S]*\}|\[(?=\s*[\[{"\]])[\s\S]*\])\s*')
_HEADING_END = re.compile(r"[:：][*_]{0,2}[ \t]*\n\s*")
_LIST_ITEM = re.compile(r"(?:[-*•–]|\d{1,2}[.)])[ \t]")
_LINE_ENDS = str.maketrans(dict.fromkeys("\r\v\f\x85\u2028\u2029", "\n"))
_SHOWN = re.compile(f"[^{_HIDDEN}]+")


class _Read:
    """Joined texts of a message; a long message lacks its middle. `parts`: position of each text that is not blank."""

    def __init__(self, text: str, parts: Sequence[Span]) -> None:
        self.text, self.parts = text, parts
        self.lines = text.translate(_LINE_ENDS)
        self.tags = [tag for part in parts for tag in _TAG.finditer(self.lines, *part)]


def authored_text(
    messages: Sequence[Message], start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield, for each user message from `start` up to `stop`, its index and the pieces that the user wrote.

    Messages before `start` count, too: they show how the client writes results, or announce a result as user message.
    """
    users = results = 0
    is_announced = False
    for index, message in enumerate(messages[:stop]):
        if message.kind is not Kind.USER and not message.is_result_text:
            is_announced = False
            continue
        texts = message.own_texts
        if index >= start:
            yield index, [] if is_announced else authored_in(texts, 2 * results > max(users - 1, 1))
        users += 1
        results += is_result(texts)
        is_announced = is_announced or _ends_with_announcement(texts)


def authored_in(texts: Sequence[str], is_protocol: bool = False) -> list[str]:
    """Return the pieces that the user wrote in one message, in order.

    `is_protocol`: most earlier user messages are results.
    """
    read = _read([queued_words(text) or text for text in texts if not _CONTINUED.match(text)])
    own = _blank(read.lines, _tagged(read))
    own = _blank(own, _fenced(read, own))
    # Clients that quote a text mark each of its lines. For them only a line feed ends a line.
    text = f"{read.text}\n"
    own = _blank(own, ((line.start(), text.index("\n", line.end())) for line in _QUOTED_LINE.finditer(own)))
    result = _first_result(read)
    end = min(result, _first_document(read))
    is_mixed = is_protocol and result < len(own)
    pieces: list[str] = []
    for start, stop in ((start, min(stop, end)) for start, stop in read.parts if start < end):
        tagged, tags = (start, stop), [*_OWN_TAG.finditer(own, start, stop)]
        if len(tags) > 1 and tags[-1]["end"] and tags[0].start() in (start, own.rfind("\n", 0, tags[0].start()) + 1):
            tagged = tags[0].end(), tags[-1].start()  # The text between the user's first and last tag.
        if not (is_mixed and tagged == (start, stop)) and not _RECORD.fullmatch(read.lines, start, stop):
            shown = (found.span() for found in _SHOWN.finditer(own, *tagged) if found[0].strip())
            pieces += (read.text[slice(*span)] for span in shown)
    if feedback := _feedback(read, result):
        pieces += authored_in([read.text[slice(*feedback)]])
    return pieces


def is_result(texts: Sequence[str]) -> bool:
    """Return whether a user message begins or ends like a tool result."""
    beginning, end = _edges(texts)
    return bool(_RESULT_TAG.match(beginning) or _RESULT.match(beginning) or _RESULT_END.search(end))


def result_confidence(texts: Sequence[str]) -> ResultConfidence:
    """Return the confidence that a user message is a tool result. In doubt, return the lower confidence."""
    said = without_context(texts)
    if not is_result(said):
        return ResultConfidence.NONE
    beginning, end = _edges(said)
    if authored_in(said):  # Text after a closing tag may also come from the tool.
        return ResultConfidence.POSSIBLE if _RESULT_TAG.match(beginning) else ResultConfidence.NONE
    if said != tuple(text for text in texts if text.strip()) or any(map(_OWN_TAG.search, said)):
        return ResultConfidence.POSSIBLE
    is_observed = _RESULT.match(beginning) and _RESULT_END.search(end)
    if _RESULT_TAG.match(beginning) or _CERTAIN.match(beginning) or is_observed:
        return ResultConfidence.CERTAIN
    return ResultConfidence.POSSIBLE if end.rstrip().endswith(("?", "？")) else ResultConfidence.LIKELY


def _edges(texts: Sequence[str]) -> tuple[str, str]:
    said = [text for text in texts if text.strip()] or [""]
    return said[0].lstrip()[:EDGE], said[-1][-EDGE:]


def _ends_with_announcement(texts: Sequence[str]) -> bool:
    """Return whether this message announces the next user message as a result or document."""
    last = _edges(texts)[1].translate(_LINE_ENDS).rstrip()
    announced = last.rstrip("-=*_~` \n")
    line = announced[announced.rfind("\n") + 1 :]
    if not line.endswith((":", "：")) and announced == last:
        return False
    return bool(_CALLED.fullmatch(last) or _HEADING.match(line) or _RESULT.match(line) or _DOCUMENT.match(f"{line}\n"))


def _read(texts: Sequence[str]) -> _Read:
    """Join the texts. If they are long, omit the middle, and also the end if the middle may announce a tool result."""
    texts = [*map(_without_content, texts)]
    ends = accumulate(len(text) + 1 for text in texts)
    parts = [(end - 1 - len(text), end - 1) for text, end in zip(texts, ends, strict=True) if text.strip()]
    text = "\n".join(texts)
    if len(text) <= LONGEST_MESSAGE:
        return _Read(text, parts)
    half, stop = LONGEST_MESSAGE // 2, len(text) - LONGEST_MESSAGE // 2
    # Begin with a whole line, because a log line is recognised by its beginning.
    stop = max(stop, text.find("\n", stop, stop + LONGEST_HEADING))
    omitted = stop - half
    left_out = text[half:stop].lower() if omitted <= LONGEST_OMISSION else ""
    end = text[stop:] if left_out and not any(stem in left_out for stem in WORDINGS["stems"]) else ""
    text = f"{text[:half]}{GAP}{end}"
    moved = ((max(min(p, half), p - omitted + 1) for p in part) for part in parts)
    return _Read(text, [(start, min(stop, len(text))) for start, stop in moved if start < min(stop, len(text))])


def _without_content(text: str) -> str:
    """Remove the content of a text that is one element, such as `<a>...</a>`, unless its tag is a user tag."""
    said = text.strip()
    tag = _TAG.match(said)
    if tag is None or tag[1] or tag[2].lower() in _USER_TAGS | _FEEDBACK_TAGS or not said.endswith(f"</{tag[2]}>"):
        return text
    return f"{tag[0]}</{tag[2]}>" if said.count(f"<{tag[2]}") <= said.count(f"</{tag[2]}>") else text


def _tagged(read: _Read) -> Iterator[Span]:
    """Yield, for each tag name except the user's tags, the span from its first tag to its last closing tag."""
    tags: dict[str, list[re.Match[str]]] = {}
    for tag in read.tags:
        if (name := tag[2].lower()) not in _USER_TAGS:
            tags.setdefault(name, []).append(tag)
    for name, found in tags.items():
        # If each element is a separate part, the user may have written the text between the elements.
        elements = [(first.start(), last.end()) for first, last in zip(found[::2], found[1::2], strict=False)]
        if len(found) % 2 == 0 and all(element in read.parts for element in elements):
            yield from elements
            continue
        gap = read.lines.rfind(GAP, 0, found[0].start()) if found[0][1] else -1
        opened = [*dropwhile(itemgetter(1), found)]
        if gap < 0 and not opened:
            continue
        start = gap if gap >= 0 else opened[0].start()
        if ends := [tag.end() for tag in (found if gap >= 0 else opened) if tag[1]]:
            yield start, ends[-1]
            continue
        # An unclosed tag inside a sentence ("List<String>") begins no element.
        line = read.lines[read.lines.rfind("\n", 0, start) + 1 :].partition("\n")[0]
        is_clients = name in _CLIENT_TAGS and ("-" in name or "_" in name)
        if is_clients or line.strip() == opened[0][0] or GAP in read.lines[start:]:
            yield start, len(read.lines)


def _fenced(read: _Read, own: str) -> Iterator[Span]:
    """Yield, for each part, the span from its first fence to its last fence. If a part has an odd number of fences
    outside of tagged spans, one fence is unclosed. Then also yield the span from the first of these fences to the
    message's end. `own`: the text with tagged spans hidden."""
    for start, stop in read.parts:
        if len(opened := [*_FENCE.finditer(own, start, stop)]) % 2:
            yield opened[0].start(), len(own)
        if fences := [*_FENCE.finditer(read.lines, start, stop)]:
            yield fences[0].start(), fences[-1].end()


def _enclosed(read: _Read) -> Iterator[Span]:
    """Yield the span of each element that a client may have added, up to the first closing tag of its name."""
    for start, stop in read.parts:
        begun: dict[str, int] = {}
        for tag in (tag for tag in read.tags if start <= tag.start() < stop):
            name = tag[2].lower()
            if tag[1] and name in begun:
                yield begun.pop(name), tag.end()
            elif not tag[1] and (name in _CLIENT_TAGS or not read.lines[start : tag.start()].strip()):
                begun.setdefault(name, tag.start())


def _first_result(read: _Read) -> int:
    """Return the start of the first result; without a result, the length of the text."""
    text = _blank(read.lines, _enclosed(read), "\n")
    found, ends = _RESULT.search(text), _RESULT_END.search(text)
    places = [found.start()] if found else []
    places += [start for start, stop in read.parts if ends and start <= ends.start() < stop]
    return min(places, default=len(text))


def _first_document(read: _Read) -> int:
    """Return the start of the first announced document; without a document, the length of the text."""
    fences = [fence.span() for part in read.parts for fence in _FENCE_PAIR.finditer(read.lines, *part)]
    text = _blank(read.lines, [*_enclosed(read), *fences], "\n")
    found = _DOCUMENT.search(text)
    last = found.start() if found else len(text)
    for heading in _HEADING_END.finditer(read.lines, 0, last):
        place, end = heading.start(), heading.end()
        line = text[max(text.rfind("\n", 0, place) + 1, place - LONGEST_HEADING) : place]
        is_ended = _LIST_ITEM.match(read.lines, end) or (_FENCE.match(read.lines, end) and GAP not in text)
        is_clients = _BEFORE_OWN.match(line) and _OWN_TAG.match(read.lines, end)
        if _HEADING.match(line) and not is_ended and not is_clients:
            return place
    return last


def _feedback(read: _Read, result: int) -> Span | None:
    """Return the span of the user's tagged words that Cline or Roo sent after "[tool] Result:", in place of a result.

    Steno accepts the words in two cases: the user denied the call, or the tool is one of `user_tools`. A result of such
    a tool contains the user's words, maybe after words of the client. Parts that the client added may follow the words.
    """
    parts = [part for part in read.parts if result < part[1]]
    while parts and _ADDED.fullmatch(read.lines, *parts[-1]):
        del parts[-1]
    if not 2 <= len(parts) <= 3 or read.lines[parts[0][0] : result].strip():
        return None
    called, said = _CALLED.fullmatch(read.lines, *parts[0]), _OWN_PART.fullmatch(read.lines, *parts[-1])
    if called is None or said is None:
        return None
    if len(parts) == 2:
        counts = called["tool"] in WORDINGS["user_tools"]
    else:
        counts = bool(_DENIED.fullmatch(read.lines, *parts[1])) and said["tag"].lower() in _OWN_TAGS
    return said.span("words") if counts else None


def _blank(text: str, spans: Iterable[Span], by: str = _HIDDEN) -> str:
    """Replace each character of the spans, except line ends, by `by`."""
    kept, place = list[str](), 0
    for start, stop in sorted(spans):
        if stop > place:
            kept += (text[place:start], re.sub(r"[^\n]", by, text[max(start, place) : stop]))
            place = stop
    return "".join((*kept, text[place:]))

"""Own words: what of a text its sender wrote himself, sentence by sentence.

What was pasted is somebody else's: code, quotations, documents between tags, forwarded mails, records. Whoever writes
those can write anything into them, the end of a fence or a tag, too. So what stands between the first fence and the
last one is nobody's own, nor what stands between the first tag of a name and the last of that name. Words between two
pasted documents are lost by that; words out of a document are never taken for the sender's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LONGEST_MESSAGE = 16_384
"""Characters. Of what is longer the beginning and the end are read, half of these each: what stands between was hardly
typed. Texts of one message share them."""
MOST_TEXTS = 64
"""Of one message; of more, the first and the last."""

LONGEST_SENTENCE = 500
"""Characters. What is longer is no rule in a sentence, but a document."""

_GAP = "\0"
"""In place of what is not read of a long text."""
_HIDDEN = "\ue000"
"""In place of each character of a quotation, so that nothing in it is found and all places stay the same."""

OWN_TAGS = frozenset({"feedback", "task", "user_input", "user_message", "user_query", "user_request"})
"""Tags that editors put around what somebody typed."""
_TAG = re.compile(r"<(/?)([A-Za-z][\w.:-]{0,63})(?:\s[^<>]{0,1000})?(?<!/)>")
_ALONE = re.compile(r"^[ \t]*(?:</?[A-Za-z][^<>\n]{0,1000}>)[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*(?:(?:[-*+>]|\d{1,2}[.)])[ \t]*)?(?:```[^`\n]*|~~~[^\n]*)$", re.MULTILINE)
_RECORD = re.compile(r"\s*(?:\{.*\}|\[.*\])\s*", re.DOTALL)

_DOCUMENTS = (
    r"summar|translat|proofread|review|e-?mail|article|text\b|document|readme|\blogs?\b|following|letter|\bposts?\b"
    r"|\bsa(?:ys|id)\b|wrote|\breads?\b|output|message|transcript|paste|page|policy|quote|error|file|ticket"
    r"|zusammen|übersetz|korrigier|artikel|dokument|nachricht|folgende|brief\b|schrieb|steht|protokoll|ausgabe|datei"
    r"|résum|tradui|corrige|courriel|texte|suivant|lettre|écrit|sortie|fichier|resum|traduc|correo|siguiente|carta"
    r"|escrib|salida|archivo|traduz|texto|seguinte|escreve|saída|arquivo|riassum|tradu[cr]|correggi|testo|seguente"
    r"|lettera|scritt|messaggio|总结|翻译|文章|文档|邮件|如下|以下|写道|日志|内容|要約|翻訳|訳し|文書|メール|記事|次の"
)
_RULES = (
    r"\b(?:rules?|always|never|remember|from now on|keep in mind|preferences?|regeln?|immer|nie|niemals|ab jetzt"
    r"|règles?|toujours|jamais|désormais|reglas?|siempre|nunca|regras?|sempre|regole|d'ora in poi)\b"
    r"|规则|规矩|以后|记住|ルール|今後|覚え"
)
_HEADING_END = re.compile(r"[:：][ \t]*\n")
_NAMES_DOCUMENT = re.compile(_DOCUMENTS, re.IGNORECASE)
_NAMES_RULE = re.compile(_RULES, re.IGNORECASE)
_QUOTING = re.compile(
    r"^[ \t]*(?:please |can you |could you |bitte |por favor,? |per favore,? |请|帮我){0,2}"
    r"(?:translate|summari[sz]e|proofread|rewrite|rephrase|paraphrase|übersetze?|korrigiere?|tradui[st]|traduisez"
    r"|résume[zr]?|corrige[zr]?|traduce|traduzca|traduza|traduz|traduci|riassumi|resum[ae]|correggi|翻译|总结|润色)"
    r"[^:：\n]{0,80}[:：]"
    # Mails that are quoted or passed on.
    r"|^[ \t]*-{2,}[ \t]*(?:original message|forwarded message|ursprüngliche nachricht|weitergeleitete nachricht"
    r"|message (?:d'origine|transféré)|mensaje (?:original|reenviado)|mensagem (?:original|encaminhada)"
    r"|messaggio (?:originale|inoltrato)|原始邮件|转发的邮件|転送メッセージ)"
    r"|^begin forwarded message:"
    r"|^(?:on|am|le|el|em|il) [^\n]{5,120} (?:wrote|schrieb[^\n]{0,60}|a écrit|escribió|escreveu|ha scritto) ?:[ \t]*$"
    r"|^(?:from|von|de|da|发件人|差出人)[:：][^\n]{1,200}\n(?:[^\n]{1,200}\n){0,3}"
    r"(?:to|sent|date|subject|an|gesendet|datum|betreff|à|envoyé|objet|para|enviado|asunto|assunto|oggetto|收件人|主题"
    r"|宛先|件名)[:：]",
    re.MULTILINE | re.IGNORECASE,
)
_QUOTED_LINE = re.compile(r"^(?:[ \t]*[>|]|(?: {4,}|\t+)(?![-*•–\d \t]))[^\n]*$", re.MULTILINE)
_QUOTATION = re.compile(
    r'(?<!\w)"(?=\S)[^"]*(?<=\S)"(?!\w)|“[^“”]*”|„[^„“”]*[“”]|«[^«»]*»|「[^「」]*」|『[^『』]*』|《[^《》]*》|`[^`\n]*`'
)

_ITEM = r"[ \t]*(?:[-*•–]|\d{1,2}[.)])[ \t]+"
_LISTED = re.compile(rf"^[^\n]{{1,240}}[:：][ \t]*\n(?:[ \t]*\n)?{_ITEM}[^\n]+(?:\n{_ITEM}[^\n]+)*", re.MULTILINE)
_LINES = re.compile(r"(?:[^\n]{55,}(?<![.!?:;。！？…])\n(?=[a-zß-öø-ÿ]))*[^\n]+")
"""A line, and long ones before it whose sentence it goes on with."""
_MARKER = re.compile(r"\s*(?:(?:[-•–—#]+|\*|\d{1,2}[.)])\s+)?")
_DECORATION = "*_¿¡( "
_END = re.compile(r"[.!?…]+[\"”»')\]*_]*(?=\s)|[。！？]+[”」』）]*")
_BEFORE_DOT = re.compile(r"(?:^|[\s(.])(\w+)\.$")
_ABBREVIATIONS = frozenset(
    "approx bzw ca dr etc ex inkl incl mr mrs ms nr no prof sig sr sra st usw vgl vs".split()  # noqa: SIM905
)
_SAME_SIGN = {ord("’"): "'", ord("ʼ"): "'", ord("\u00a0"): " ", ord("\u202f"): " "}


@dataclass(frozen=True, slots=True)
class Sentence:
    """One, or a heading with the list under it."""

    text: str
    """Letter by letter."""
    read: str
    """The same without what is quoted in it, for patterns; it begins with a word."""
    items: tuple[Sentence, ...] = ()
    """Of a list, one by one."""

    @property
    def is_question(self) -> bool:
        return self.read.rstrip(" \"'”»)*_").endswith(("?", "？"))


def own_sentences(texts: Sequence[str]) -> Iterator[Sentence]:
    """The sentences that the sender of a message wrote himself, in order, but for those that are too long.

    `texts`: of one message, without what he only passed on.
    """
    if len(texts) > MOST_TEXTS:
        texts = (*texts[: MOST_TEXTS // 2], *texts[-MOST_TEXTS // 2 :])
    is_long = sum(map(len, texts)) > LONGEST_MESSAGE
    for text in texts:
        yield from _sentences(_shortened(text, LONGEST_MESSAGE // len(texts)) if is_long else text)


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}{_GAP}{text[-most // 2 :]}"


def _sentences(text: str) -> Iterator[Sentence]:
    own = _own_words(text)
    read = _QUOTATION.sub(_hidden, own).translate(_SAME_SIGN)
    place = 0
    for listed in _LISTED.finditer(read):
        yield from _in_lines(own, read, place, listed.start())
        yield from _in_list(own, read, listed.start(), listed.end())
        place = listed.end()
    yield from _in_lines(own, read, place, len(own))


def _own_words(text: str) -> str:
    if _RECORD.fullmatch(text):
        return ""
    return _QUOTED_LINE.sub("", _without_introduced(_without_fences(_without_tags(text))))


def _without_tags(text: str) -> str:
    """What stands between two tags of a name is dropped, and after a tag by itself on its line that nothing ends."""
    begun: dict[str, int] = {}
    ended: dict[str, int] = {}
    for tag in _TAG.finditer(text):
        name = tag[2].lower()
        if name in OWN_TAGS:
            continue
        if not tag[1]:
            begun.setdefault(name, tag.start())
        elif name in begun or _GAP in text[: tag.start()]:
            begun.setdefault(name, text.find(_GAP))
            ended[name] = tag.end()
    for name in begun.keys() - ended.keys():
        if _is_alone(text, begun[name]):
            ended[name] = len(text)
    kept, place = [], 0
    for start, end in sorted((begun[name], end) for name, end in ended.items()):
        kept.append(text[place : max(place, start)])
        place = max(place, end)
    return "\n\n".join((*kept, text[place:]))


def _is_alone(text: str, tag: int) -> bool:
    """Whether a tag has its line for itself."""
    return _ALONE.match(text, text.rfind("\n", 0, tag) + 1) is not None


def _without_fences(text: str) -> str:
    fences = [*_FENCE.finditer(text)]
    if not fences:
        return text
    is_open = len(fences) % 2
    return text[: fences[0].start()] + ("" if is_open else text[fences[-1].end() :])


def _without_introduced(text: str) -> str:
    """What follows a line that announces a document is that document, to the end."""
    found = _QUOTING.search(text)
    stop = found.start() if found else len(text)
    for heading in _HEADING_END.finditer(text, 0, stop):
        line = text[max(text.rfind("\n", 0, heading.start()) + 1, heading.start() - LONGEST_SENTENCE) : heading.start()]
        if _NAMES_DOCUMENT.search(line) and not _NAMES_RULE.search(line):
            return text[: heading.start()]
    return text[:stop]


def _hidden(quotation: re.Match[str]) -> str:
    return f"{quotation[0][0]}{_HIDDEN * (len(quotation[0]) - 2)}{quotation[0][-1]}"


def _in_list(own: str, read: str, start: int, end: int) -> Iterator[Sentence]:
    """A heading with all that is listed under it; where that is too long, what is listed, one by one."""
    line = read.index("\n", start)
    sentences = [*_in_lines(own, read, start, line)]
    items = tuple(_in_lines(own, read, line, end))
    yield from sentences[:-1]
    for heading in sentences[-1:]:
        whole = own[own.rindex(heading.text, start, line) : end].rstrip()
        if len(whole) <= LONGEST_SENTENCE:
            yield Sentence(whole, heading.read, items)
            return
    yield from items


def _in_lines(own: str, read: str, start: int, end: int) -> Iterator[Sentence]:
    for lines in _LINES.finditer(read, start, end):
        place = lines.start()
        for stop in (*_ends(read, lines.start(), lines.end()), lines.end()):
            sentence = _sentence(own, read, place, stop)
            if sentence is not None:
                yield sentence
            place = stop


def _ends(read: str, start: int, end: int) -> Iterator[int]:
    for found in _END.finditer(read, start, end):
        if found[0] != "." or not _is_abbreviated(read[max(start, found.end() - 20) : found.end()]):
            yield found.end()


def _is_abbreviated(before: str) -> bool:
    """Whether the dot at the end of this belongs to its last word."""
    last = _BEFORE_DOT.search(before)
    return last is not None and (len(last[1]) == 1 or last[1].isdigit() or last[1].lower() in _ABBREVIATIONS)


def _sentence(own: str, read: str, start: int, end: int) -> Sentence | None:
    marker = _MARKER.match(read, start, end)
    begin = marker.end() if marker else start
    text = own[begin:end].rstrip()
    if not text or len(text) > LONGEST_SENTENCE or _GAP in text:
        return None
    return Sentence(text, read[begin : begin + len(text)].lstrip(_DECORATION))

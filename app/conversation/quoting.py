"""Quoting: put conversation text into a text by Steno so that a model cannot mistake one for the other.

Steno's headings begin with `<` and a fence. Its marks begin with `<`, a word and a fence. A fence has eight decimal
digits; in earlier releases, the digits were hexadecimal. Models also follow imitated marks. So Steno escapes fences in
upper and lower case, with look-alike letters, and with blanks or invisible characters between the digits.
"""

from __future__ import annotations

import re
from unicodedata import category, normalize

LONGEST_WORD = 64
MARKS = ("notes", "values", "words", "recalled", "work")
"""Words of Steno's marks, one for each kind of text that Steno encloses in an opening and a closing mark."""
WORD_MARKS = frozenset("-.:/@+")

_BREAKS = "\n\v\f\r\x1c-\x1e\x85\u2028\u2029"
"""Characters that some programs treat as a line end."""
_BLANKS = " \t\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_UNSEEN = (
    "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u00ad\u0300-\u036f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff"
)
"""Control characters, combining marks and other invisible characters."""
_OPENERS = "<\u02c2\u1438\u2039\u227a\u2329\u276c\u276e\u27e8\u3008\ufe64\uff1c"
_STYLED = (
    range(0xA0, 0x100),
    range(0x2070, 0x2190),
    range(0x2460, 0x2500),
    range(0xFF00, 0xFF60),
    range(0x1D400, 0x1D800),
    range(0x1F100, 0x1F18A),
    range(0x1FBF0, 0x1FBFA),
)
"""Unicode ranges with styled digits and Latin letters."""
_OTHER_SCRIPTS = {
    "a": "\u0251\u03b1\u0410\u0430",
    "b": "\u0412\u042c\u0432",
    "c": "\u03f2\u0421\u0441",
    "d": "\u0501",
    "e": "\u0395\u0415\u0435",
    "f": "\u0192\u0493",
    "l": "1I|\u0399\u0406\u04c0\u04cf",
    "n": "\u039d\u0578",
    "o": "\u039f\u03bf\u041e\u043e",
    "r": "\u01a6\u0280\u0433",
    "s": "\u0405\u0455",
    "t": "\u03a4\u0422\u0442",
    "u": "\u03c5\u054d\u057d",
    "v": "\u03bd\u0474\u0475",
}


def _spellings_of(letters: str) -> dict[str, str]:
    """Map each letter to all characters that look like it, including itself."""
    found = {letter: f"{letter}{letter.upper()}{_OTHER_SCRIPTS.get(letter, '')}" for letter in letters}
    for block in _STYLED:
        for character in map(chr, block):
            plain = normalize("NFKC", character).casefold()
            if plain in found:
                found[plain] += character
    return found


_SPELLINGS = _spellings_of("".join(sorted({*"0123456789abcdef", *"".join(MARKS)})))
_DIGIT = f"[{''.join(_SPELLINGS[digit] for digit in '0123456789abcdef')}]"


def _spelled(text: str, between: str) -> str:
    return f"[{between}]*".join(f"[{_SPELLINGS[letter]}]" for letter in text)


_ANY_FENCE = f"[{_UNSEEN}]*".join([_DIGIT] * 8)
_ANY_MARK = "|".join(_spelled(mark, _UNSEEN) for mark in MARKS)
_SHAPES = re.compile(
    # A heading is at the start of a line, a mark anywhere.
    f"((?:\\A|[{_BREAKS}])[{_BLANKS}{_UNSEEN}]*[{_OPENERS}])(?=[{_UNSEEN}]*{_ANY_FENCE}[{_BLANKS}{_UNSEEN}])"
    f"|([{_OPENERS}])(?=[{_BLANKS}{_UNSEEN}/]*(?:{_ANY_MARK})[{_BLANKS}{_UNSEEN}]+{_ANY_FENCE})"
)
_BETWEEN = re.compile(f"[{_BLANKS}{_UNSEEN}]+")
_PLAIN = {ord(spelling): digit for digit in "0123456789abcdef" for spelling in _SPELLINGS[digit]}
_LINE_END = re.compile(f"\r\n|[{_BREAKS}]")


def fence_of(digest: bytes) -> str:
    """Return eight decimal digits of a keyed digest. The author of a quoted text cannot guess them.

    Tokenizers split decimal digits into groups of three, so every fence has the same number of tokens.
    """
    return f"{int.from_bytes(digest[:8]) % 10**8:08}"


def word(name: str) -> str:
    """Return a name, such as a role, sender or tool, as one word of bounded length."""
    kept = (c if c == "_" or c in WORD_MARKS or category(c)[0] in "LNM" else "_" for c in name[:LONGEST_WORD])
    return "".join(kept)


def marked(mark: str, text: str, fence: str) -> str:
    """Quote the text, and enclose it in an opening and a closing mark. `mark` is a word from `MARKS`."""
    return f"<{mark} {fence}>\n{quoted(text, fence)}\n</{mark} {fence}>"


def one_line(text: str) -> str:
    return _LINE_END.sub(" ", text)


def indented(text: str) -> str:
    """Indent all lines except the first, so that no later line begins like a line by Steno."""
    return _LINE_END.sub(lambda end: f"{end[0]}\t", text)


def as_block(text: str) -> str:
    """Return the text with every line indented: a Markdown code block that the text itself cannot end."""
    return f"\t{indented(text)}"


def quoted(text: str, fence: str) -> str:
    """Escape all passages that a model could read as one of Steno's headings or marks, whatever fence they contain."""
    if fence in _BETWEEN.sub("", text).translate(_PLAIN):
        text = re.sub(_spelled(fence, _BLANKS + _UNSEEN), lambda found: f"{found[0][:1]}-{found[0][1:]}", text)
    return _SHAPES.sub(lambda found: f"{found[0]}\\", text)

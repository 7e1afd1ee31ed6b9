"""Words by which a summary is found. Cut the same way for both databases, of which neither is asked what a word is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from unicodedata import normalize

LONGEST_WORD = 40
"""Characters; what comes after them does not count."""
SHORTEST_BEGINNING = 3
"""Characters from which on a word that is looked for may be the beginning of a longer one: more begin with less."""

# Scripts that put no spaces between words: each letter is one. Thai to Myanmar, Khmer, kana, ideographs.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_ENCODED = re.compile("[^a-z0-9]")
OWNER_BYTES = 8
"""Bytes of a term that identify its tenant."""
LETTER_BYTES = 7
"""Bytes of a letter beyond ASCII in a term."""


def words_in(text: str) -> list[str]:
    """The different words, letters and digits only, in lower case."""
    return list(dict.fromkeys(word[:LONGEST_WORD] for word in _WORD.findall(normalize("NFKC", text).casefold())))


def may_go_on(word: str) -> bool:
    """Whether it is looked for as a beginning, too."""
    return len(word) >= SHORTEST_BEGINNING


def terms(tenant: str, words: Iterable[str]) -> list[str]:
    """The words as an index holds them, in ASCII: a beginning stays one. They begin with the tenant, so that what
    others have does not make a search longer."""
    owner = blake2b(tenant.encode(), digest_size=4).hexdigest()
    return [owner + _ENCODED.sub(lambda found: f"_{ord(found[0]):06x}", word) for word in words]


def term_size(word: str) -> int:
    """The bytes of its term, at most."""
    return OWNER_BYTES + len(word) * (1 if word.isascii() else LETTER_BYTES)

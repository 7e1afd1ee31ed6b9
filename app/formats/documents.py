"""Documents: how many pages a PDF has, how large they are and how much is written on them; the text of a text file.

Nothing is rendered, and no font is decoded: glyphs are counted, which is what a page's tokens depend on. A document is
somebody else's, so all work is bounded: bytes that are looked at, streams that are unpacked, and what they unpack to.
"""

from __future__ import annotations

import re
import zlib
from binascii import a2b_base64
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice, pairwise
from threading import Lock
from typing import NamedTuple

from app.conversation.messages import Media
from app.runtime.bounded import BoundedMap

LONGEST = 43 << 20
"""Characters of a document's base64 that are looked at: 32 MB, the most that providers take."""
MOST_UNPACKED = 4 << 20
"""Bytes that the streams of one document may unpack to; what is written in the others is taken to be as much."""
LARGEST_STREAM = 1 << 20
"""Bytes that one of them may."""
MOST_STREAMS = 20_000
MOST_PAGES = 3_000
LEAST_WORK = 1 << 12
"""Bytes that a stream which cannot be read counts as."""
SLICE = 1 << 16
"""Bytes that are searched at once, so that no other thread waits for long."""
GLYPHS_UNREAD = 2_000
"""Glyphs of a page whose content cannot be read: encrypted, or packed in another way."""
BYTES_A_PAGE = 50_000
"""Bytes of a page, in a document that names no pages."""
MOST_REMEMBERED = 512

_HEAD = 2_048
"""Base64 that tells what a file is."""
_DICTIONARY = 400
"""Bytes before a stream in which its dictionary is looked for."""

_PAGE = re.compile(rb"/Type\s{0,9}/Page(?![A-Za-z])")
_COUNT = re.compile(rb"/Count\s{1,9}([0-9]{1,6})\b")
_BOX = re.compile(rb"/MediaBox\s{0,9}\[\s{0,9}" + rb"\s{1,9}".join([rb"(-?[0-9]{1,6})(?:\.[0-9]{0,9})?"] * 4))
_STREAM = re.compile(rb"(?<!end)stream\r?\n")
_NO_CONTENT = re.compile(
    rb"/Length1\b|/Image\b|/Type1C|/CIDFontType0C|/OpenType|/XRef\b|/Metadata\b|/DCTDecode|/JPXDecode|/CCITTFaxDecode"
)
"""Marks of streams on which nothing can be written: fonts, pictures, tables."""
_PACKED = re.compile(rb"/(?:FlateDecode|LZWDecode|ASCII85Decode|ASCIIHexDecode|RunLengthDecode|Crypt|Fl)\b")
_LITERAL = re.compile(rb"\(((?:[^()\\]|\\.)*+)\)", re.DOTALL)
_HEX = re.compile(rb"<([0-9A-Fa-f\s]++)>")
_ESCAPE = re.compile(rb"\\(?:[0-7]{1,3}|.)", re.DOTALL)
_BEGINS_TEXT, _SHOWS_TEXT = re.compile(rb"\bBT\b"), re.compile(rb"\bT[Jj]\b")
_TWO_BYTES = b"/Identity-H"
"""Mark in the dictionary of a font whose glyphs have two bytes each."""


class Document(NamedTuple):
    """The parts of a document on which its cost depends."""

    text: str = ""
    """Text of a file that is text."""
    pages: int = 0
    """Pages of a PDF; 0 for anything else."""
    glyphs: int = 0
    """Written on all its pages together."""
    width: int = 0
    """Width of its first page, in points."""
    height: int = 0


UNKNOWN = Document()
_known: BoundedMap[bytes, Document] = BoundedMap(MOST_REMEMBERED)
_lock = Lock()


def read_document(data: str) -> Document:
    """The document in a file's base64 or data URL; `UNKNOWN` for what is neither a PDF nor text. PDFs are
    remembered."""
    start = data.find(",", 0, 200) + 1
    head = _decoded(data, start, _HEAD)
    if b"%PDF-" not in head:
        return _text(data, start, head)
    key = blake2b(data.encode("utf-8", "replace"), digest_size=16).digest()
    with _lock:
        found = _known.get(key)
    if found is None:
        found = _pdf(_decoded(data, start, LONGEST))
        with _lock:
            _known.keep(key, found)
    return found


def file_of(data: str, size: int = 0) -> Media:
    """A part that holds a file. `size`: characters of all it holds, where that is more."""
    found = read_document(data)
    return Media(
        "file",
        size or len(data),
        width=found.width,
        height=found.height,
        pages=found.pages,
        glyphs=found.glyphs,
        text=found.text,
    )


def _text(data: str, start: int, head: bytes) -> Document:
    if not head or b"\0" in head or head.startswith(b"PK\x03\x04"):
        return UNKNOWN
    try:
        return Document(_decoded(data, start, LONGEST).decode("utf-8-sig"))
    except UnicodeDecodeError:
        return UNKNOWN


def _decoded(text: str, start: int, limit: int) -> bytes:
    """First characters of the base64 from `start`, up to so many; none if it is not base64."""
    try:
        return a2b_base64(text[start : start + limit])
    except ValueError:
        return b""


def _pdf(data: bytes) -> Document:
    structure, contents, unread = [data], [], 0
    for unpacked in _streams(data):
        if unpacked is None:
            unread += 1
        elif _BEGINS_TEXT.search(unpacked) and _SHOWS_TEXT.search(unpacked):
            contents.append(unpacked)
        else:
            structure.append(unpacked)  # Objects may be packed, too.
    counted = sum(len(_PAGE.findall(part)) for part in structure)
    named = max((int(count) for part in structure for count in _COUNT.findall(part)), default=0)
    pages = min(counted, named) if counted and named else counted or named
    pages = min(MOST_PAGES, pages or max(1, len(data) // BYTES_A_PAGE))
    width = 2 if any(_TWO_BYTES in part for part in structure) else 1
    glyphs = sum(_glyphs(content, width) for content in contents)
    # Those that were not read are taken to be as the others.
    glyphs = glyphs * (len(contents) + unread) // len(contents) if contents else bool(unread) * GLYPHS_UNREAD * pages
    box = next((found for part in structure if (found := _BOX.search(part))), None)
    left, low, right, high = (int(number) for number in box.groups()) if box else (0, 0, 0, 0)
    return Document("", pages, glyphs, abs(right - left), abs(high - low))


def _streams(data: bytes) -> Iterator[bytes | None]:
    """The unpacked streams, as far as anything may be written in them; None for one that cannot be read."""
    left = MOST_UNPACKED
    places = [found.span() for found in islice(_STREAM.finditer(data), MOST_STREAMS)]
    # To the next one, and not to where it says that it ends: that need not be anywhere.
    for (begin, start), (stop, _) in pairwise([*places, (len(data), 0)]):
        before = data[max(0, begin - _DICTIONARY) : begin]
        about = before[before.rfind(b" obj") + 1 :]
        if _NO_CONTENT.search(about):
            continue
        held = data[start : min(stop, start + LARGEST_STREAM)]
        if left <= 0:
            yield None
        elif not _PACKED.search(about):
            left -= len(held)
            yield held.partition(b"endstream")[0]
        else:
            unpacked = _unpacked(held, min(left, LARGEST_STREAM))
            left -= len(unpacked) if unpacked is not None else LEAST_WORK
            yield unpacked


def _unpacked(packed: bytes, limit: int) -> bytes | None:
    unpacker = zlib.decompressobj()
    try:
        return unpacker.decompress(packed, limit)
    except zlib.error:
        return None


def _glyphs(content: bytes, width: int) -> int:
    """Number of glyphs in all strings of a content stream. `width`: bytes of a glyph, where they are not written as
    characters."""
    glyphs = 0
    for start in range(0, len(content), SLICE):
        part = content[start : start + SLICE]
        literals = _LITERAL.findall(part)
        glyphs += len(_ESCAPE.sub(b".", b"".join(literals))) // (width if any(b"\0" in one for one in literals) else 1)
        glyphs += sum(len(digits) for digits in _HEX.findall(part)) // (2 * width)
    return glyphs

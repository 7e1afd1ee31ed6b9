"""Media: the size of a picture, the length of a recording, and the pages and glyphs of a PDF.

Each format finds the media parts of its messages, and calls this module. This module fetches nothing, renders nothing
and decodes no font. It counts the glyphs of a PDF because tokens depend on them. All work is bounded, because a file
may be hostile. An unreadable value counts as unknown.
"""

from __future__ import annotations

import re
import zlib
from binascii import a2b_base64
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice, pairwise
from typing import Any

from msgspec.structs import replace

from app.conversation.messages import Media
from app.formats.raw_json import text_at

HEADER = 4 << 10
"""Characters of base64 that Steno decodes to find a picture's size or a recording's header."""
JPEG_HEADER = 4 << 16
"""Characters of a JPEG's base64 that Steno decodes. The picture's size may follow several previews of up to 64 KB."""

BYTES_PER_SECOND = {"mp3": 8_000, "pcm16": 48_000}
"""Assumed bytes per second of recordings without a WAV header: MP3 at 64 kbit/s, PCM with 16 bits at 24 kHz."""
SAMPLES_BYTES_PER_SECOND = 32_000
"""Assumed bytes per second in formats that `BYTES_PER_SECOND` lacks: samples of 16 bits at 16 kHz."""


def pixels(url: str) -> tuple[int, int]:
    """Return width and height of the picture in a data URL, in pixels; zeros if unreadable."""
    start = url.find(",", 0, 200) + 1
    head = _decoded(url, start, HEADER)
    if head.startswith(b"\xff\xd8"):
        return _jpeg_pixels(_decoded(url, start, JPEG_HEADER))
    if len(head) < 30:
        return 0, 0
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if head.startswith((b"GIF87a", b"GIF89a")):
        return _little(head, 6, 2), _little(head, 8, 2)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return _webp_pixels(head)
    return 0, 0


def _webp_pixels(head: bytes) -> tuple[int, int]:
    match head[12:16]:
        case b"VP8 ":
            return _little(head, 26, 2) & 0x3FFF, _little(head, 28, 2) & 0x3FFF
        case b"VP8L":
            both = _little(head, 21, 4)
            return (both & 0x3FFF) + 1, (both >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return _little(head, 24, 3) + 1, _little(head, 27, 3) + 1
        case _:
            return 0, 0


def _jpeg_pixels(head: bytes) -> tuple[int, int]:
    """Return width and height from the frame header. Any number of other segments may precede this header."""
    position = 2
    while position + 9 <= len(head) and head[position] == 0xFF:
        marker = head[position + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = head[position + 5 : position + 7], head[position + 7 : position + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        # Any number of fill bytes may precede a marker.
        position += 1 if marker == 0xFF else 2 + int.from_bytes(head[position + 2 : position + 4], "big")
    return 0, 0


def seconds(data: str, format_: str) -> float:
    """Return a recording's length in seconds, by the byte rate in its WAV header, or else by the assumed byte rate."""
    start = data.find(",", 0, 200) + 1
    head = _decoded(data, start, HEADER)
    place = head.find(b"fmt ", 12) if head.startswith(b"RIFF") and head[8:12] == b"WAVE" else -1
    rate = _little(head, place + 16, 4) if place != -1 else 0
    return (len(data) - start) * 3 // 4 / (rate or BYTES_PER_SECOND.get(format_, SAMPLES_BYTES_PER_SECOND))


def _little(head: bytes, start: int, length: int) -> int:
    return int.from_bytes(head[start : start + length], "little")


def openai_media(kind: str, members: Mapping[str, Any], url: str, size: int) -> Media:
    """Return the media of a part in OpenAI's formats. `members` has the data, URL or file id. `url` is the URL of a
    picture. `size` counts the characters of data, URL and id."""
    if kind == "file" and (data := text_at(members, "file_data")):
        return replace(file_of(data, size), name=text_at(members, "filename"))
    width, height = pixels(url) if kind == "image" and url.startswith("data:") else (0, 0)
    length = seconds(text_at(members, "data"), text_at(members, "format")) if kind == "audio" else 0.0
    return Media(kind, size, text_at(members, "detail"), width, height, length)


LONGEST = 43 << 20
"""Maximum characters of a document's base64 that Steno reads: 32 MB decoded, the maximum that providers accept."""
MOST_UNPACKED = 4 << 20
"""Maximum unpacked bytes of a document. For streams beyond this, Steno assumes the average glyphs of unpacked ones."""
LARGEST_STREAM = 1 << 20
MOST_STREAMS = 20_000
MOST_PAGES = 3_000
LEAST_WORK = 1 << 12
"""Bytes that an unreadable stream adds to the count for `MOST_UNPACKED`."""
SLICE = 1 << 16
"""Bytes searched in one step, so that other threads do not wait long."""
GLYPHS_UNREAD = 2_000
BYTES_A_PAGE = 50_000
"""Assumed bytes of each page in a document that does not name its number of pages."""

_HEAD = 2_048
"""Number of leading characters of base64 from which Steno detects a file's type."""
_DICTIONARY = 400
"""Number of bytes before a stream in which Steno searches for the stream's dictionary."""

_PAGE = re.compile(rb"/Type\s{0,9}/Page(?![A-Za-z])")
_COUNT = re.compile(rb"/Count\s{1,9}([0-9]{1,6})\b")
_BOX = re.compile(rb"/MediaBox\s{0,9}\[\s{0,9}" + rb"\s{1,9}".join([rb"(-?[0-9]{1,6})(?:\.[0-9]{0,9})?"] * 4))
_STREAM = re.compile(rb"(?<!end)stream\r?\n")
_NO_CONTENT = re.compile(
    rb"/Length1\b|/Image\b|/Type1C|/CIDFontType0C|/OpenType|/XRef\b|/Metadata\b|/DCTDecode|/JPXDecode|/CCITTFaxDecode"
)
"""Pattern of PDF streams without page text: fonts, images, xref, metadata."""
_PACKED = re.compile(rb"/(?:FlateDecode|LZWDecode|ASCII85Decode|ASCIIHexDecode|RunLengthDecode|Crypt|Fl)\b")
_LITERAL = re.compile(rb"\(((?:[^()\\]|\\.)*+)\)", re.DOTALL)
_HEX = re.compile(rb"<([0-9A-Fa-f\s]++)>")
_ESCAPE = re.compile(rb"\\(?:[0-7]{1,3}|.)", re.DOTALL)
_BEGINS_TEXT, _SHOWS_TEXT = re.compile(rb"\bBT\b"), re.compile(rb"\bT[Jj]\b")
_TWO_BYTES = b"/Identity-H"
"""Encoding of fonts with two bytes for each glyph."""


def file_of(data: str, size: int = 0) -> Media:
    """Return the media of a file in base64 or a data URL. `size`: characters of the file's part; 0: length of `data`.

    The width and height of a PDF are those of its first page, in points. Its glyphs are those of all pages.
    """
    start, size = data.find(",", 0, 200) + 1, size or len(data)
    head = _decoded(data, start, _HEAD)
    if b"%PDF-" not in head:
        with suppress(UnicodeDecodeError):
            if head and b"\0" not in head and not head.startswith(b"PK\x03\x04"):
                return Media("file", size, text=_decoded(data, start, LONGEST).decode("utf-8-sig"))
        return Media("file", size)
    return replace(_pdf(_decoded(data, start, LONGEST)), size=size)


def _decoded(text: str, start: int, limit: int) -> bytes:
    """Decode up to `limit` characters of base64 from `start`; empty if invalid."""
    try:
        return a2b_base64(text[start : start + limit])
    except ValueError:
        return b""


def _pdf(data: bytes) -> Media:
    structure, contents, unread = [data], [], 0
    for unpacked in _streams(data):
        if unpacked is None:
            unread += 1
        elif _BEGINS_TEXT.search(unpacked) and _SHOWS_TEXT.search(unpacked):
            contents.append(unpacked)
        else:
            structure.append(unpacked)  # Packed objects, which may include pages.
    counted = sum(len(_PAGE.findall(part)) for part in structure)
    named = max((int(count) for part in structure for count in _COUNT.findall(part)), default=0)
    pages = min(counted, named) if counted and named else counted or named
    pages = min(MOST_PAGES, pages or max(1, len(data) // BYTES_A_PAGE))
    width = 2 if any(_TWO_BYTES in part for part in structure) else 1
    glyphs = sum(_glyphs(content, width) for content in contents)
    # Each unread stream counts with the average glyphs of the read ones.
    glyphs = glyphs * (len(contents) + unread) // len(contents) if contents else bool(unread) * GLYPHS_UNREAD * pages
    box = next((found for part in structure if (found := _BOX.search(part))), None)
    left, low, right, high = (int(number) for number in box.groups()) if box else (0, 0, 0, 0)
    return Media("file", 0, width=abs(right - left), height=abs(high - low), pages=pages, glyphs=glyphs)


def _streams(data: bytes) -> Iterator[bytes | None]:
    """Yield the unpacked streams that may have page text. Yield None for an unreadable stream."""
    left = MOST_UNPACKED
    places = [found.span() for found in islice(_STREAM.finditer(data), MOST_STREAMS)]
    # Read each stream up to the beginning of the next stream, because a stream's own end mark may be missing.
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
    """Count the glyphs in all strings of a content stream. `width`: bytes of each glyph in hexadecimal and binary
    strings."""
    glyphs = 0
    for start in range(0, len(content), SLICE):
        part = content[start : start + SLICE]
        literals = _LITERAL.findall(part)
        glyphs += len(_ESCAPE.sub(b".", b"".join(literals))) // (width if any(b"\0" in one for one in literals) else 1)
        glyphs += sum(len(digits) for digits in _HEX.findall(part)) // (2 * width)
    return glyphs

"""Media: how large a picture is and how long a recording, as their first bytes tell.

Nothing is fetched, and no more is decoded than a header takes. What cannot be read is not known.
"""

from __future__ import annotations

from binascii import a2b_base64

HEADER_BYTES = 3 << 10
JPEG_HEADER_BYTES = 3 << 16
"""A JPEG gives its size only after previews and colour profiles, each of up to 64 KB."""

BYTES_PER_SECOND = {"mp3": 8_000, "pcm16": 48_000}
"""Assumed where no header says it: speech at 64 kbit/s; samples of 16 bits at 24 kHz."""
SAMPLES_BYTES_PER_SECOND = 32_000
"""Assumed for any other format: samples of 16 bits at 16 kHz."""


def pixels(url: str) -> tuple[int, int]:
    """Width and height of the picture in a data URL; zeros if they cannot be read."""
    start = url.find(",", 0, 200) + 1
    head = _decoded(url, start, HEADER_BYTES)
    if head.startswith(b"\xff\xd8"):
        return _jpeg_pixels(_decoded(url, start, JPEG_HEADER_BYTES))
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
    """Width and height from the frame header, which stands behind any number of other segments."""
    position = 2
    while position + 9 <= len(head) and head[position] == 0xFF:
        marker = head[position + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = head[position + 5 : position + 7], head[position + 7 : position + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        # A marker may be preceded by any number of fill bytes.
        position += 1 if marker == 0xFF else 2 + int.from_bytes(head[position + 2 : position + 4], "big")
    return 0, 0


def seconds(data: str, format_: str) -> float:
    """Length of a recording in base64: by its WAV header, else by its size."""
    start = data.find(",", 0, 200) + 1
    size = (len(data) - start) * 3 // 4
    head = _decoded(data, start, HEADER_BYTES)
    if not head.startswith(b"RIFF") or head[8:12] != b"WAVE":
        return size / BYTES_PER_SECOND.get(format_, SAMPLES_BYTES_PER_SECOND)
    rate, position = SAMPLES_BYTES_PER_SECOND, 12
    while position + 8 <= len(head):
        name, length = head[position : position + 4], _little(head, position + 4, 4)
        position += 8
        if name == b"fmt ":
            rate = _little(head, position + 8, 4) or rate
        elif name == b"data":
            # A recording that was streamed states no length, or too large a one.
            return min(length or size, size - position) / rate
        position += length + length % 2
    return size / rate


def _decoded(text: str, start: int, limit: int) -> bytes:
    """First bytes of the base64 from `start`, up to so many; none if it is not base64."""
    try:
        return a2b_base64(text[start : start + limit // 3 * 4])
    except ValueError:
        return b""


def _little(head: bytes, start: int, length: int) -> int:
    return int.from_bytes(head[start : start + length], "little")

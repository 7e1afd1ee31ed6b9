"""Media: sizes and lengths from first bytes."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.messages import Media
from app.formats.chat_completions.format import read_media


def big(number: int, size: int) -> bytes:
    return number.to_bytes(size, "big")


def little(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little")


PNG = b"\x89PNG\r\n\x1a\n" + big(13, 4) + b"IHDR" + big(640, 4) + big(480, 4) + b"\x08\x06\0\0\0" + bytes(4)
GIF = b"GIF89a" + little(640, 2) + little(480, 2) + bytes(30)
WEBP = b"RIFF" + little(99, 4) + b"WEBP"
LOSSY = WEBP + b"VP8 " + bytes(10) + little(640, 2) + little(480 | 1 << 14, 2) + bytes(9)
LOSSLESS = WEBP + b"VP8L" + bytes(4) + b"\x2f" + little(639 | 479 << 14, 4) + bytes(9)
EXTENDED = WEBP + b"VP8X" + bytes(8) + little(639, 3) + little(479, 3) + bytes(9)


def jpeg(marker: int = 0xC0, before: bytes = b"") -> bytes:
    frame = b"\xff" + bytes([marker]) + big(17, 2) + b"\x08" + big(480, 2) + big(640, 2) + bytes(10)
    return b"\xff\xd8" + before + frame


def segment(marker: int, size: int) -> bytes:
    return b"\xff" + bytes([marker]) + big(size + 2, 2) + bytes(size)


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def picture(address: Any, **members: Any) -> Media:
    return read_media({"type": "image_url", "image_url": {"url": address, **members}})


@pytest.mark.parametrize(
    "data",
    [
        PNG,
        GIF,
        LOSSY,
        LOSSLESS,
        EXTENDED,
        jpeg(),
        jpeg(0xC2),
        jpeg(before=segment(0xE1, 60_000) + segment(0xE2, 60_000) + segment(0xC4, 30) + b"\xff\xff"),
    ],
    ids=["PNG", "GIF", "VP8", "VP8L", "VP8X", "JPEG", "progressive", "JPEG behind other segments"],
)
def test_width_and_height_are_read_from_the_header(data: bytes) -> None:
    media = picture(url(data))
    assert (media.width, media.height) == (640, 480)


@pytest.mark.parametrize(
    "address",
    [
        "https://example.org/cat.png",
        "data:image/svg+xml,%3Csvg%3E",
        "data:",
        "data:image/png;base64,????",
        "data:image/png;base64,\u00e9\ud800",
        url(PNG[:20]),
        url(b"BM" + bytes(60)),
        url(WEBP + b"ODD " + bytes(60)),
        url(b"RIFF" + bytes(60)),
        url(b"\xff\xd8"),
        url(b"\xff\xd8" + bytes(60)),
        url(jpeg(before=segment(0xE1, 60_000) * 9)),
        7,
        None,
    ],
)
def test_a_size_that_cannot_be_read_is_not_known(address: Any) -> None:
    media = picture(address)
    assert (media.kind, media.width, media.height) == ("image", 0, 0)


def test_no_more_than_the_header_is_decoded() -> None:
    """What follows it may be anything."""
    assert picture(url(PNG + bytes(9_000)) + "\u00e9" * 1_000_000).width == 640


def test_a_picture_keeps_its_detail_and_the_length_of_what_it_holds() -> None:
    assert picture("https://x.org", detail="low") == Media("image", 16, "low")


def test_a_picture_may_stand_without_wrapping() -> None:
    address = url(GIF, "image/gif")
    assert read_media({"type": "image_url", "image_url": address}) == Media("image", len(address), "", 640, 480)
    bare = read_media({"type": "input_image", "image_url": address, "detail": "high"})
    assert bare == Media("image", len(address) + 4, "high", 640, 480)


def wav(samples: int, rate: int = 16_000, before: bytes = b"") -> str:
    form = b"fmt " + little(16, 4) + little(1, 2) + little(1, 2) + little(rate, 4) + little(2 * rate, 4) + bytes(4)
    head = b"RIFF" + bytes(4) + b"WAVE" + before + form + b"data" + little(2 * samples, 4)
    return base64.b64encode(head + bytes(2 * samples)).decode()


def recording(data: Any, form: Any = "wav") -> Media:
    return read_media({"type": "input_audio", "input_audio": {"data": data, "format": form}})


@pytest.mark.parametrize(
    ("data", "seconds"),
    [
        (wav(8_000), 0.5),
        (wav(24_000, rate=24_000), 1),
        (wav(8_000, before=b"LIST" + little(5, 4) + bytes(6)), 0.5),
        (f"data:audio/wav;base64,{wav(8_000)}", 0.5),
    ],
    ids=["16 kHz", "24 kHz", "with a list", "data URL"],
)
def test_the_length_of_a_recording_is_read_from_its_header(data: str, seconds: float) -> None:
    assert recording(data).seconds == pytest.approx(seconds, abs=0.01)


def test_without_a_header_the_length_follows_from_the_size_and_the_format() -> None:
    data = base64.b64encode(bytes(48_000)).decode()
    assert recording(data, "mp3").seconds == 48_000 / 8_000
    assert recording(data, "pcm16").seconds == 1
    assert recording(data, None).seconds == recording("?" * 64_000).seconds == 1.5


def test_a_header_cut_short_leaves_the_length_to_the_size() -> None:
    head = base64.b64encode(b"RIFF" + bytes(4) + b"WAVE" + b"LIST" + little(9_999, 4) + bytes(31_980)).decode()
    assert recording(head).seconds == pytest.approx(1, abs=0.01)
    assert recording(wav(16_000, rate=0)).seconds == pytest.approx(1, abs=0.01)


def test_what_holds_no_recording_has_no_length() -> None:
    assert recording(None) == Media("audio", 3)
    assert read_media({"type": "input_audio", "input_audio": "x"}) == Media("audio", 1)


def test_other_parts_keep_their_type_and_size() -> None:
    assert read_media({"type": "file", "file": {"file_data": "12345", "n": 7}}) == Media("file", 5)
    assert read_media({"type": "video", "video": "12"}) == Media("video", 2)
    assert read_media({"type": 7}) == read_media({}) == Media("", 0)


@given(
    st.binary(max_size=80),
    st.sampled_from([b"", b"\xff\xd8", PNG[:16], WEBP, b"RIFF0000WAVEfmt ", b"RIFF0000WAVEdata"]),
)
def test_no_bytes_are_too_odd(data: bytes, head: bytes) -> None:
    assert picture(url(head + data)).width >= 0
    assert recording(base64.b64encode(head + data).decode()).seconds >= 0

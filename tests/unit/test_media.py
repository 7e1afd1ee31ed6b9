"""Media: sizes and lengths of pictures and recordings from first bytes, pages and text of documents."""

from __future__ import annotations

import base64
import zlib
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.messages import Media
from app.formats import media as media_module
from app.formats.chat_completions import read_media
from app.formats.chat_completions import read_media as read_part
from app.formats.media import GLYPHS_UNREAD, MOST_PAGES, file_of
from app.formats.messages.messages import media_in
from app.formats.responses.items import read_media as read_item_part


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


def test_what_holds_no_recording_has_no_length() -> None:
    assert recording(None) == Media("audio", 3)
    assert read_media({"type": "input_audio", "input_audio": "x"}) == Media("audio", 1)


@given(
    st.binary(max_size=80),
    st.sampled_from([b"", b"\xff\xd8", PNG[:16], WEBP, b"RIFF0000WAVEfmt ", b"RIFF0000WAVEdata"]),
)
def test_no_bytes_are_too_odd(data: bytes, head: bytes) -> None:
    assert picture(url(head + data)).width >= 0
    assert recording(base64.b64encode(head + data).decode()).seconds >= 0


# Documents

PACK = b" /Filter /FlateDecode"


def stream(content: bytes, about: bytes = b"") -> bytes:
    return b"<<%b /Length %d>>\nstream\n%b\nendstream" % (about, len(content), content)


def pdf(*contents: bytes, packed: bool = True, more: bytes = b"") -> bytes:
    """A page for each content."""
    pages = b"".join(
        b"%d 0 obj <</Type /Page /MediaBox [0 0 612 792]>> endobj\n" % (10 + at) for at in range(len(contents))
    )
    written = [stream(zlib.compress(content), PACK) if packed else stream(content) for content in contents]
    streams = b"".join(b"%d 0 obj %b endobj\n" % (500 + at, one) for at, one in enumerate(written))
    tree = b"2 0 obj <</Type /Pages /Count %d>> endobj\n" % len(contents)
    return b"%PDF-1.7\n" + tree + pages + streams + more


def said(*strings: bytes) -> bytes:
    return b"BT /F1 12 Tf " + b" ".join(b"(%b) Tj" % string for string in strings) + b" ET"


def read(data: bytes) -> Media:
    return file_of("data:application/pdf;base64," + b64encode(data).decode())


def size_of(found: Media) -> tuple[int, int, int, int]:
    return found.pages, found.glyphs, found.width, found.height


@pytest.mark.parametrize("packed", [True, False])
def test_pages_and_what_is_written_on_them_are_counted(packed: bool) -> None:
    found = read(pdf(said(b"hello", b"there"), said(b"you"), packed=packed))
    assert size_of(found) == (2, 13, 612, 792)


def test_escapes_are_one_glyph_each_and_displaced_strings_count_together() -> None:
    content = rb"BT [(he) -20 (l\051o)] TJ (\\\)) Tj <48656C6C6F> Tj ET"
    assert read(pdf(content)).glyphs == 5 + 2 + 5


def test_glyphs_of_two_bytes_are_counted_as_such() -> None:
    font = b"9 0 obj <</Type /Font /Encoding /Identity-H>> endobj\n"
    assert read(pdf(b"BT <00480065006C> Tj (\0a\0b) Tj ET", more=font)).glyphs == 5


def test_pages_may_be_packed_too_and_only_those_that_the_tree_names_count() -> None:
    inside = zlib.compress(b"<</Type /Page /MediaBox [0 0 200 100]>> <</Type/Page>> <</Type /Pages /Count 2>>")
    packed = b"%PDF-1.7\n1 0 obj " + stream(inside, b"/Type /ObjStm" + PACK)
    assert size_of(read(packed)) == (2, 0, 200, 100)
    changed = pdf(said(b"a")) + b"10 0 obj <</Type /Page>> endobj\n"  # A page that was saved anew.
    assert read(changed).pages == 1


def test_fonts_and_pictures_are_not_read_as_text() -> None:
    for about in (b"/Subtype /Image", b"/Length1 9", b"/Subtype /Type1C"):
        font = b"77 0 obj " + stream(zlib.compress(said(b"x" * 900)), about + PACK)
        assert read(pdf(said(b"hello"), more=font)).glyphs == 5


def test_what_cannot_be_read_is_taken_to_be_as_full_as_other_pages() -> None:
    broken = b"77 0 obj " + stream(b"no zlib", PACK)
    assert read(pdf(said(b"hello"), more=broken)).glyphs == 10
    encrypted = pdf(b"", b"", packed=False) + broken
    assert read(encrypted).glyphs == 2 * GLYPHS_UNREAD


@pytest.mark.parametrize(
    ("data", "pages"),
    [
        (b"%PDF-1.4", 1),
        (b"%PDF-1.4" + bytes(500_000), 10),
        (b"%PDF-1.4 /Type /Pages /Count 999999", MOST_PAGES),
        (b"%PDF-1.4 " + b"/Type /Page " * 50_000, MOST_PAGES),
        (b"%PDF-1.4 /Count " + b"9" * 5_000, 1),
    ],
)
def test_pages_that_are_not_named_or_too_many_are_bounded(data: bytes, pages: int) -> None:
    assert read(data).pages == pages


def hostile() -> dict[str, bytes]:
    bomb = zlib.compress(bytes(50 << 20))
    return {
        "a bomb": pdf(*[bytes(1)] * 10, more=b"".join(b"7 0 obj " + stream(bomb, PACK) for _ in range(30))),
        "streams without an end": b"%PDF-1.4" + b"7 0 obj <</Filter /FlateDecode>>\nstream\n" * 100_000,
        "texts that begin": pdf(b"BT " * 300_000 + b"Tj"),
        "open strings": pdf(b"BT Tj " + b"(" * 900_000),
        "tiny strings": pdf(b"BT Tj " + b"()" * 450_000),
        "open digits": pdf(b"BT Tj " + b"<0" * 450_000),
        "open boxes": b"%PDF-1.4" + b"/MediaBox [0 0 " * 200_000,
    }


@pytest.mark.parametrize("name", hostile())
def test_the_work_for_a_hostile_document_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked, whole = [], media_module._unpacked

    def counted(packed: bytes, limit: int) -> bytes | None:
        unpacked.append(len(whole(packed, limit) or b""))
        return whole(packed, limit)

    monkeypatch.setattr(media_module, "_unpacked", counted)
    found = read(hostile()[name])
    assert 1 <= found.pages <= MOST_PAGES
    assert sum(unpacked) <= media_module.MOST_UNPACKED + media_module.LARGEST_STREAM


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"caf\xc3\xa9\n", "caf\u00e9\n"),
        (b"\xef\xbb\xbfa,b", "a,b"),
        (b"PK\x03\x04", ""),
        (b"GIF89a\0\0", ""),
        (b"\xff\xfe", ""),
        (b"", ""),
    ],
)
def test_a_file_of_text_is_its_text(data: bytes, text: str) -> None:
    encoded = b64encode(data).decode()
    assert file_of(encoded) == Media("file", len(encoded), text=text)


@given(
    st.binary(max_size=200),
    st.sampled_from([b"", b"%PDF-", b"%PDF-1.4 stream\n", b"%PDF-1.4 /Filter/FlateDecode stream\n"]),
)
def test_no_document_breaks_the_reader(data: bytes, head: bytes) -> None:
    found = read(head + data)
    assert found.pages >= bool(head)


def test_every_format_s_files_are_read() -> None:
    data = b64encode(pdf(said(b"hello"))).decode()
    url = f"data:application/pdf;base64,{data}"
    document: dict[str, Any] = {"type": "base64", "media_type": "application/pdf", "data": data}
    inside = {"type": "tool_result", "content": [{"type": "document", "source": document}]}
    for media in (
        read_part({"type": "file", "file": {"filename": "a.pdf", "file_data": url}}),
        read_item_part({"type": "input_file", "filename": "a.pdf", "file_data": url}),
        *media_in([{"type": "document", "source": document}, inside]),
    ):
        assert (media.kind, media.pages, media.glyphs, media.width, media.height) == ("file", 1, 5, 612, 792)
        assert media.size >= len(data)
    assert read_item_part({"type": "input_file", "file_url": "https://a.example/b.pdf"}) == Media("file", 23)

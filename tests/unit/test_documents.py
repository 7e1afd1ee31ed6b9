"""Documents: pages and glyphs of PDFs, and the text of text files, whatever somebody sends as one."""

from __future__ import annotations

import zlib
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.conversation.messages import Media
from app.formats import media as media_module
from app.formats.chat_completions.format import read_media as read_part
from app.formats.media import GLYPHS_UNREAD, MOST_PAGES, file_of
from app.formats.messages.messages import media_in
from app.formats.responses.format import read_media as read_item_part

PACK = b" /Filter /FlateDecode"


def stream(content: bytes, about: bytes = b"") -> bytes:
    return b"<<%b /Length %d>>\nstream\n%b\nendstream" % (about, len(content), content)


def pdf(*contents: bytes, packed: bool = True, box: bytes = b"[0 0 612 792]", more: bytes = b"") -> bytes:
    """A page for each content."""
    pages = b"".join(b"%d 0 obj <</Type /Page /MediaBox %b>> endobj\n" % (10 + at, box) for at in range(len(contents)))
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


def test_what_is_no_base64_is_unknown() -> None:
    assert file_of("data:,\u00e9", 1) == file_of("a") == Media("file", 1)


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

"""Encodings are undone to the byte, however they are cut, and never further than was asked for."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.http.encodings import KINDS, MOST_MEMBERS, PIECE_BYTES, DecodedTooLarge, UndecodableBody, decoded, encoding_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENCODE: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd.compress}
each = pytest.mark.parametrize("name", ENCODE)


def undone(encoding: str, data: bytes, at_most: int = 10**9) -> bytes:
    return b"".join(decoded(data, encoding, at_most))


@given(
    body=st.binary(max_size=300) | st.sampled_from([b"x" * PIECE_BYTES, b"x" * (PIECE_BYTES + 1), b"ab" * PIECE_BYTES]),
    name=st.sampled_from(sorted(ENCODE)),
)
def test_an_encoding_is_undone(body: bytes, name: str) -> None:
    assert undone(name, ENCODE[name](body)) == body


@each
def test_what_is_cut_or_goes_on_is_not_decoded(name: str) -> None:
    data = ENCODE[name](b"hello" * 1_000)
    for broken in (*(data[:stop] for stop in range(len(data))), data + b"junk"):
        with pytest.raises(UndecodableBody):
            undone(name, broken)


@each
def test_no_more_is_decoded_than_may_come_of_it(name: str) -> None:
    data = ENCODE[name](b"\0" * 10_000_000)
    assert len(undone(name, data, 10_000_000)) == 10_000_000
    with pytest.raises(DecodedTooLarge):
        undone(name, data, 9_999_999)


@each
def test_nothing_is_decoded_before_it_is_asked_for(name: str) -> None:
    [first] = islice(decoded(ENCODE[name](b"\0" * 10_000_000), name, 10**12), 1)
    assert len(first) <= PIECE_BYTES


def test_members_follow_each_other_up_to_a_number() -> None:
    assert undone("gzip", gzip.compress(b"a") * MOST_MEMBERS) == b"a" * MOST_MEMBERS
    with pytest.raises(UndecodableBody):
        undone("gzip", gzip.compress(b"") * (MOST_MEMBERS + 1))


def test_a_frame_that_wants_much_memory_is_not_decoded() -> None:
    wide = zstd.compress(bytes(range(256)) * 80_000, options={zstd.CompressionParameter.window_log: 25})
    with pytest.raises(UndecodableBody):
        undone("zstd", wide)


@pytest.mark.parametrize(
    ("sent", "encoding"), [("GZIP", "gzip"), ("identity, ", ""), ("gzip, br", "gzip,br"), ("gzip, identity", "gzip")]
)
def test_several_encodings_are_none_that_is_known(sent: str, encoding: str) -> None:
    assert encoding_of([(b"content-encoding", sent.encode())]) == encoding
    assert (encoding in KINDS) == (encoding == "gzip")

"""Encodings are undone to the byte, however they are cut, and never further than was asked for."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.http.encodings import MOST_MEMBERS, PIECE_BYTES, DecodedTooLarge, UndecodableBody, decoded, decoders

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENCODE: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}
each = pytest.mark.parametrize("name", ENCODE)


def undone(encodings: str, data: bytes, at_most: int = 10**9) -> bytes:
    by = decoders(encodings, at_most)
    assert by is not None
    return b"".join(decoded(data, by))


@given(
    body=st.binary(max_size=300) | st.sampled_from([b"x" * PIECE_BYTES, b"x" * (PIECE_BYTES + 1), b"ab" * PIECE_BYTES]),
    names=st.lists(st.sampled_from(sorted(ENCODE)), min_size=1, max_size=3),
)
def test_layers_are_undone_in_their_order(body: bytes, names: list[str]) -> None:
    data = body
    for name in names:
        data = ENCODE[name](data)
    assert undone(", ".join(names), data) == body


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
    by = decoders(name, 10**12)
    assert by is not None
    [first] = islice(decoded(ENCODE[name](b"\0" * 10_000_000), by), 1)
    assert len(first) <= PIECE_BYTES


def test_members_follow_each_other_up_to_a_number() -> None:
    assert undone("gzip", gzip.compress(b"a") * MOST_MEMBERS) == b"a" * MOST_MEMBERS
    with pytest.raises(UndecodableBody):
        undone("gzip", gzip.compress(b"") * (MOST_MEMBERS + 1))


def test_a_frame_that_wants_much_memory_is_not_decoded() -> None:
    wide = zstd.compress(bytes(range(256)) * 80_000, options={zstd.CompressionParameter.window_log: 25})
    with pytest.raises(UndecodableBody):
        undone("zstd", wide)


def test_unknown_encodings_and_too_many_are_said() -> None:
    assert decoders("br", 1) is None
    assert decoders("gzip, br", 1) is None
    assert decoders("gzip,gzip,gzip,gzip", 1) is None
    assert decoders("identity, ", 1) == []

"""The recorded corpus: what is of chance or of the clock is replaced, what is not stays, and a difference is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.benchmarks.corpus.cases import GROUPS
from lab.benchmarks.corpus.comparing import difference, differences
from lab.benchmarks.corpus.recording import Placeholders

HEAD = b"HTTP/1.1 200 OK"


def replaced(data: bytes, *own: bytes) -> bytes:
    return Placeholders(4711, own).replaced(data)


def test_what_is_of_chance_is_numbered_by_its_first_appearance() -> None:
    first, second = b"req_" + b"a" * 24, b"req_" + b"b" * 24
    assert replaced(b"%b %b %b" % (first, second, first)) == b"<request 1> <request 2> <request 1>"


def test_numbers_go_on_through_a_case() -> None:
    placeholders = Placeholders(4711)
    assert placeholders.replaced(b"use_" + b"a" * 24) == b"<usage 1>"
    assert placeholders.replaced(b"use_%b use_%b" % (b"b" * 24, b"a" * 24)) == b"<usage 2> <usage 1>"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'"created":1795257889,', b'"created":<time>,'),
        (b'"created_at":"2026-11-21T10:48:13.714000Z"', b'"created_at":"<time>"'),
        (b'"created_at":"2026-11-21T10:48:13Z"', b'"created_at":"<time>"'),
        (b'"expires_at":-1795345232846}', b'"expires_at":<time>}'),
        (b"HTTP/1.1 200 OK\r\nDate: Sat, 21 Nov 2026 10:48:13 GMT\r\nx: y", b"HTTP/1.1 200 OK\r\nDate: <time>\r\nx: y"),
        (b"host: 127.0.0.1:4711\r\n", b"host: <provider>\r\n"),
    ],
)
def test_the_clock_and_the_port_are_hidden(data: bytes, expected: bytes) -> None:
    assert replaced(data) == expected


@pytest.mark.parametrize(
    "data",
    [
        b'{"id":"chk_b2ab9f20c23cdfefa7c90af44dddb990","conversation":"conv_5c1d0a8e6f0b4d4d9d4c3c1f"}',
        b'{"id":"chatcmpl-provider","created":1234567890,"n":179525788912}',
        b'"id":"cmp_d392bc3d09857d87200b001b", "at": "2019-11-21T10:48:13Z"',
        b"x-request-id: req-provider\r\nretry-after: 30",
    ],
)
def test_everything_else_stays_to_the_byte(data: bytes) -> None:
    assert replaced(data) == data


def test_only_the_hop_of_this_steno_is_of_chance() -> None:
    hops = b"steno-hops: 0123456789abcdef, fedcba9876543210\r\nx: y"
    assert replaced(hops) == b"steno-hops: 0123456789abcdef, <hop 1>\r\nx: y"


def test_a_case_may_name_more_that_is_of_chance() -> None:
    assert replaced(b"conv_aa conv_bb conv_aa", rb"conv_[ab]+") == b"<chance 1> <chance 2> <chance 1>"


def test_a_right_length_is_right_for_what_is_kept() -> None:
    body = b"req_" + b"a" * 24
    kept = Placeholders(4711).message(HEAD + b"\r\nContent-Length: 28\r\nx: 28", body)
    assert kept == HEAD + b"\r\nContent-Length: 11\r\nx: 28\r\n\r\n<request 1>"


def test_a_wrong_length_stays_wrong() -> None:
    assert (
        Placeholders(4711).message(HEAD + b"\r\ncontent-length: 9", b"{}") == HEAD + b"\r\ncontent-length: 9\r\n\r\n{}"
    )


def test_a_difference_is_told_with_its_place() -> None:
    told = difference(b"=== 1: to Steno ===\nsame\r\nx: 1", b"=== 1: to Steno ===\nsame\r\nx: 2")
    assert told == "line 3 in '1: to Steno'\n  - b'x: 1'\n  + b'x: 2'"
    assert difference(b"a\nb", b"a") == "line 2 in ''\n  - b'b'\n  + (no more lines)"
    assert difference(b"a", b"a") is None


def test_a_case_that_one_recording_lacks_is_a_difference(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name / "group").mkdir(parents=True)
        (tmp_path / name / "group" / "case").write_bytes(b"same")
    one, other = tmp_path / "one", tmp_path / "other"
    assert not list(differences(one, other))
    (other / "group" / "more").write_bytes(b"")
    assert list(differences(one, other)) == [f"group/more: only in {other}"]


def test_a_folder_without_a_recording_is_no_success(tmp_path: Path) -> None:
    assert list(differences(tmp_path, tmp_path)) == [f"There is no recording in {tmp_path}."]


def test_no_two_cases_of_a_group_have_the_same_name() -> None:
    for group in GROUPS:
        names = [case.name for case in group.cases]
        assert len(set(names)) == len(names), group.name
        assert all("/" not in name and name.isascii() for name in names), group.name

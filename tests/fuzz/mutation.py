"""Mutations: from bytes that make sense to bytes that hardly do, the same ones for the same seed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

LONGEST = 20_000

NUMBERS = (
    *(b"0", b"-0", b"-1", b"0.5", b"1e999", b"-1e999", b"1e-999", b"007", b"NaN", b"Infinity", b"-Infinity"),
    *(b"1" + b"0" * 400, b"9" * 5_000, b"18446744073709551616", b"9223372036854775808", b"9007199254740993", b"1_000"),
)
TOKENS = (
    *(b"", b" ", b"\n", b"\r\n", b"\r", b"\n\n", b"\t", b"\0", b"\v", b"\x85", b"\xff", b"\xc3", b"\xed\xa0\x80"),
    *(b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b"{}", b"[]", b'""', b"null", b"true", b"[" * 8, b'{"a":' * 9),
    *(b'"\\ud800"', b'"\\u0000"', b'"a\\"b"', b"'", b"\xef\xbb\xbf", "\u2028\u00e9\U0001f600".encode(), b"<", b">"),
    *(b"data:", b"data: ", b"event:", b": ", b"[DONE]", b"id:", b"retry: 1", b"finish_reason", b"usage", b"error"),
    *(b"role", b"choices", b"delta", b"content", b"messages", b"model", b"index", b"tool_calls", b"arguments"),
    *(b"%", b"%2F", b"%00", b"%ff", b"%c3%28", b"..", b"/", b";", b"?", b"#", b"\\", b"_", b"-", b"Bearer ", b"GMT"),
)
_NUMBER = re.compile(rb"-?\d[\d.eE+-]*")

Mutation = Callable[[bytes, Random, Sequence[bytes]], bytes]


def _span(data: bytes, random: Random) -> tuple[int, int]:
    start = random.randint(0, len(data))
    return start, min(len(data), start + random.choice((1, 1, 2, 4, 16, 64, 256)))


def _removed(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    start, stop = _span(data, random)
    return data[:start] + data[stop:]


def _repeated(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    start, stop = _span(data, random)
    return data[:stop] + data[start:stop] * random.choice((1, 2, 10, 100)) + data[stop:]


def _moved(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    start, stop = _span(data, random)
    place = random.randint(0, len(data))
    return data[:place] + data[start:stop] + data[place:]


def _with_token(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    start, stop = _span(data, random)
    return data[:start] + random.choice(TOKENS) + data[random.choice((start, stop)) :]


def _with_byte(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    place = random.randint(0, len(data))
    return data[:place] + bytes([random.randrange(256)]) + data[place + 1 :]


def _with_number(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    found = [match.span() for match in _NUMBER.finditer(data)]
    start, stop = random.choice(found) if found else _span(data, random)
    return data[:start] + random.choice(NUMBERS) + data[stop:]


def _crossed(data: bytes, random: Random, seeds: Sequence[bytes]) -> bytes:
    other = random.choice(seeds)
    return data[: random.randint(0, len(data))] + other[random.randint(0, len(other)) :]


def _cut(data: bytes, random: Random, _: Sequence[bytes]) -> bytes:
    return data[: random.randint(0, len(data))]


MUTATIONS: Sequence[Mutation] = (
    *(_removed, _repeated, _moved, _with_token, _with_token, _with_byte, _with_number, _with_number, _crossed, _cut),
)


def mutated(random: Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds, changed in a few places; sometimes as it is."""
    data = random.choice(seeds)
    for _ in range(random.choice((0, 1, 1, 1, 2, 3, 5, 8))):
        data = random.choice(MUTATIONS)(data, random, seeds)[:LONGEST]
    return data

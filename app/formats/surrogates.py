"""Lone surrogates: halves of a pair that JSON can write as escapes, and that no UTF-8 can hold.

A client that cuts a text in the middle of an emoji sends one, and providers take it. Our decoder refuses the whole of
such JSON, so it reads a copy with another escape in place of each: of the same length, so that all values stand where
they stand in the original, whose own bytes are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")

_LONE = re.compile(
    # Escaped backslashes and whole pairs are stepped over.
    rb"(?:\\\\)++|(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})++"
    rb"|\\u[dD](?P<first>[89a-fA-F])(?P<rest>[0-9a-fA-F]{2})"
)
BLOCK = 65_536
"""Bytes that are looked at in one step: other threads wait for the end of each."""
ESCAPE = 6
"""Bytes of an escape, which may begin in one step and end in the next."""
_ANY = re.compile(rb"\\u[dD][89a-fA-F]")


def decoded(json: bytes | msgspec.Raw, decode: Callable[[bytes | msgspec.Raw], T]) -> T:
    """The result of `decode` for JSON, with U+FFFD in place of lone surrogates. Raises what it raises of anything
    else."""
    try:
        return decode(json)
    except msgspec.DecodeError:
        given = bytes(json)
        if (whole := replaced(given)) is given:
            raise
        return decode(whole)


def replaced(json: bytes) -> bytes:
    """JSON with U+FFFD in place of each lone surrogate; the same object where it has none."""
    return _each(json, lambda _: rb"\ufffd")


def told_apart(json: bytes) -> bytes:
    """JSON with a character for private use in place of each lone surrogate, another one for every other; the same
    object where it has none. To compare by, not to be read."""
    return _each(json, lambda lone: rb"\ue%d%b" % (int(lone["first"], 16) - 8, lone["rest"].lower()))


def _may_hold_any(json: bytes) -> bool:
    return any(_ANY.search(json, start, start + BLOCK + ESCAPE) for start in range(0, len(json), BLOCK))


def _each(json: bytes, written: Callable[[re.Match[bytes]], bytes]) -> bytes:
    if b"\\u" not in json or not _may_hold_any(json):
        return json
    made = _LONE.sub(lambda found: found[0] if found["first"] is None else written(found), json)
    return json if made == json else made

"""The reader: a history that was seen is not read again, one that differs anywhere is, and memory has an end."""

from __future__ import annotations

import gc
import re
from collections.abc import Sequence

from app.conversation.messages import Message
from app.formats.chat_completions import read_message
from app.formats.reader import Draft, MessageReader
from app.runtime.caches import Caches
from tests.unit.conversations import IDENTITY


class Counting:
    """A reader, and what it has read."""

    def __init__(self, cache_bytes: int = 1 << 20) -> None:
        self.decoded: list[bytes] = []
        self.reader = MessageReader(IDENTITY, self._decode, caches=Caches(cache_bytes))

    def _decode(self, raw: bytes, ignore: Sequence[re.Pattern[str]]) -> Draft:
        self.decoded.append(raw)
        return read_message(raw, ignore)

    def read(self, texts: Sequence[str]) -> list[str]:
        """The texts, as they are read."""
        return [message.text for message in self.reader.read([raw(text) for text in texts])]


def raw(text: str) -> bytes:
    return b'{"role":"user","content":"%b"}' % text.encode()


def test_of_a_history_that_goes_on_only_what_is_new_is_read() -> None:
    counting, texts = Counting(), ["a", "b"]
    for number in range(5):
        texts = [*texts, f"{number}"]
        assert counting.read(texts) == texts
    assert counting.decoded == [raw(text) for text in texts]


def test_a_history_that_was_edited_in_its_middle_is_another_one() -> None:
    """With as many messages, and the same last one."""
    counting = Counting()
    assert counting.read(["a", "b", "z"]) == ["a", "b", "z"]
    assert counting.read(["a", "c", "z"]) == ["a", "c", "z"]
    assert counting.read(["a", "b", "z", "q"]) == ["a", "b", "z", "q"]


def test_a_reader_holds_no_more_than_it_may() -> None:
    """By what Python objects take: the messages' bytes, their texts, and the objects themselves."""
    gc.collect()
    before = held()
    counting = Counting(cache_bytes=100_000)
    for number in range(40):
        counting.read([f"{number} {place} {'x' * 1_000}" for place in range(20)])
    assert held() - before <= 2 * 100_000 // 3_000
    del counting
    gc.collect()
    assert held() == before


def held() -> int:
    return sum(isinstance(one, Message) for one in gc.get_objects())


MANY = [f"{number:04}" * 2_500 for number in range(40)]
"""Texts of which a reader for 100 kB may hold four, and four again in histories."""


def test_a_history_goes_with_the_one_that_grew_out_of_it() -> None:
    """Also where many conversations reach the same place with the same message, as agents do."""
    counting = Counting(cache_bytes=100_000)
    for text in MANY:
        counting.read([text])
        counting.read([text, "go on"])
    assert sum(counting.reader.unread_bytes([raw(text)]) == 0 for text in MANY) <= 9


def test_what_a_message_means_is_digested_with_the_mark_of_its_format() -> None:
    """The first format has none: what it stored before there were others is found again."""
    plain, marked, again = (
        MessageReader(IDENTITY, read_message, mark=mark).read([raw("a")])[0] for mark in ("", "other", "other")
    )
    assert plain.digest == IDENTITY.digest(b"message", read_message(raw("a"), ()).canonical)
    assert marked.digest == again.digest != plain.digest
    assert [message.text for message in (plain, marked)] == ["a", "a"]

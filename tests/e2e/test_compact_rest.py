"""Compaction as a service and on demand, search, and who the caller is."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, get, post, request_bytes, send
from tests.e2e.running import StartSteno

OTHER_KEY = b"authorization: Bearer sk-other"


def shown(answered: Answer) -> Any:
    assert answered.status == 200, answered.body
    return answered.json


def error(answered: Answer) -> Any:
    return answered.status, answered.json["error"]["param"], answered.json["error"]["message"]


def as_other(url: str, body: bytes | None, method: str, target: str) -> Answer:
    usual = (b"content-type: application/json", OTHER_KEY)
    return send(url, request_bytes(body, *usual, method=method, target=target, usual=False))


# Search


def search(url: str, query: str) -> Answer:
    return get(url, f"/context/search?{query}")


def test_summaries_are_found_by_a_part_of_their_text(steno: StartSteno) -> None:
    url = steno().url
    for name, first in (("one", 1), ("two", 101)):
        post(url, chat(turns(15, first=first), conversation_id=name))
    found = shown(search(url, "q=order+ord-0001"))
    assert [summary["conversation_id"] for summary in found["data"]] == ["one"]
    both = shown(search(url, "q=QUESTION"))
    assert [summary["conversation_id"] for summary in both["data"]] == ["two", "one"]
    assert both["data"][0] == shown(get(url, "/context/conversations/two/summaries"))["data"][0]
    first = shown(search(url, "q=question&limit=1"))
    assert first["has_more"]
    rest = shown(search(url, f"q=question&after={first['last_id']}"))
    assert [*first["data"], *rest["data"]] == both["data"]
    assert shown(search(url, "q=rd-0001")) == found
    assert shown(search(url, "q=ord_0001"))["data"] == []


def test_nobody_finds_anothers_summaries(steno: StartSteno) -> None:
    url = steno().url
    post(url, chat(turns(15), conversation_id="one"))
    theirs = as_other(url, None, "GET", "/context/search?q=question")
    assert shown(theirs)["data"] == []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("", "q"),
        ("q=", "q"),
        ("q=%20%09", "q"),
        (f"q={'a' * 201}", "q"),
        ("q=a&limit=101", "limit"),
        ("q=a&after=b", "after"),
    ],
)
def test_a_search_for_nothing_or_too_much_is_refused(steno: StartSteno, query: str, param: str) -> None:
    status, named, _ = error(search(steno().url, query))
    assert (status, named) == (400, param)


@pytest.mark.parametrize("query", ["\0", "x\\", "x'; --", 'x" OR y', " ".join("abcdefghij" * 10)[:200], "ä" * 200])
def test_any_text_can_be_looked_for(steno: StartSteno, query: str) -> None:
    assert shown(search(steno().url, f"q={quote(query)}"))["data"] == []

"""Corrected and deleted summaries, and what is sent from then on; the plan of the latest compaction."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.simulator import Simulator
from tests.e2e.histories import MODEL, chat, turns
from tests.e2e.raw import Answer, get, post, request_bytes, send
from tests.e2e.running import StartSteno, Steno

ONE = "/context/conversations/one"
SUMMARIES = f"{ONE}/summaries"
EDITED = "The customer's account is 7001, and order ORD-0003 was cancelled."
NAMED: Any = {"x-conversation-id": "one"}
RULES = {"role": "system", "content": "Be brief."}


def ask(steno: Steno, method: str, target: str, body: Any = None, key: bytes = b"sk-test") -> Answer:
    sent = None if body is None else json.dumps(body).encode()
    usual = (b"content-type: application/json", b"authorization: Bearer " + key)
    return send(steno.url, request_bytes(sent, *usual, method=method, target=target, usual=False))


def shown(answered: Answer) -> Any:
    assert answered.status == 200, answered.body
    return answered.json


def refused(answered: Answer) -> tuple[int, str, str | None]:
    error = answered.json["error"]
    return answered.status, error["code"], error["param"]


def say(steno: Steno, count: int = 15) -> Any:
    """The client resends its whole history, as ever."""
    messages: Any = [RULES, *turns(count)]
    return steno.sdk().chat.completions.create(model=MODEL, messages=messages, extra_headers=NAMED)


def made(steno: Steno) -> list[Any]:
    return list(shown(get(steno.url, SUMMARIES))["data"])


def payload(simulator: Simulator) -> list[Any]:
    return list(simulator.chats[-1].payload["messages"])


def test_after_an_edit_the_next_payload_carries_the_new_text(simulator: Simulator, steno: StartSteno) -> None:
    """And nothing else of it changes: the prefix before the summary, and the messages after it, are the same."""
    proxy = steno()
    say(proxy)
    before, [old] = payload(simulator), made(proxy)
    new = shown(ask(proxy, "PATCH", f"{SUMMARIES}/{old['id']}", {"text": EDITED}))
    assert (new["text"], new["prompt_version"]) == (EDITED, "edited")
    assert (new["values"], new["first_index"], new["last_index"]) == (old["values"], 0, old["last_index"])
    assert say(proxy).context["chunks"] == [new["id"]]
    after = payload(simulator)
    assert len(simulator.summaries) == 1
    assert after[0] == before[0] == RULES
    assert EDITED in after[1]["content"]
    assert old["text"] not in after[1]["content"]
    assert after[2:] == before[2:]
    assert made(proxy) == [new]


def test_values_and_rules_are_edited_beside_the_text(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno()
    say(proxy)
    [old] = made(proxy)
    new = shown(ask(proxy, "PATCH", f"{SUMMARIES}/{old['id']}", {"values": ["ORD-9999"], "rules": ["Never refund."]}))
    assert (new["text"], new["values"], new["rules"]) == (old["text"], ["ORD-9999"], ["Never refund."])
    say(proxy)
    assert "ORD-9999" in payload(simulator)[1]["content"]
    assert "Never refund." in payload(simulator)[1]["content"]


def test_what_changes_nothing_is_the_summary_as_it_is(steno: StartSteno) -> None:
    proxy = steno()
    say(proxy)
    [old] = made(proxy)
    assert shown(ask(proxy, "PATCH", f"{SUMMARIES}/{old['id']}", {"text": old["text"]})) == old
    assert made(proxy) == [old]


def test_after_a_deletion_the_next_request_is_compacted_anew(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno()
    say(proxy)
    [old] = made(proxy)
    gone = shown(ask(proxy, "DELETE", f"{SUMMARIES}/{old['id']}"))
    assert (gone["object"], gone["data"]) == ("summaries.deleted", [old["id"]])
    simulator.next_summary(text=" ".join(["Another account of the orders."] * 10))
    again = say(proxy)
    assert again.context_status == "summarized"
    assert len(simulator.summaries) == 2
    [new] = made(proxy)
    assert again.context["chunks"] == [new["id"]]
    assert "Another account" in payload(simulator)[1]["content"]


@pytest.mark.parametrize(
    ("body", "param", "told"),
    [
        ({}, "text", 'Send {"text": "..."}'),
        ({"text": 3}, "text", 'Send {"text": "..."}'),
        ({"text": " \n"}, "text", "empty"),
        ({"text": "word " * 3_000}, "text", "it may take"),
        ({"text": "x" * 200_001}, "text", "200000"),
        ({"values": "ORD-1"}, "values", "a list of texts"),
        ({"rules": ["one\ntwo"]}, "rules", "not one line"),
        ({"rules": [" "]}, "rules", "not one line"),
        ({"values": ["v"] * 1_001}, "values", "1001 lines"),
    ],
)
def test_an_edit_that_cannot_be_made_says_why(steno: StartSteno, body: Any, param: str, told: str) -> None:
    proxy = steno()
    say(proxy)
    [old] = made(proxy)
    answered = ask(proxy, "PATCH", f"{SUMMARIES}/{old['id']}", body)
    assert refused(answered) == (400, "invalid_request", param)
    assert told in answered.json["error"]["message"]
    assert made(proxy) == [old]


def test_who_comes_too_late_is_told_so(steno: StartSteno) -> None:
    proxy = steno()
    say(proxy)
    [old] = made(proxy)
    shown(ask(proxy, "PATCH", f"{SUMMARIES}/{old['id']}", {"text": EDITED}))
    for method, body in (("PATCH", {"text": "Late."}), ("DELETE", None)):
        assert refused(ask(proxy, method, f"{SUMMARIES}/{old['id']}", body)) == (404, "summary_not_found", None)
    assert refused(ask(proxy, "PATCH", f"{SUMMARIES}/none", {"text": "x"})) == (404, "summary_not_found", None)


def test_nobody_edits_what_is_another_tenants(simulator: Simulator, steno: StartSteno) -> None:
    """The same history under another key has a summary of its own, which keeps its text."""
    proxy = steno()
    say(proxy)
    [mine] = made(proxy)
    stranger = b"sk-other"
    body = chat([RULES, *turns(15)], conversation_id="one")
    send(proxy.url, request_bytes(body, b"content-type: application/json", b"authorization: Bearer " + stranger))
    for method, sent in (("PATCH", {"text": EDITED}), ("DELETE", None)):
        answered = ask(proxy, method, f"{SUMMARIES}/{mine['id']}", sent, key=b"sk-third")
        assert refused(answered)[:2] == (404, "summary_not_found")
    [theirs] = shown(ask(proxy, "GET", SUMMARIES, key=stranger))["data"]
    shown(ask(proxy, "PATCH", f"{SUMMARIES}/{theirs['id']}", {"text": EDITED}, key=stranger))
    say(proxy)
    assert EDITED not in payload(simulator)[1]["content"]
    assert made(proxy) == [mine]


# The plan


def test_the_plan_says_how_the_latest_changed_payload_came_about(steno: StartSteno) -> None:
    proxy = steno()
    say(proxy, 2)
    assert shown(get(proxy.url, f"{ONE}/plan")) == {
        "conversation_id": "one",
        "object": "conversation.plan",
        "plan": None,
    }
    said = say(proxy)
    told = shown(get(proxy.url, f"{ONE}/plan"))["plan"]
    assert told["window"] == 8_000
    assert (told["window_source"], told["turn"], told["context_status"]) == ("config", 16, "summarized")
    assert told["estimated"] == said.context["tokens"]["estimated"] > told["trigger"] > told["target"] > told["floor"]
    assert told["forwarded"] == said.context["tokens"]["forwarded"]
    assert [(step["step"], step["outcome"]) for step in told["steps"]] == [
        ("stored", "too_large"),
        ("summarise", "made"),
        ("least", "sent"),
    ]
    assert told["steps"][-1]["tokens"] == told["forwarded"]
    assert f"{told['estimated']:,}" in told["words"][0]
    say(proxy, 1)
    assert shown(get(proxy.url, f"{ONE}/plan"))["plan"] == told
    assert told["request_id"] in {each["request_id"] for each in shown(get(proxy.url, f"{ONE}/usage"))["data"]}


def test_the_plan_says_why_nothing_could_be_done(simulator: Simulator, steno: StartSteno) -> None:
    for _ in range(4):
        simulator.next_summary(text="Too short.")
    proxy = steno()
    say(proxy)
    told = shown(get(proxy.url, f"{ONE}/plan"))["plan"]
    assert [step["outcome"] for step in told["steps"] if step["step"] == "summarise"] == ["failed"]
    assert told["reason"] == "summary_too_short"
    assert any("could not be made: summary_too_short" in sentence for sentence in told["words"])


def test_a_dry_run_shows_the_same_plan_as_the_request_that_follows(steno: StartSteno) -> None:
    proxy = steno()
    body = chat([RULES, *turns(15)], conversation_id="one")
    dry = shown(post(proxy.url, body, target="/context/plan"))["plan"]
    post(proxy.url, body)
    real = shown(get(proxy.url, f"{ONE}/plan"))["plan"]
    numbers = ("window", "window_source", "limit", "trigger", "target", "floor", "estimated", "turn")
    assert [dry[name] for name in numbers] == [real[name] for name in numbers]
    names = [[(step["step"], step["outcome"]) for step in plan["steps"]] for plan in (dry, real)]
    assert names[0] == names[1]
    assert shown(post(proxy.url, chat([RULES, *turns(2)]), target="/context/plan"))["plan"] is None

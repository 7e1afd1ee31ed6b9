"""Recall: a question about what was summarised has the detail before it, in every format, and only its own."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from random import Random
from typing import Any

import httpx2
import pytest

from app.compaction.recall import RecallPolicy
from lab.simulator import Fault, Simulator
from tests.e2e.histories import calls, result, turns, used
from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.test_three_formats import ALL, CHAT, Written
from tests.e2e.thinkers import Thinker, script_calls, turn

DETAIL = "The locker is behind the north stairs, code KX-4471, and the key hangs in the pantry."
QUESTION = "What is the code of the locker behind the north stairs?"


def history(detail: str = DETAIL, question: str = QUESTION) -> list[Any]:
    said = turns(15)
    said[2:2] = [{"role": "user", "content": detail}, {"role": "assistant", "content": "I keep that in mind."}]
    return [*said[:-1], {"role": "user", "content": question}]


@pytest.fixture
def running(steno: StartSteno) -> Steno:
    return started(steno)


def started(steno: StartSteno, **sections: Any) -> Steno:
    formats = {"formats": [each.name for each in ALL]}
    return steno(upstream=formats, compaction={"background": {"enabled": False}}, **sections)


def ask(running: Steno, written: Written, *headers: bytes, target: str = "", **members: Any) -> Answer:
    raw = json.dumps(written.body(history(), **members)).encode()
    usual = b"content-type: application/json", b"authorization: Bearer sk-test", *headers
    request = request_bytes(raw, *usual, target=target or written.path, usual=False)
    return send(running.url, request, timeout=30.0)


def told(answered: Answer, name: str = "messages") -> Any:
    assert answered.status == 200, answered.body
    return answered.json[name]


def sent(simulator: Simulator, written: Written) -> list[str]:
    """The texts of the provider's last payload."""
    return [json.dumps(item, ensure_ascii=False) for item in simulator.chats[-1].payload[written.history]]


def before_the_question(simulator: Simulator, written: Written) -> str:
    """What was recalled; empty where nothing was."""
    payload = "\n".join(sent(simulator, written))
    assert payload.count(QUESTION) == 1
    before, _, _ = payload.partition(QUESTION)
    return before.rpartition("<recalled ")[2] if "<recalled " in before else ""


def test_where_no_summary_can_be_made_an_agent_keeps_its_plan_while_the_same_is_left_out(
    simulator: Simulator, steno: StartSteno
) -> None:
    simulator.summary_default = Fault(status=503)
    running = started(steno)
    plan = calls("a", tool="TodoWrite", arguments=json.dumps({"todos": [{"content": "Mend the lexer"}]}))
    said = [{"role": "user", "content": "Mend it."}, plan, result("a", "ok"), *turns(12, words=400)[:-1]]
    noted: list[str] = []
    for name in "bcd":
        said += used(name, f"File {name}.")
        raw = json.dumps(CHAT.body([*said, {"role": "user", "content": "Go on."}])).encode()
        answered = send(running.url, request_bytes(raw), timeout=30.0)
        assert {"stub", "recalled"} <= {*told(answered, "context")["actions"]}
        noted += [text for text in sent(simulator, CHAT) if "State of the work" in text]
    assert len(noted) == 3
    assert len({*noted}) == 1
    assert "Mend the lexer" in noted[0]


def test_off_by_its_setting_and_past_its_length(
    simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    compaction: Any = {"background": {"enabled": False}, "recall": {"max_ratio": 0}}
    assert told(ask(steno(compaction=compaction), CHAT), "context")["actions"] == ["summarized", "user_words"]
    del compaction["recall"]
    monkeypatch.setattr("app.settings.policies.RecallPolicy", partial(RecallPolicy, history_tokens=1_000))
    context = told(ask(steno(compaction=compaction), CHAT), "context")
    assert context["actions"] == ["summarized", "user_words"]
    assert "recall" in context["reason"]
    assert not before_the_question(simulator, CHAT)


@pytest.mark.slow
def test_tenants_and_conversations_never_see_each_others_words(simulator: Simulator, running: Steno) -> None:
    """All ask alike, with histories that differ in one word each."""

    async def play() -> list[tuple[str, int]]:
        async with httpx2.AsyncClient(timeout=60.0) as client:

            async def one(tenant: int, talk: int) -> tuple[str, int]:
                said = history(DETAIL.replace("KX-4471", f"KX-{tenant}{talk}99"))
                body = CHAT.body(said, conversation_id=f"talk {talk}", user=f"{tenant}{talk}")
                headers = {"authorization": f"Bearer sk-{tenant}"}
                answered = await client.post(f"{running.url}{CHAT.path}", json=body, headers=headers)
                return f"KX-{tenant}{talk}99", answered.status_code

            return await asyncio.gather(*(one(tenant, talk) for tenant in range(3) for talk in range(3) for _ in "ab"))

    codes = asyncio.run(play())
    assert {status for _, status in codes} == {200}
    seen = []
    for record in simulator.chats:
        own = f"KX-{record.payload['user']}99"
        payload = record.body.decode()
        assert [code for code, _ in codes if code in payload and code != own] == []
        assert own in payload
        seen.append(own)
    assert sorted(seen) == sorted(code for code, _ in codes)


def test_replicas_on_one_database_send_the_same_bytes(
    simulator: Simulator, steno: StartSteno, postgres_url: str
) -> None:
    """One has read the conversation all along, the other sees its end only."""
    first, second = (started(steno, storage={"url": postgres_url}) for _ in range(2))
    said = history()
    steps = [
        *used("c1", "Nothing in the pantry.", "look_up"),
    ]
    prefix = ""
    for more in ([], steps):
        bodies = []
        for replica in (first, second) if more else (first,):
            body = json.dumps(CHAT.body([*said, *more], conversation_id="same")).encode()
            answered = send(replica.url, request_bytes(body), timeout=30.0)
            assert "recalled" in told(answered, "context")["actions"]
            bodies.append(simulator.chats[-1].body)
        assert len(set(bodies)) == 1
        text = json.dumps(simulator.chats[-1].messages)[:-1]
        assert text.startswith(prefix), "through all steps of a turn"
        prefix = text


@pytest.mark.sampled(0.4)
def test_thinking_is_taken_back_that_was_made_behind_quotations(simulator: Simulator, steno: StartSteno) -> None:
    """Each turn quotes something else, and what it is made behind stays before it."""
    script_calls(simulator)
    thinkers = [_Curious(number, streams=number == 1) for number in (0, 1)]
    url = steno().url

    async def play() -> None:
        async with httpx2.AsyncClient(timeout=60.0) as client:
            for _ in range(40):
                for thinker in thinkers:
                    await turn(client, thinker, iter(lambda: url, None))

    asyncio.run(play())
    for thinker in thinkers:
        assert not thinker.refusals
        assert thinker.compactions >= 1
        assert sum("recalled" in acts for acts in thinker.acts) >= 3


class _Curious(Thinker):
    """It tells of something in each turn, and in each third asks for what it told some turns ago instead."""

    def __init__(self, number: int, *, streams: bool) -> None:
        super().__init__(number, Random(number), streams=streams)
        self.asked = 0

    def ask(self) -> None:
        super().ask()
        place = len(self.history)
        self.asked += 1
        said = f"The zephyr{self.asked:03d} chest is under bridge {place}. " + "so it was agreed " * 40
        if self.asked > 9 and self.asked % 3 == 0:
            said = f"Where is the zephyr{self.asked - 8:03d} chest? "
        self.history[-1]["content"] = said + "CALL1"

"""Recall: every replica quotes the same bytes, through all steps of a turn."""

from __future__ import annotations

import json
from typing import Any

from lab.simulator import Simulator
from tests.e2e.histories import chat, turns, used
from tests.e2e.raw import post
from tests.e2e.running import StartSteno

SAID: Any = [
    *turns(1)[:2],
    {"role": "user", "content": "The locker is behind the north stairs, code KX-4471, and the key is in the pantry."},
    {"role": "assistant", "content": "I keep that in mind."},
    *turns(14, first=2)[:-1],
    {"role": "user", "content": "What is the code of the locker behind the north stairs?"},
]


def test_replicas_on_one_database_send_the_same_bytes(
    simulator: Simulator, steno: StartSteno, postgres_url: str
) -> None:
    """One has read the conversation all along, the other sees its end only."""
    settings = {"storage": {"url": postgres_url}, "compaction": {"background": {"enabled": False}}}
    first, second = (steno(**settings) for _ in range(2))
    prefix = ""
    for more in ([], used("c1", "Nothing in the pantry.", "look_up")):
        for replica in (first, second) if more else (first,):
            answered = post(replica.url, chat([*SAID, *more], conversation_id="same"), timeout=30.0)
            assert "recalled" in answered.json["context"]["actions"]
        assert len({record.body for record in simulator.chats[-1 - bool(more) :]}) == 1
        text = json.dumps(simulator.chats[-1].messages)[:-1]
        assert text.startswith(prefix)
        prefix = text

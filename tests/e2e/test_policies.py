"""Which policy decides about a request, and what the operator adds to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from app.settings import policies
from app.settings.presets import PRESET_NAMES, PRESETS
from lab.simulator import Simulator
from tests.e2e.histories import chat, long_history, turns
from tests.e2e.raw import Answer, get, post
from tests.e2e.running import StartSteno

SLIDING = b"x-context-preset: sliding-window"


def actions(answered: Answer) -> list[str]:
    done: list[str] = json.loads(answered.body)["context"]["actions"]
    return done


def payload(simulator: Simulator) -> list[Any]:
    messages: list[Any] = simulator.chats[-1].payload["messages"]
    return messages


# Choice


def test_a_request_chooses_its_preset_in_the_body_or_in_a_header(steno: StartSteno) -> None:
    proxy = steno()
    history = turns(30, words=90)
    assert actions(post(proxy.url, chat(history, context={"preset": "sliding-window"}))) == ["pruned"]
    assert actions(post(proxy.url, chat(history), SLIDING)) == ["pruned"]
    assert actions(post(proxy.url, chat(history, context={"preset": "default"}), SLIDING)) == ["summarized"]


def test_a_models_preset_wins_over_the_upstreams_and_that_over_the_settings(steno: StartSteno, provider: Any) -> None:
    other = {"base_url": f"{provider.url}/v1", "discover_windows": False, "models": ["llama-*"], "preset": "off"}
    models = [
        {"match": "llama-slide", "context_window": 8_000, "preset": "sliding-window"},
        {"match": "*", "context_window": 8_000},
    ]
    proxy = steno(upstreams={"other": other}, models=models)
    found = {}
    for model in ("gpt-4o", "llama-3", "llama-slide"):
        answered = post(proxy.url, chat(turns(24, words=105), model=model))
        found[model] = (answered.header("x-context-reason"), actions(answered))
    assert found == {
        "gpt-4o": (None, ["summarized"]),
        "llama-3": ("compaction_off", []),
        "llama-slide": (None, ["pruned"]),
    }


def test_a_preset_that_nobody_knows_is_refused_with_those_there_are(simulator: Simulator, steno: StartSteno) -> None:
    answered = post(steno().url, chat(context={"preset": "libre"}))
    error = json.loads(answered.body)["error"]
    assert (answered.status, error["param"]) == (400, "context.preset")
    assert "'libre'" in error["message"]
    assert all(name in error["message"] for name in PRESET_NAMES)
    assert not simulator.log


def test_switched_off_for_all_no_request_switches_it_on(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(compaction={"enabled": False})
    for preset in PRESET_NAMES:
        answered = post(proxy.url, chat(long_history(), context={"preset": preset}))
        assert actions(answered) == []
        assert simulator.chats[-1].payload["messages"] == long_history()


def test_summaries_of_one_strategy_are_none_for_another(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno()
    for preset in ("default", "rolling", "default", "rolling"):
        post(proxy.url, chat(long_history(), context={"preset": preset}))
    assert len(simulator.summaries) == 2


# What the operator adds


def test_the_operators_text_follows_the_pinned_copies_each_time(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(compaction={"pinned_text": "Never promise a refund."})
    history = long_history()
    for _ in range(2):
        answered = post(proxy.url, chat(history, context={"pin": [2]}))
        sent = payload(simulator)
        assert actions(answered) == ["summarized", "pinned"]
        assert sent[1] == history[2]
        assert sent[2] == {"role": "user", "content": "Never promise a refund."}
        history = [*history, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
    short = chat()
    post(proxy.url, short)
    assert simulator.chats[-1].body == short


def test_a_model_or_a_tenant_has_prompts_of_its_own(simulator: Simulator, steno: StartSteno) -> None:
    first = steno()
    tenant = json.loads(get(first.url, "/context/tenant").body)["id"]
    prompts = [
        {"model": "law-*", "prompt": "Write for a lawyer."},
        {"tenant": tenant, "prompt": "Write for a doctor.", "pinned_text": "No diagnosis."},
    ]
    proxy = steno(summary={"prompts": prompts})
    for first_turn, model in enumerate(("law-1", "gpt-4o"), 1):
        post(proxy.url, chat(turns(15, first=first_turn), model=model))
    lawyer, doctor = (record.payload["messages"][0]["content"] for record in simulator.summaries)
    assert lawyer.startswith("Write for a lawyer.")
    assert doctor.startswith("Write for a doctor.")
    assert [m["content"] for m in payload(simulator)].count("No diagnosis.") == 1
    post(proxy.url, chat(long_history()), b"authorization: Bearer sk-somebody-else")
    assert simulator.summaries[-1].payload["messages"][0]["content"].startswith("You write notes")


def test_a_summariser_that_reads_the_conversation_itself_gets_it_as_the_provider_did(
    simulator: Simulator, steno: StartSteno
) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    proxy = steno(summary={"style": "prefix"})
    history = [{"role": "system", "content": "be brief"}, *long_history()]
    post(proxy.url, chat(history, tools=[tool], temperature=0.1))
    (summary,) = simulator.summaries
    sent = summary.payload
    assert (sent["tools"], sent["tool_choice"]) == ([tool], "none")
    assert "temperature" not in sent
    shown = len(sent["messages"]) - 1
    assert sent["messages"][:shown] == history[:shown]
    assert sent["messages"][-1]["role"] == "user"
    assert "write only the notes" in sent["messages"][-1]["content"]


def test_a_summariser_that_goes_on_with_the_conversation_is_asked_again_with_quoted_text(
    simulator: Simulator, steno: StartSteno
) -> None:
    simulator.next_summary(text="Sorry, I cannot.")
    proxy = steno(summary={"style": "prefix"})
    assert actions(post(proxy.url, chat(long_history()))) == ["summarized"]
    first, second = simulator.summaries
    assert len(first.payload["messages"]) > 10
    assert [message["role"] for message in second.payload["messages"]] == ["system", "user"]


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    default = replace(PRESETS["default"], source_tokens=4_000)
    monkeypatch.setattr(policies, "PRESETS", {**PRESETS, "default": default})


@pytest.mark.usefixtures("_small_parts")
def test_a_history_far_too_long_is_summarised_in_parts_side_by_side(simulator: Simulator, steno: StartSteno) -> None:
    """Eight at a time: the ninth call waits for one of the first."""
    simulator.summary_default = type(simulator.summary_default)(delay=0.3)
    proxy = steno(summary={"max_tokens": 256})
    answered = post(proxy.url, chat(turns(90)))
    assert actions(answered)[0] == "summarized"
    began = sorted(record.at for record in simulator.summaries)
    assert len(began) > 8
    assert began[7] - began[0] < 0.3
    assert began[8] - began[0] >= 0.3


@pytest.mark.slow
@pytest.mark.usefixtures("_small_parts")
def test_a_long_history_whose_parts_fail_together_pauses_the_summariser_for_nobody_else(
    simulator: Simulator, steno: StartSteno
) -> None:
    working = simulator.summary_default
    simulator.summary_default = type(working)(status=500)
    proxy = steno(summary={"max_tokens": 256})
    assert "summarized" not in actions(post(proxy.url, chat(turns(90))))
    assert len(simulator.summaries) > 8
    simulator.summary_default = working
    assert actions(post(proxy.url, chat(long_history()))) == ["summarized"]

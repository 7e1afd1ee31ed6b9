"""LibreChat's checkpoints: lines C of checklist.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest

from lab.simulator import Fault, Record, Simulator
from tests.e2e.histories import chat, said, used
from tests.e2e.presets.checklist import checklist
from tests.e2e.presets.talks import RULES, Messages, lengthened, planned, sent, text_of
from tests.e2e.raw import Answer, get, post
from tests.e2e.running import StartSteno, Steno

NAMED = b"x-conversation-id: c-1"
PRICES: Any = [{"match": "gpt-4o", "prompt": 15, "completion": 75}]


def ask(proxy: Steno, messages: Messages, **members: Any) -> Answer:
    answered = post(proxy.url, chat(messages, **members), NAMED)
    assert answered.status == 200, answered.body
    return answered


# Checkpoints


def checkpoints(simulator: Simulator, steno: StartSteno, window: int = 180_000, **sections: Any) -> Steno:
    simulator.window = window
    simulator.summary_default = Fault(text="The list of ORD-0001 was read out. " * 20)
    models = [{"match": "*", "context_window": window}]
    return steno(models=models, compaction={"preset": "librechat-checkpoint"}, **sections)


def since(proxy: Steno, messages: Messages) -> int:
    """Tokens after the last checkpoint, as Steno estimates them."""
    return sum(part["tokens"] for part in planned(proxy, messages)["parts"] if part["kind"] == "verbatim")


def padded(proxy: Steno, messages: Messages, tokens: int) -> Messages:
    """With so many tokens after the last checkpoint: the last answer of the assistant is made longer."""
    while lacking := tokens - since(proxy, messages):
        # By halves: beyond the trigger a checkpoint would be planned, and little be left after it.
        messages = lengthened(messages, -2, " the" * ((lacking + 1) // 2))
    return messages


def prefix(words: int) -> Messages:
    """A turn of a little more than so many tokens, and a question: more words than checkpoints let pass."""
    return [
        RULES,
        said("user", "Read me the list."),
        said("assistant", "ORD-0001 and so on." + " the" * words),
        said("user", "And the next one?"),
    ]


def continued(messages: Messages, *further: str) -> Messages:
    """So many turns later."""
    return [
        *messages,
        *(
            message
            for text in further
            for message in (said("assistant", f"About {text}"), said("user", f"And {text}?"))
        ),
    ]


@checklist("C2")
def test_what_a_checkpoint_stands_for_does_not_count_towards_the_next(simulator: Simulator, steno: StartSteno) -> None:
    proxy = checkpoints(simulator, steno)
    talk = prefix(40_000)
    ask(proxy, talk)
    assert len(simulator.summaries) == 1
    later = padded(proxy, continued(talk, "shelf 1", "shelf 2"), 17_999)
    assert int(ask(proxy, later).header("x-context-tokens-before") or 0) > 57_000
    assert len(simulator.summaries) == 1
    ask(proxy, [*later[:-1], said("user", later[-1]["content"] + " the the")])
    assert len(simulator.summaries) == 2


@checklist("C3")
def test_after_a_checkpoint_everything_is_verbatim_and_in_order(simulator: Simulator, steno: StartSteno) -> None:
    proxy = checkpoints(simulator, steno)
    talk = prefix(18_000)
    for turn in range(3):
        told = ask(proxy, talk).json["choices"][0]["message"]["content"]
        payload = sent(simulator.chats[-1])
        assert payload[0] == RULES
        assert payload[1]["role"] == "user"
        assert payload[1]["content"].startswith("[Notes on messages 1 to 2 ")
        assert payload[2:] == talk[3:]
        assert len(payload[2:]) == (1, 3, 5)[turn]
        for message in talk[3:]:
            assert json.dumps(message).encode() in simulator.chats[-1].body
        talk = [*talk, said("assistant", told), said("user", f"Question {turn}: \u00e9t\u00e9?  Two spaces.")]
    assert len(simulator.summaries) == 1


@checklist("C4")
def test_the_checkpoint_prompt_asks_for_more_on_recent_messages(simulator: Simulator, steno: StartSteno) -> None:
    proxy = checkpoints(simulator, steno)
    talk = [RULES]
    for turn in range(6):
        talk += [said("user", f"Question {turn}?"), said("assistant", f"Answer {turn}." + " the" * 3_200)]
    talk.append(said("user", "And now?"))
    ask(proxy, talk)
    [record] = simulator.summaries
    rules, quoted = (message["content"] for message in sent(record))
    assert "Messages marked as recent deserve more detail than older ones" in rules
    headings = re.findall(r"^<[0-9a-f]{8} \d+ (.*)>$", quoted, re.MULTILINE)
    assert headings == ["user", "assistant"] * 4 + ["user, recent", "assistant, recent"] * 2
    ask(proxy, continued(talk, "that" + " the" * 18_000, "this"))
    update = sent(simulator.summaries[1])
    assert "There are notes so far" in update[0]["content"]
    assert "notes on messages 1 to 12>" in update[1]["content"]
    assert ", recent>" in update[1]["content"]


def agent_turn(talk: Messages, calls: int, words: int) -> list[Messages]:
    """The histories of a turn's requests, each with one more result than the one before."""
    histories = [talk]
    for number in range(calls - 1):
        histories.append([*histories[-1], *used(f"c{number}", "a shelf of books " * words, "look")])
    return histories


def usage(proxy: Steno) -> Any:
    told = get(proxy.url, "/context/conversations/c-1/usage?order=asc&limit=100")
    assert told.status == 200, told.body
    return told.json


def reported(records: Iterable[Record], name: str) -> int:
    """What the provider's own log says, added up."""
    return sum(record.usage[name] for record in records if record.usage)


@checklist("C5")
def test_a_turn_of_three_calls_is_shown_as_a_sum_with_its_first_prompt_apart(
    simulator: Simulator, steno: StartSteno
) -> None:
    proxy = checkpoints(simulator, steno, prices=PRICES)
    for history in agent_turn(prefix(18_000), 3, words=300):
        ask(proxy, history)
    prompts = [record.usage["prompt_tokens"] for record in simulator.chats if record.usage]
    told = usage(proxy)
    [turn] = told["turns"]
    assert turn["calls"] == 3
    assert turn["first_prompt"] == prompts[0] < prompts[1] < prompts[2]
    assert turn["prompt"] == sum(prompts)
    assert [record["purpose"] for record in told["data"]] == ["summary", "message", "message", "message"]
    for record in told["data"]:
        tokens = record["tokens"]
        assert record["rows"] == [
            {"kind": "prompt", "amount": -tokens["prompt"], "rate": 15, "value": -15 * tokens["prompt"]},
            {"kind": "completion", "amount": -tokens["completion"], "rate": 75, "value": -75 * tokens["completion"]},
        ]


@checklist("C6")
def test_the_second_checkpoint_replaces_the_first(simulator: Simulator, steno: StartSteno) -> None:
    proxy = checkpoints(simulator, steno)
    talk = prefix(18_000)
    simulator.next_summary(text="ORD-0001 was read out. " * 20)
    simulator.next_summary(text="ORD-0001 and ORD-0002 were read out. " * 20)
    shown = []
    for _ in range(2):
        ask(proxy, talk)
        parts = get(proxy.url, "/context/conversations/c-1/coverage").json["parts"]
        [summary] = [part for part in parts if part["kind"] == "summarized"]
        shown.append(summary)
        talk = continued(talk, "the second", "the third" + " the" * 18_000, "the fourth")
    first, second = shown
    assert first["summary_id"] != second["summary_id"]
    assert first["tokens"] != second["tokens"]
    assert (first["first_index"], first["last_index"]) == (0, 1)
    assert (second["first_index"], second["last_index"]) == (0, 7)
    notes = [message for message in sent(simulator.chats[-1]) if "[Notes on" in str(message["content"])]
    assert ["ORD-0002" in message["content"] for message in notes] == [True]
    stored = get(proxy.url, "/context/conversations/c-1/summaries").json["data"]
    assert [summary["id"] for summary in stored] == [first["summary_id"], second["summary_id"]]


@checklist("C7")
def test_a_prompt_is_much_smaller_after_a_checkpoint(simulator: Simulator, steno: StartSteno) -> None:
    """The reference script: large tool answers, then short questions."""
    proxy = checkpoints(simulator, steno)
    talk = [RULES, said("user", "Which of the three lists names the most books?")]
    for number in range(3):
        talk += used(f"c{number}", text_of(18_500, f"book {number}-"), "read_list")
    before = ask(proxy, talk)
    assert before.header("x-context-status") == "full"
    talk = [
        *talk,
        said("assistant", "The second one, it holds: " + text_of(6_000)),
        said("user", "And the fewest?"),
    ]
    ask(proxy, talk)
    talk = continued(talk, "the first", "the last")
    ask(proxy, talk)
    prompts = [record.usage["prompt_tokens"] for record in simulator.chats if record.usage]
    assert prompts[0] > 16_000
    assert max(prompts[1:]) <= (1 - 0.57) * prompts[0]
    assert len(simulator.summaries) == 1


@checklist("C8")
def test_the_usage_of_a_conversation_is_what_the_provider_reported(simulator: Simulator, steno: StartSteno) -> None:
    proxy = checkpoints(simulator, steno, prices=PRICES)
    talk = prefix(18_000)
    contexts = []
    for _ in range(4):
        contexts.append(ask(proxy, talk).json["context"])
        talk = continued(talk, "a shelf" + " the" * 4_000)
    told = usage(proxy)
    totals = told["totals"]
    assert len(simulator.summaries) == totals["summary"]["calls"] == 2
    for name in ("prompt", "completion"):
        assert totals[name] == reported(simulator.chats, f"{name}_tokens") > 0
        assert totals["summary"][name] == reported(simulator.summaries, f"{name}_tokens") > 0
    messages = [record for record in told["data"] if record["purpose"] == "message"]
    assert [record["tokens"]["prompt"] for record in messages] == [
        r.usage["prompt_tokens"] for r in simulator.chats if r.usage
    ]
    assert [record["tokens"]["saved"] for record in messages] == [context["tokens"]["saved"] for context in contexts]
    assert totals["saved"] == sum(record["tokens"]["saved"] for record in messages) > 18_000
    spent = 15 * (totals["prompt"] + totals["summary"]["prompt"])
    spent += 75 * (totals["completion"] + totals["summary"]["completion"])
    assert totals["cost"] == pytest.approx(spent / 1_000_000)


@checklist("C9")
def test_a_short_message_counts_as_one_whatever_its_turn_took(simulator: Simulator, steno: StartSteno) -> None:
    proxy = checkpoints(simulator, steno)
    question = said("user", "Please tell me now which of my two orders will arrive the first.")
    assert len(question["content"]) == 64
    simulator.next_chat(usage={"prompt_tokens": 39_000, "completion_tokens": 1_000, "total_tokens": 40_000})
    told = ask(proxy, [question]).json
    assert told["usage"]["total_tokens"] == 40_000
    assert since(proxy, [question]) < 100
    later = [question, said("assistant", told["choices"][0]["message"]["content"]), said("user", "And then?")]
    ask(proxy, later)
    assert not simulator.summaries
    parts = get(proxy.url, "/context/conversations/c-1/coverage").json["parts"]
    assert sum(part["tokens"] for part in parts if part["kind"] == "verbatim") < 100

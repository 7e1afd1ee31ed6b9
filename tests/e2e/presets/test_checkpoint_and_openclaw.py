"""Lines C and D of checklist.md: LibreChat's checkpoints, and OpenClaw's session pruning."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import count, islice
from typing import Any

import pytest

from app.core.limits.trigger import Size
from app.core.view.mask import is_allowed
from lab.simulator import Fault, Record, Simulator
from tests.e2e.histories import chat
from tests.e2e.presets.checklist import checklist
from tests.e2e.presets.mutants import Mutant
from tests.e2e.raw import Answer, get, post
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import ScriptedProvider, answer

NAMED = b"x-conversation-id: c-1"
CLEARED = "[Old tool result content cleared]"
RULES: Any = {"role": "system", "content": "You keep the books of a small library."}
PRICES: Any = [{"match": "gpt-4o", "prompt": 15, "completion": 75}]
MODES = pytest.mark.parametrize("mode", ["adaptive", "aggressive"])


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def said(text: str) -> Any:
    return {"role": "assistant", "content": text}


def used(number: int, tool: str, result: Any) -> list[Any]:
    """A call and its result."""
    call = {"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": "{}"}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
    ]


def text_of(characters: int, name: str = "row") -> str:
    """Exactly so many characters, of which no ten words are the same as any others."""
    words = (f"{name}{number}" if number % 10 == 0 else "the" for number in count())
    return " ".join(islice(words, characters))[:characters]


def sent(record: Record) -> list[Any]:
    messages: list[Any] = record.payload["messages"]
    return messages


def ask(proxy: Steno, messages: list[Any], **members: Any) -> Answer:
    answered = post(proxy.url, chat(messages, **members), NAMED)
    assert answered.status == 200, answered.body
    return answered


def planned(proxy: Steno, messages: list[Any], **members: Any) -> Any:
    """What would happen to it."""
    return post(proxy.url, chat(messages, **members), NAMED, target="/context/plan").json


# Checkpoints


def checkpoints(simulator: Simulator, steno: StartSteno, window: int = 180_000, **sections: Any) -> Steno:
    simulator.window = window
    simulator.summary_default = Fault(text="The list of ORD-0001 was read out. " * 20)
    models = [{"match": "*", "context_window": window}]
    return steno(models=models, compaction={"preset": "librechat-checkpoint"}, **sections)


def since(proxy: Steno, messages: list[Any]) -> int:
    """Tokens after the last checkpoint, as Steno estimates them."""
    return sum(part["tokens"] for part in planned(proxy, messages)["parts"] if part["kind"] == "verbatim")


def padded(proxy: Steno, messages: list[Any], tokens: int) -> list[Any]:
    """With so many tokens after the last checkpoint: the last answer of the assistant is made longer."""
    words = 0
    for _ in range(20):
        found = [*messages[:-2], said(messages[-2]["content"] + " the" * words), messages[-1]]
        lacking = tokens - since(proxy, found)
        if not lacking:
            return found
        # By halves: beyond the trigger a checkpoint would be planned, and little be left after it.
        words += (lacking + 1) // 2
    raise AssertionError(f"a checkpoint would be made before {tokens} tokens")


def prefix(words: int) -> list[Any]:
    """A turn of a little more than so many tokens, and a question: more words than checkpoints let pass."""
    return [RULES, user("Read me the list."), said("ORD-0001 and so on." + " the" * words), user("And the next one?")]


def continued(messages: list[Any], *further: str) -> list[Any]:
    """So many turns later."""
    return [*messages, *(message for text in further for message in (said(f"About {text}"), user(f"And {text}?")))]


@checklist("C1")
def test_a_checkpoint_is_made_past_a_tenth_of_the_window(simulator: Simulator, steno: StartSteno) -> None:
    proxy = checkpoints(simulator, steno)
    talk = padded(proxy, [RULES, user("Read me the list."), said("Here it is."), user("And the next one?")], 17_999)
    assert since(proxy, talk) == 17_999
    ask(proxy, talk)
    assert sent(simulator.chats[-1]) == talk
    longer = [*talk[:-1], user("And the next one? the the")]
    assert not simulator.summaries
    answered = ask(proxy, longer)
    assert len(simulator.summaries) == 1
    assert answered.header("x-context-status") == "summarized"


@checklist("C1")
def test_exactly_a_tenth_of_the_window_is_not_past_it(simulator: Simulator, steno: StartSteno) -> None:
    proxy = checkpoints(simulator, steno)
    ask(proxy, padded(proxy, prefix(10), 18_000))
    assert not simulator.summaries


@checklist("C2")
def test_what_a_checkpoint_stands_for_does_not_count_towards_the_next(simulator: Simulator, steno: StartSteno) -> None:
    proxy = checkpoints(simulator, steno)
    talk = prefix(40_000)
    ask(proxy, talk)
    assert len(simulator.summaries) == 1
    later = padded(proxy, continued(talk, "shelf 1", "shelf 2"), 17_999)
    assert int(ask(proxy, later).header("x-context-tokens-before") or 0) > 57_000
    assert len(simulator.summaries) == 1
    ask(proxy, [*later[:-1], user(later[-1]["content"] + " the the")])
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
        talk = [*talk, said(told), user(f"Question {turn}: \u00e9t\u00e9?  Two spaces.")]
    assert len(simulator.summaries) == 1


@checklist("C4")
def test_the_checkpoint_prompt_asks_for_more_on_recent_messages(simulator: Simulator, steno: StartSteno) -> None:
    proxy = checkpoints(simulator, steno)
    talk = [RULES]
    for turn in range(6):
        talk += [user(f"Question {turn}?"), said(f"Answer {turn}." + " the" * 3_200)]
    talk.append(user("And now?"))
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


def agent_turn(talk: list[Any], calls: int, words: int) -> list[list[Any]]:
    """The histories of a turn's requests, each with one more result than the one before."""
    histories = [talk]
    for number in range(calls - 1):
        histories.append([*histories[-1], *used(number, "look", "a shelf of books " * words)])
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
    talk = [RULES, user("Which of the three lists names the most books?")]
    for number in range(3):
        talk += used(number, "read_list", text_of(18_500, f"book {number}-"))
    before = ask(proxy, talk)
    assert before.header("x-context-status") == "full"
    talk = [*talk, said("The second one, it holds: " + text_of(6_000)), user("And the fewest?")]
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
    question = user("Please tell me now which of my two orders will arrive the first.")
    assert len(question["content"]) == 64
    simulator.next_chat(usage={"prompt_tokens": 39_000, "completion_tokens": 1_000, "total_tokens": 40_000})
    told = ask(proxy, [question]).json
    assert told["usage"]["total_tokens"] == 40_000
    assert since(proxy, [question]) < 100
    later = [question, said(told["choices"][0]["message"]["content"]), user("And then?")]
    ask(proxy, later)
    assert not simulator.summaries
    parts = get(proxy.url, "/context/conversations/c-1/coverage").json["parts"]
    assert sum(part["tokens"] for part in parts if part["kind"] == "verbatim") < 100


# Session pruning


def pruning(simulator: Simulator, steno: StartSteno, mode: str, window: int, **mask: Any) -> Steno:
    simulator.window = window
    return steno(
        models=[{"match": "*", "context_window": window}],
        compaction={"preset": f"openclaw-{mode}", "mask": mask},
    )


def characters(messages: list[Any]) -> int:
    """As OpenClaw counts them: texts, and what is given to tools."""
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    return sum(len(m["content"] or "") for m in messages) + sum(len(call["function"]["arguments"]) for call in calls)


def work(*results: tuple[str, Any]) -> list[Any]:
    """A question, results of named tools, and three more messages of the assistant."""
    steps = (message for number, (tool, result) in enumerate(results) for message in used(number, tool, result))
    talk = [
        user("Look."),
        *steps,
        said("I have looked."),
        user("And?"),
        said("It is fine."),
        user("Sure?"),
        said("Yes."),
    ]
    return [*talk, user("Well then?")]


def filled(talk: list[Any], size: int) -> list[Any]:
    """With so many characters in all: the first question is made longer."""
    first = talk[0]["content"]
    return [user(first + " " + text_of(size - characters(talk) - 1, "w")), *talk[1:]]


def results(messages: list[Any]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


@checklist("D1")
def test_large_results_are_trimmed_from_a_fill_of_0_30_on(simulator: Simulator, steno: StartSteno) -> None:
    proxy = pruning(simulator, steno, "adaptive", 20_000)
    large, small = text_of(10_000), text_of(3_999, "line")
    talk = work(("bash", large), ("bash", small))
    for size in (23_200, 23_999):  # 0.29 of 20,000 x 4, and just under 0.30
        body = chat(filled(talk, size))
        assert post(proxy.url, body).status == 200
        assert simulator.chats[-1].body == body
    answered = ask(proxy, filled(talk, 24_000))
    trimmed, untouched = results(sent(simulator.chats[-1]))
    assert trimmed.startswith(large[:1_500] + "\n...\n" + large[-1_500:])
    assert "10000" in trimmed[3_000:]
    assert len(trimmed) < 3_200
    assert untouched == small
    assert answered.json["context"]["actions"] == ["trimmed"]
    assert answered.json["context_status"] == "trimmed"


@checklist("D2")
def test_too_little_to_prune_is_not_cleared(simulator: Simulator, steno: StartSteno) -> None:
    proxy = pruning(simulator, steno, "adaptive", 40_000)
    talk = work(*[("bash", text_of(4_000, f"r{number}-")) for number in range(12)], ("bash", text_of(1_999)))
    assert sum(map(len, results(talk))) == 49_999
    ask(proxy, filled(talk, 80_000))
    assert results(sent(simulator.chats[-1])) == results(talk)


@checklist("D2")
@pytest.mark.parametrize(("size", "cleared"), [(79_999, 0), (80_000, 1), (90_000, 3)])
def test_the_oldest_results_are_cleared_until_half_of_the_window_is_free(
    simulator: Simulator, steno: StartSteno, size: int, cleared: int
) -> None:
    """Each that is cleared frees 3,967 characters."""
    proxy = pruning(simulator, steno, "adaptive", 40_000)
    talk = work(*[("bash", text_of(4_000, f"r{number}-")) for number in range(12)], ("bash", text_of(2_000)))
    assert sum(map(len, results(talk))) == 50_000
    answered = ask(proxy, filled(talk, size))
    payload = sent(simulator.chats[-1])
    assert results(payload) == [CLEARED] * cleared + results(talk)[cleared:]
    assert [message["role"] for message in payload] == [message["role"] for message in talk]
    assert answered.json["context"]["actions"] == (["cleared"] if cleared else [])
    if cleared:
        assert characters(payload) < 80_000 <= characters(payload) + 3_967


@checklist("D3")
@MODES
def test_results_after_the_third_last_message_of_the_assistant_stay(
    simulator: Simulator, steno: StartSteno, mode: str
) -> None:
    proxy = pruning(simulator, steno, mode, 20_000)
    steps = [used(number, "bash", text_of(10_000, f"r{number}-")) for number in range(5)]
    ask(proxy, [user("Look."), *(message for step in steps for message in step)])
    now = results(sent(simulator.chats[-1]))
    assert all(len(result) < 4_000 for result in now[:2])
    assert now[2:] == [step[1]["content"] for step in steps[2:]]


@checklist("D3")
@MODES
def test_parallel_calls_are_one_message_of_the_assistant(simulator: Simulator, steno: StartSteno, mode: str) -> None:
    proxy = pruning(simulator, steno, mode, 20_000)
    first, second = used(0, "bash", text_of(10_000, "a")), used(1, "bash", text_of(10_000, "b"))
    first[0]["tool_calls"] += second[0]["tool_calls"]
    talk = [user("Look."), first[0], first[1], second[1], *used(2, "bash", text_of(10_000, "c")), said("It is fine.")]
    ask(proxy, [*talk, user("Sure?")])
    assert sent(simulator.chats[-1]) == [*talk, user("Sure?")]
    ask(proxy, [*talk, user("Sure?"), said("Yes."), user("Well then?")])
    now = results(sent(simulator.chats[-1]))
    assert all(len(result) < 4_000 for result in now[:2])
    assert now[2] == text_of(10_000, "c")


@checklist("D3")
@MODES
def test_with_two_messages_of_the_assistant_nothing_is_changed(
    simulator: Simulator, steno: StartSteno, mode: str
) -> None:
    proxy = pruning(simulator, steno, mode, 20_000)
    body = chat([user("Look."), *used(0, "bash", text_of(40_000)), said("It is fine."), user("Sure?")])
    assert post(proxy.url, body).status == 200
    assert simulator.chats[-1].body == body


@checklist("D4")
@MODES
def test_a_result_with_an_image_stays(scripted: ScriptedProvider, before_scripted: StartSteno, mode: str) -> None:
    """OpenAI takes no image in a result, other providers do."""
    scripted.default = (answer(b"{}"),)
    proxy = before_scripted(
        models=[{"match": "*", "context_window": 20_000}], compaction={"preset": f"openclaw-{mode}"}
    )
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    picture = [{"type": "text", "text": text_of(30_000)}, shown]
    talk = work(("look", picture), ("bash", text_of(35_000, "b")))
    post(proxy.url, chat(talk))
    payload = json.loads(scripted.requests[-1].body)["messages"]
    assert payload[2] == talk[2]
    assert len(payload[4]["content"]) < 4_000


@checklist("D5")
def test_only_the_results_of_allowed_tools_are_pruned(simulator: Simulator, steno: StartSteno) -> None:
    proxy = pruning(simulator, steno, "aggressive", 20_000, allow=["bash", "read"], deny=["*image*"])
    talk = work(*[(tool, f"What {tool} found.") for tool in ("bash", "web", "read", "read_image")])
    ask(proxy, talk)
    assert results(sent(simulator.chats[-1])) == [CLEARED, "What web found.", CLEARED, "What read_image found."]


@checklist("D5")
def test_deny_is_stronger_than_allow(simulator: Simulator, steno: StartSteno) -> None:
    proxy = pruning(simulator, steno, "adaptive", 20_000, allow=["read*"], deny=["*image*"])
    talk = filled(work(("read", text_of(9_000)), ("read_image", text_of(9_000)), ("web", text_of(9_000))), 30_000)
    ask(proxy, talk)
    now = results(sent(simulator.chats[-1]))
    assert len(now[0]) < 4_000
    assert now[1:] == results(talk)[1:]


@checklist("D6")
def test_aggressive_clears_a_result_of_ten_characters(simulator: Simulator, steno: StartSteno) -> None:
    talk = work(("bash", "ten chars."), ("bash", text_of(200)))
    answered = ask(pruning(simulator, steno, "aggressive", 20_000), talk)
    payload = sent(simulator.chats[-1])
    assert results(payload) == [CLEARED, CLEARED]
    assert [m for m in payload if m["role"] != "tool"] == [m for m in talk if m["role"] != "tool"]
    assert [m.get("tool_call_id") for m in payload] == [m.get("tool_call_id") for m in talk]
    assert answered.json["context"]["actions"] == ["cleared"]


@checklist("D6")
def test_adaptive_clears_no_result_of_ten_characters(simulator: Simulator, steno: StartSteno) -> None:
    proxy = pruning(simulator, steno, "adaptive", 20_000)
    ask(proxy, filled(work(("bash", "ten chars.")), 60_000))  # a fill of 0.75
    assert results(sent(simulator.chats[-1])) == ["ten chars."]
    many = work(("bash", "ten chars."), *[("bash", text_of(4_000, f"r{number}-")) for number in range(13)])
    ask(proxy, filled(many, 54_000))
    now = results(sent(simulator.chats[-1]))
    assert now[:2] == ["ten chars.", CLEARED]


@checklist("D7")
@MODES
def test_nothing_is_stored_and_the_next_request_starts_anew(simulator: Simulator, steno: StartSteno, mode: str) -> None:
    proxy = pruning(simulator, steno, mode, 20_000)
    talk = work(("bash", text_of(10_000)), ("bash", text_of(3_999)))
    answered = ask(proxy, filled(talk, 24_000))
    assert answered.json["context"]["chunks"] == []
    assert results(sent(simulator.chats[-1])) != results(talk)
    assert get(proxy.url, "/context/conversations/c-1/summaries").json["data"] == []
    off = post(proxy.url, chat(filled(talk, 24_000)), NAMED, b"x-context-preset: off")
    assert off.json["context"]["actions"] == []
    assert sent(simulator.chats[-1]) == filled(talk, 24_000)
    if mode == "adaptive":
        ask(proxy, filled(talk, 23_999))
        assert sent(simulator.chats[-1]) == filled(talk, 23_999)
    assert not simulator.summaries


@checklist("D7")
def test_the_window_of_an_unknown_model_is_200_000(simulator: Simulator, steno: StartSteno) -> None:
    simulator.window, simulator.models = 200_000, "any"
    proxy = steno(models=[], compaction={"preset": "openclaw-adaptive"})
    talk = work(("bash", text_of(10_000)))
    almost = filled(talk, 239_999)
    answered = ask(proxy, almost, model="house-model")
    assert answered.header("x-context-window") == "200000"
    assert planned(proxy, almost, model="house-model")["budget"]["window_source"] == "default"
    [listed] = [model for model in get(proxy.url, "/context/models").json["data"] if model["id"] == "house-model"]
    assert (listed["context_window"], listed["source"]) == (200_000, "default")
    assert sent(simulator.chats[-1]) == almost
    ask(proxy, filled(talk, 240_000), model="house-model")
    assert len(results(sent(simulator.chats[-1]))[0]) < 4_000


MUTANTS = (
    Mutant(
        "librechat-checkpoint",
        "app.core.view.reading._size",
        lambda *given: Size(given[2], since=given[2]),  # the tokens of the whole, not of what follows the summary
        test_a_checkpoint_is_made_past_a_tenth_of_the_window,
    ),
    Mutant(
        "openclaw-adaptive",
        "app.core.stages.session_pruning.CHARACTERS_PER_TOKEN",
        3,
        test_large_results_are_trimmed_from_a_fill_of_0_30_on,
    ),
    Mutant(
        "openclaw-aggressive",
        "app.core.stages.session_pruning.is_allowed",
        lambda tool, allow, deny: is_allowed(tool, deny, allow),
        test_only_the_results_of_allowed_tools_are_pruned,
    ),
)

"""What each preset does, as tables: from which size on, and to which of the results.

A row is a wiring: that the preset has these settings, and that they reach the stage. What the stage makes of them is
tested in tests/unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any

import pytest

from app.core.limits.trigger import Size
from app.core.view.mask import is_allowed
from lab.simulator import Simulator
from tests.e2e.histories import calls, chat, result, said, turns, used
from tests.e2e.presets.checklist import Mutant, checklist
from tests.e2e.presets.talks import (
    QUESTION,
    Messages,
    answered_reads,
    context,
    instructions,
    lengthened,
    of_preset,
    padded,
    planned,
    read,
    sent,
    text_of,
)
from tests.e2e.raw import get, post
from tests.e2e.running import StartSteno

LIMIT = 7_600
"""What a window of 8,000 leaves for the prompt where 5 % stay free."""


@dataclass(frozen=True, slots=True)
class Begins:
    """A preset that does nothing to a prompt of one token less, and this from that size on."""

    preset: str
    tokens: int
    does: str
    talk: Messages
    at: int
    """Place of the message that is made longer."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of compaction."""
    window: int = 8_000
    bare: bool = False
    """Whether instructions and tools do not count."""
    members: Mapping[str, Any] = field(default_factory=dict)
    """Of the request."""


BRIEF = said("system", "Be brief.")
READ = [BRIEF, *answered_reads(9, 600), QUESTION]
WAITING = [BRIEF, QUESTION, *(message for number in range(5) for message in read(number, 5_800))]
"""An agent's turn with results that are not answered in text yet."""


def librechat(trigger: Any, tokens: int) -> Begins:
    return Begins("librechat", tokens, "summarized", turns(8), 6, {"trigger": trigger} if trigger else {})


def free(preset: str, does: str, limit: int, **members: Any) -> Begins:
    return Begins(preset, limit + 1, does, [*turns(14), QUESTION], 0, members=members)


BEGINS = {
    "A1": Begins("librechat", ceil(0.80 * LIMIT), "masked", READ, -1, bare=True),
    "A7 none": librechat(None, LIMIT + 1),
    "A7 token_ratio": librechat({"token_ratio": 0.60}, int(0.60 * LIMIT) + 1),
    "A7 token_ratio of the window": librechat({"token_ratio": 0.60, "of": "window"}, 4_801),
    "A7 tokens": librechat({"tokens": 5_000}, 5_001),
    "A7 remaining_tokens": librechat({"remaining_tokens": 2_000}, 6_000),
    "A7 turns, of what does not fit": librechat({"turns": 200}, LIMIT + 1),
    "A7 overflow": librechat({"overflow": True}, LIMIT + 1),
    "A7 since the last summary": Begins(
        *("librechat", 2_001, "summarized", [said("system", "Be brief." * 50), *turns(3)], 1),
        settings={"trigger": {"since_checkpoint_ratio": 0.25, "of": "window"}},
        bare=True,
    ),
    "A15": free("librechat", "summarized", 7_600),
    "A15 little asked for": free("librechat", "summarized", 7_600, max_tokens=100),
    "A15 more asked for": free("librechat", "summarized", 7_000, max_tokens=1_000),
    "A15 fading": free("librechat-fading", "pruned", 7_600),
    "A15 fading, more asked for": free("librechat-fading", "pruned", 7_000, max_tokens=1_000),
    "B2": Begins("librechat-fading", ceil(0.80 * 38_000), "faded", WAITING, 1, window=40_000, bare=True),
    "C1": Begins("librechat-checkpoint", 18_001, "summarized", [BRIEF, *turns(20)], 1, window=180_000, bare=True),
    "E1": Begins("lightspeed", 89_601, "summarized", turns(20, words=2_000), 0, window=128_000),
    "E1 floor": Begins("lightspeed", 4_097, "summarized", turns(20, words=80), 0, window=5_000),
    "F2": Begins(
        *("default", 6_001, "summarized", turns(13), 0), {"trigger": {"tokens": 6_000}, "floor_tokens": 0}, 128_000
    ),
    "F8": Begins("sliding-window", 2_501, "pruned", turns(5), 0, {"window": {"tokens": 2_500}}),
}


def check_begins(row: Begins, simulator: Simulator, steno: StartSteno) -> None:
    simulator.window = row.window
    proxy = steno(**of_preset(row.preset, row.window, **row.settings))
    fixed = instructions(proxy, row.talk, **row.members) if row.bare else 0
    under = padded(proxy, row.talk, row.at, fixed + row.tokens - 1, **row.members)
    assert context(post(proxy.url, chat(under, **row.members)))["actions"] == []
    assert simulator.chats[-1].body == chat(under, **row.members)
    over = lengthened(under, row.at, " the")
    assert planned(proxy, over, **row.members)["context"]["actions"] == [row.does]
    assert context(post(proxy.url, chat(over, **row.members)))["actions"] == [row.does]
    assert bool(simulator.summaries) == (row.does == "summarized")


@checklist("A1")
@checklist("A7")
@checklist("A15")
@checklist("B2")
@checklist("C1")
@checklist("E1")
@checklist("F2")
@checklist("F8")
@pytest.mark.parametrize("row", BEGINS.values(), ids=BEGINS)
def test_a_preset_begins_at_its_size_and_not_one_token_before(
    simulator: Simulator, steno: StartSteno, row: Begins
) -> None:
    check_begins(row, simulator, steno)


COUNTED = {
    "A7 messages": ("librechat", {"trigger": {"messages": 6}}, 3, "summarized"),
    "A7 turns": ("librechat", {"trigger": {"turns": 3}}, 4, "summarized"),
    "F5": ("sliding-window", {}, 21, "pruned"),
    "F8": ("sliding-window", {"window": {"turns": 3}}, 4, "pruned"),
}


@checklist("A7")
@checklist("F5")
@checklist("F8")
@pytest.mark.parametrize(("preset", "settings", "number", "does"), COUNTED.values(), ids=COUNTED)
def test_what_counts_turns_or_messages_begins_at_its_number_and_not_one_before(
    steno: StartSteno, preset: str, settings: Any, number: int, does: str
) -> None:
    url = steno(**of_preset(preset, **settings)).url
    for turns_before, actions in ((number - 1, []), (number, [does])):
        assert context(post(url, chat(turns(turns_before, words=40))))["actions"] == actions


# Which results


CLEARED = "[Old tool result content cleared]"


def work(*results: tuple[str, Any]) -> Messages:
    """A question, results of named tools, and three more messages of the assistant."""
    steps = (message for number, (tool, found) in enumerate(results) for message in used(f"r{number}", found, tool))
    rest = [said("assistant", "I have looked."), said("user", "And?"), said("assistant", "It is fine.")]
    rest += [said("user", "Sure?"), said("assistant", "Yes."), said("user", "Well then?")]
    return [said("user", "Look."), *steps, *rest]


def filled(talk: Messages, size: int) -> Messages:
    """With so many characters in all, as OpenClaw counts them: the first question is made longer."""
    made = [call for message in talk for call in message.get("tool_calls", ())]
    now = sum(len(m["content"] or "") for m in talk) + sum(len(call["function"]["arguments"]) for call in made)
    return lengthened(talk, 0, " " + text_of(size - now - 1, "w"))


def bash(*sizes: int) -> Messages:
    return work(*(("bash", text_of(size, f"r{number}-")) for number, size in enumerate(sizes)))


def without_end(number: int, size: int) -> Messages:
    """An agent's steps, of which the last one is not answered yet."""
    return [said("user", "Look."), *(m for step in range(number) for m in used(f"r{step}", text_of(size, f"r{step}-")))]


def parallel(*further: str) -> Messages:
    """Two calls in one message of the assistant, and a third."""
    both = [calls("r0", "r1"), result("r0", text_of(10_000, "a")), result("r1", text_of(10_000, "b"))]
    talk = [said("user", "Look."), *both, *used("r2", text_of(10_000, "c")), said("assistant", "It is fine.")]
    talk.append(said("user", "Sure?"))
    return [*talk, *(m for text in further for m in (said("assistant", text), said("user", "Well then?")))]


PICTURE = [
    {"type": "text", "text": text_of(30_000)},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
]
ADAPTIVE, AGGRESSIVE, FADING = "openclaw-adaptive", "openclaw-aggressive", "librechat-fading"
TOOLS = {"mask": {"allow": ["bash", "read"], "deny": ["*image*"]}}
NAMED = work(*((tool, f"What {tool} found.") for tool in ("bash", "web", "read", "read_image")))
READ_ALIKE = filled(work(*((tool, text_of(9_000)) for tool in ("read", "read_image", "web"))), 30_000)
DOZEN = [4_000] * 12


def aged(size: int, number: int = 10) -> Messages:
    """So many turns with a result of so many characters each; the last of them is 5 % of the conversation old."""
    one = "the " * (size // 4)
    steps = (
        (said("user", f"Read {n}."), *used(f"r{n}", one), said("assistant", f"Report {n} is long."))
        for n in range(number)
    )
    return [*(message for step in steps for message in step), QUESTION]


POSITION = {"session_pruning": {"mode": "position"}}
PRUNED: dict[str, tuple[str, int, Any, Messages, str]] = {
    "D1 a fill of 0.29": (ADAPTIVE, 20_000, {}, filled(bash(10_000, 3_999), 23_200), "=="),
    "D1 just under 0.30": (ADAPTIVE, 20_000, {}, filled(bash(10_000, 3_999), 23_999), "=="),
    "D1 a fill of 0.30": (ADAPTIVE, 20_000, {}, filled(bash(10_000, 3_999), 24_000), "t="),
    "D2 too little": (ADAPTIVE, 40_000, {}, filled(bash(*DOZEN, 1_999), 80_000), "=" * 13),
    "D2 just under 0.50": (ADAPTIVE, 40_000, {}, filled(bash(*DOZEN, 2_000), 79_999), "=" * 13),
    "D2 a fill of 0.50": (ADAPTIVE, 40_000, {}, filled(bash(*DOZEN, 2_000), 80_000), "c" + "=" * 12),
    "D2 a fill of 0.56": (ADAPTIVE, 40_000, {}, filled(bash(*DOZEN, 2_000), 90_000), "ccc" + "=" * 10),
    "D3 adaptive": (ADAPTIVE, 20_000, {}, without_end(5, 10_000), "tt==="),
    "D3 aggressive": (AGGRESSIVE, 20_000, {}, without_end(5, 10_000), "cc==="),
    "D3 two messages, adaptive": (ADAPTIVE, 20_000, {}, without_end(2, 20_000), "=="),
    "D3 two messages, aggressive": (AGGRESSIVE, 20_000, {}, without_end(2, 20_000), "=="),
    "D3 parallel calls are one message": (ADAPTIVE, 20_000, {}, parallel(), "==="),
    "D3 parallel calls, later": (ADAPTIVE, 20_000, {}, parallel("Yes."), "tt="),
    "D4 adaptive": (ADAPTIVE, 20_000, {}, work(("look", PICTURE), ("bash", text_of(35_000, "b"))), "=t"),
    "D4 aggressive": (AGGRESSIVE, 20_000, {}, work(("look", PICTURE), ("bash", text_of(35_000, "b"))), "=c"),
    "D5 aggressive": (AGGRESSIVE, 20_000, TOOLS, NAMED, "c=c="),
    "D5 adaptive": (ADAPTIVE, 20_000, {"mask": {"allow": ["read*"], "deny": ["*image*"]}}, READ_ALIKE, "t=="),
    "D6 aggressive": (AGGRESSIVE, 20_000, {}, work(("bash", "ten chars."), ("bash", text_of(200))), "cc"),
    "D6 adaptive": (ADAPTIVE, 20_000, {}, filled(work(("bash", "ten chars.")), 60_000), "="),
    "B3 off by default": (FADING, 400_000, {}, aged(60_000), "=" * 10),
    "B3": (FADING, 400_000, POSITION, aged(60_000), "ccccctt==="),
    "B3 small results": (FADING, 400_000, POSITION, aged(49_996), "=" * 10),
    "B3 the last three turns of the assistant": (FADING, 400_000, POSITION, aged(60_000, 4), "c==="),
}
"""Preset, window, settings of compaction, messages, and for each result: whole, trimmed or cleared."""


def check_pruned(
    simulator: Simulator, steno: StartSteno, preset: str, window: int, settings: Any, talk: Messages, expected: str
) -> None:
    simulator.window = window
    answered = post(steno(**of_preset(preset, window, **settings)).url, chat(talk))
    kinds = ""
    for message, whole in zip(sent(simulator.chats[-1]), talk, strict=True):
        if message == whole:
            kinds += "=" if whole["role"] == "tool" else ""
            continue
        assert message == {**whole, "content": message["content"]}
        kinds += "c" if message["content"] == CLEARED else "t"
        if kinds[-1] == "t":
            head, tail = whole["content"][:1_500], whole["content"][-1_500:]
            assert message["content"].startswith(f"{head}\n...\n{tail}")
            assert str(len(whole["content"])) in message["content"][3_000:]
            assert len(message["content"]) < 3_200
    assert kinds == expected
    done = [action for action in ("trimmed", "cleared") if action[0] in expected]
    assert (answered.header("x-context-actions") or "") == ",".join(done)
    assert answered.header("x-context-status") == ("trimmed" if done else "full")
    assert not simulator.summaries


@checklist("B3")
@checklist("D1")
@checklist("D2")
@checklist("D3")
@checklist("D4")
@checklist("D5")
@checklist("D6")
@pytest.mark.parametrize(("preset", "window", "settings", "talk", "expected"), PRUNED.values(), ids=PRUNED)
def test_a_preset_trims_and_clears_the_results_that_it_is_to(
    simulator: Simulator, steno: StartSteno, preset: str, window: int, settings: Any, talk: Messages, expected: str
) -> None:
    check_pruned(simulator, steno, preset, window, settings, talk, expected)


@checklist("D7")
@pytest.mark.parametrize(("preset", "from_a_fill_on"), [(ADAPTIVE, True), (AGGRESSIVE, False)])
def test_nothing_is_stored_and_the_next_request_starts_anew(
    simulator: Simulator, steno: StartSteno, preset: str, from_a_fill_on: bool
) -> None:
    url, talk, named = steno(**of_preset(preset, 20_000)).url, bash(10_000, 3_999), b"x-conversation-id: c-1"
    simulator.window = 20_000
    over, under = chat(filled(talk, 24_000)), chat(filled(talk, 23_999))
    assert context(post(url, over, named))["chunks"] == []
    assert simulator.chats[-1].body != over
    assert get(url, "/context/conversations/c-1/summaries").json["data"] == []
    assert context(post(url, over, named, b"x-context-preset: off"))["actions"] == []
    assert simulator.chats[-1].body == over
    post(url, under, named)
    assert (simulator.chats[-1].body == under) == from_a_fill_on
    assert not simulator.summaries


@checklist("D7")
def test_the_window_of_an_unknown_model_is_200_000(simulator: Simulator, steno: StartSteno) -> None:
    simulator.window = 200_000
    proxy = steno(**of_preset(ADAPTIVE) | {"models": []})
    for size, actions in ((239_999, []), (240_000, ["trimmed"])):
        talk = filled(bash(10_000), size)
        assert planned(proxy, talk, model="house-model")["budget"]["window_source"] == "default"
        answered = post(proxy.url, chat(talk, model="house-model"))
        assert (answered.header("x-context-window"), context(answered)["actions"]) == ("200000", actions)
    [listed] = [model for model in get(proxy.url, "/context/models").json["data"] if model["id"] == "house-model"]
    assert (listed["context_window"], listed["source"]) == (200_000, "default")


def pruned(row: str) -> Any:
    preset, window, settings, talk, expected = PRUNED[row]
    return partial(check_pruned, preset=preset, window=window, settings=settings, talk=talk, expected=expected)


MUTANTS = (
    Mutant(
        "librechat-checkpoint",
        "app.core.view.reading._size",
        lambda *given: Size(given[2], since=given[2]),  # the tokens of the whole, not of what follows the summary
        partial(check_begins, BEGINS["C1"]),
    ),
    Mutant("openclaw-adaptive", "app.core.stages.session_pruning.CHARACTERS_PER_TOKEN", 3, pruned("D1 a fill of 0.29")),
    Mutant(
        "openclaw-aggressive",
        "app.core.stages.session_pruning.is_allowed",
        lambda tool, allow, deny: is_allowed(tool, deny, allow),
        pruned("D5 aggressive"),
    ),
)

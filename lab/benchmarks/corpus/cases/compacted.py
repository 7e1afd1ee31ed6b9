"""Conversations that outgrow their window: by every preset, in every shape, streamed and not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lab.benchmarks.corpus.case import FORK, Case, Group, Step, case, chat, stored
from lab.benchmarks.corpus.cases.histories import (
    FUNCTIONS,
    SYSTEM,
    TOOLS,
    Turn,
    abroad_turn,
    conversation,
    function_turn,
    growing,
    instructed_turn,
    parts_turn,
    plain_turn,
    ragged_turn,
    text,
    tool_turn,
)
from lab.benchmarks.corpus.framing import request

PRESETS = (
    "default", "lightspeed", "librechat", "librechat-fading", "librechat-checkpoint", "openclaw-adaptive",
    "openclaw-aggressive", "sliding-window", "rolling", "off",
)  # fmt: skip
TURNS: Mapping[str, tuple[Turn, int, int]] = {
    "plain": (plain_turn, 12, 24),
    "abroad": (abroad_turn, 12, 24),
    "parts": (parts_turn, 12, 24),
    "tools": (tool_turn, 8, 17),
    "functions": (function_turn, 8, 17),
    "instructed": (instructed_turn, 12, 24),
    "ragged": (ragged_turn, 12, 24),
}
EVENTS = ("chunk", "named", "comment", "off")


def _members(shape: str) -> dict[str, Any]:
    match shape:
        case "tools":
            return {"tools": TOOLS}
        case "functions":
            return {"functions": FUNCTIONS}
        case _:
            return {}


def _by_preset(preset: str) -> Iterator[Case]:
    for shape, (turn, fewest, most) in TURNS.items():
        for stream in (False, True):
            name = f"{shape}{'-streamed' if stream else ''}"
            members = _members(shape) | {"model": f"gpt-4o-{preset}-{name}", "conversation_id": f"{preset} {name}"}
            steps = growing(fewest, most, f"x-context-preset: {preset}", turn=turn, every=3, stream=stream, **members)
            yield case(f"{preset}-{name}", *steps, *(_read(f"{preset}%20{name}") if not stream else ()))
    # Results that are not answered in text: what is neither masked nor summarised fades, is cut, or is truncated.
    chosen, model = f"x-context-preset: {preset}", f"gpt-4o-{preset}-agent"
    yield case(
        f"{preset}-agent", *(chat(_agent(calls), chosen, tools=TOOLS, model=model) for calls in range(20, 36, 3))
    )
    wide = (chat(_at_once(words), chosen, tools=TOOLS, model=f"{model}-at-once") for words in (150, 300, 600, 3_000))
    yield case(f"{preset}-at-once", *wide)


def _read(name: str) -> tuple[Step | bytes, ...]:
    below = f"/context/conversations/{name}"
    return stored(request(f"{below}/coverage")), request(f"{below}/summaries"), request(below)


def _shapes() -> Iterator[Case]:
    """Unusual conversations under the default preset."""
    for mode in EVENTS:
        for asked in (None, True):
            options: dict[str, Any] = {} if asked is None else {"stream_options": {"include_usage": asked}}
            name = f"events-{mode}{'-usage' if asked else ''}"
            steps = growing(
                15, 21, f"x-context-events: {mode}", stream=True, every=3, model=f"gpt-4o-{name}", **options
            )
            yield case(name, *steps)
    for n in (2, 3):
        yield case(f"n-{n}", *growing(16, 20, stream=True, every=2, n=n, model=f"gpt-4o-n-{n}"))
    yield case("fold", *growing(14, 60, every=2, model="gpt-4o-fold", conversation_id="fold"), *_read("fold"))
    yield case("small", *growing(3, 14, model="gpt-4o-small", conversation_id="small"), *_read("small"))
    yield case("wide-at-once", *growing(400, 404, every=2, model="gpt-4o-wide"))
    yield case("far-too-long-at-once", *growing(120, 122, model="gpt-4o-far"))
    yield case("no-system", *growing(14, 20, every=2, system=False, model="gpt-4o-no-system"))
    yield case("asks-per-turn", *(step for turn in range(9, 15) for step in _asks(turn)))
    yield case(
        "long-agent-turn", *(Step(chat(_agent(calls), tools=TOOLS, model="gpt-4o-agent")) for calls in range(8, 44, 4))
    )
    yield case("pinned", *growing(14, 22, every=2, model="gpt-4o-pinned", context={"pin": [1, 4, 5]}))
    yield case(
        "pinned-tools",
        *growing(8, 16, every=2, turn=tool_turn, tools=TOOLS, model="gpt-4o-pinned-tools", context={"pin": [3, 8]}),
    )
    yield case(
        "focus",
        *growing(16, 20, every=2, model="gpt-4o-focus", context={"instructions": "Every price."}),
        *growing(20, 20, model="gpt-4o-focus"),
    )
    yield case(
        "huge-result",
        chat(_agent(1, 4_000), tools=TOOLS),
        chat(_agent(3, 2_000), tools=TOOLS),
        chat(_agent(2, 12_000), tools=TOOLS, stream=True),
    )
    yield case(
        "huge-question",
        chat([SYSTEM, {"role": "user", "content": text("ORD-0001", 7_000)}]),
        chat([*conversation(9), {"role": "user", "content": text("ORD-0001", 4_500)}]),
    )
    yield case(
        "huge-instructions",
        *(
            chat([{"role": "system", "content": text("Rule", words)}, *conversation(6)])
            for words in (3_000, 5_000, 6_000)
        ),
    )
    yield case(
        "much-output",
        *growing(6, 14, every=2, model="gpt-4o-output", max_tokens=2_500),
        *growing(6, 6, max_tokens=5_990),
        chance=(FORK,),
    )
    yield case("edited", *growing(16, 18, model="gpt-4o-edited"), *_edited(), chance=(FORK,))
    yield case(
        "branch",
        *growing(18, 18, model="gpt-4o-branch", conversation_id="b"),
        chat(_branch(), model="gpt-4o-branch", conversation_id="b"),
    )
    yield case(
        "changing",
        *(Step(chat(_clocked(turn), model="gpt-4o-changing", conversation_id="c")) for turn in range(16, 23)),
    )
    yield case(
        "off-after-summary",
        *growing(17, 17, model="gpt-4o-off"),
        *growing(18, 18, model="gpt-4o-off", context={"compaction": False}),
        *growing(19, 19, model="gpt-4o-off"),
    )
    yield case(
        "other-model-goes-on",
        *growing(17, 17, model="gpt-4o-one"),
        *growing(18, 18, model="llama-one"),
        *growing(18, 19, model="gpt-4-one"),
    )
    yield case(
        "strategies-in-turn",
        *(step for preset in PRESETS for step in growing(18, 18, f"x-context-preset: {preset}", model="gpt-4o-turns")),
    )
    for model in (
        "gpt-4",
        "gpt-3.5-turbo",
        "o3-mini",
        "gpt-5",
        "claude-3",
        "llama-3.1-8b",
        "mistral-large",
        "ft:gpt-4o:org::id",
        "x/y",
    ):
        name = model.replace("/", "-").replace(":", "-")
        yield case(f"model-{name}", *growing(14, 20, every=3, model=model, conversation_id=name))
    odd = '{ "messages" : %s , "z":1e2, "context" : {"compaction":true}, "model":"gpt-4o-odd","a":"\\u00e9" }'
    yield case("spliced", request("/v1/chat/completions", (odd % _odd_messages()).encode()))
    yield case("interleaved", *(step for at in range(14, 20) for step in _interleaved(at)))


def _asks(turn: int) -> tuple[Step, ...]:
    """An agent asks several times in a turn, with what it has so far."""
    history = conversation(turn, tool_turn)
    doing = tool_turn(turn + 1)[1:]
    lengths = (0, 3, 4)
    return tuple(Step(chat([*history, *doing[:length]], tools=TOOLS, model="gpt-4o-asks")) for length in lengths)


def _agent(calls: int, words: int = 120) -> list[object]:
    """One question, and so many calls for it."""
    doing = [message for turn in range(calls) for message in tool_turn(turn, words, calls=1)[1:3]]
    return [SYSTEM, {"role": "user", "content": "Find all parcels of ORD-0001."}, *doing]


def _at_once(words: int) -> list[object]:
    """One question and many calls side by side, none of which may be left out."""
    return [SYSTEM, *tool_turn(1, words, calls=16)[:-1]]


def _edited() -> Iterator[Step]:
    for turn in (2, 17):
        history = conversation(19)
        history[turn * 2] = {"role": "assistant", "content": f"I was wrong about ORD-{turn:04d}."}
        yield Step(chat(history, model="gpt-4o-edited"))


def _branch() -> list[object]:
    return [*conversation(14)[:-1], *plain_turn(40), {"role": "user", "content": "And now?"}]


def _clocked(turn: int) -> list[object]:
    first, *others = conversation(turn, system=False)
    return [{**first, "content": f"It is turn {turn}. {first['content']}"}, *others]


def _odd_messages() -> str:
    """Messages whose bytes no JSON library would write like this."""
    written = '{ "content":"%s \\u00e9\\/" ,\t"role":"%s" , "x":[ 1,2 ]}'
    told = (
        written % (text(f"Turn {turn}, ORD-{turn:04d}", 150), ("user", "assistant")[turn % 2]) for turn in range(31)
    )
    return "[ " + " ,\n ".join(told) + " ]"


def _interleaved(turn: int) -> Iterator[Step]:
    """Two tenants and two conversations, all at the same history."""
    for key in ("sk-one", "sk-two"):
        for name in ("a", "b"):
            yield Step(chat(conversation(turn), key=key, model="gpt-4o-interleaved", conversation_id=name))


def _configured(preset: str, **compaction: object) -> Group:
    """A preset of the settings, with settings beside it."""
    cases = [
        case(
            f"{shape}-{'streamed' if stream else 'whole'}",
            *growing(low, high, turn=turn, every=3, stream=stream, model=f"m-{shape}-{stream}", **_members(shape)),
        )
        for shape, (turn, low, high) in TURNS.items()
        for stream in (False, True)
    ]
    summary = {"parameters": {"temperature": 0}}
    return Group(f"configured-{preset}", cases, {"compaction": {"preset": preset, **compaction}, "summary": summary})


GROUPS = (
    Group("presets", tuple(each for preset in PRESETS[:5] for each in _by_preset(preset))),
    Group("more-presets", tuple(each for preset in PRESETS[5:] for each in _by_preset(preset))),
    Group("shapes", tuple(_shapes())),
    _configured("librechat", tail={"turns": 1}, trigger={"token_ratio": 0.8, "of": "window"}),
    _configured("librechat-fading", session_pruning={"mode": "position"}),
    _configured(
        "sliding-window",
        window={"turns": 6, "tokens": 3_000},
        mask={"enabled": True},
    ),
    _configured("openclaw-adaptive", session_pruning={"mode": "adaptive"}),
    _configured("rolling", pinned_text="Answer in German.", floor_tokens=0),
)

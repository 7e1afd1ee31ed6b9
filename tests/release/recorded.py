"""Recordings written for the tests: agents with tool calls, and long talks between two people. Seeded, never copied."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

SYSTEM = " ".join(
    f"Rule {number}: {rule}."
    for number, rule in enumerate(
        (
            "you are the clerk of a parcel depot and answer its customers",
            "look parcels up before you speak of them, and never guess where one is",
            "a parcel may be stopped, sent on or sent back, once each, and only by the one who paid for it",
            "say what a change costs before you make it, and wait for a yes",
            "goods that spoil are never stored over night, whatever the customer asks for",
            "hand a customer who is not content after two offers to the head of the depot",
        )
        * 4,
        1,
    )
)
PLACES = ("Aarhus", "Bergen", "Cork", "Dresden", "Espoo", "Fulda", "Graz", "Haarlem", "Ivrea", "Jena", "Kaunas", "Lyon")
GOODS = ("a crate of oranges", "two chairs", "a box of slides", "seed potatoes", "a cello", "spare parts", "old maps")
STATES = ("waiting", "on a lorry", "held at customs", "at the counter", "sent back", "damp but whole")
STORY = (
    "because the driver found the gate locked and the neighbour would not sign for it so it went round the ring road "
    "to the depot again where somebody put it on the wrong shelf until the night watch saw the label and rang us up"
)


def agents(number: int, seed: int = 1) -> list[dict[str, Any]]:
    """So many conversations of a customer with an agent that calls tools, several at once now and then."""
    return [{"id": f"depot-{index}", "messages": list(_agent(random.Random(seed + index)))} for index in range(number)]


def write(path: Path, recordings: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(recording, ensure_ascii=False) + "\n" for recording in recordings))
    return path


def _agent(draw: random.Random) -> Iterator[dict[str, Any]]:
    yield {"role": "system", "content": SYSTEM}
    made = 0
    for turn in range(draw.randint(3, 6)):
        parcels = [f"PCL-{draw.randint(10_000, 99_999)}" for _ in range(draw.choice((1, 1, 1, 2, 3)))]
        yield {"role": "user", "content": f"{_prose(draw, 12, 40)} What about {' and '.join(parcels)}?"}
        for _ in range(draw.choice((0, 1, 1, 2))):
            calls = [_call(f"call_{made + place}", parcel) for place, parcel in enumerate(parcels)]
            made += len(calls)
            yield {"role": "assistant", "content": draw.choice((None, "I will look.")), "tool_calls": calls}
            for call, parcel in zip(calls, parcels, strict=True):
                yield {"role": "tool", "tool_call_id": call["id"], "content": _found(draw, parcel)}
        if draw.random() < 0.2:
            yield {"role": "assistant", "content": "One moment, please."}
        yield {"role": "assistant", "content": f"{parcels[0]} is {draw.choice(STATES)}. {_prose(draw, 20, 90)}"}
        if turn and draw.random() < 0.5:
            yield {"role": "user", "content": "Yes"}
            yield {"role": "assistant", "content": "Done ✓ anything else?"}


def _call(call: str, parcel: str) -> dict[str, Any]:
    arguments = json.dumps({"parcel": parcel})
    return {"id": call, "type": "function", "function": {"name": "find_parcel", "arguments": arguments}}


def _found(draw: random.Random, parcel: str) -> str:
    stops = [
        {
            "place": draw.choice(PLACES),
            "at": f"2026-03-{draw.randint(1, 28):02d}T{draw.randint(0, 23):02d}:10",
            "ok": True,
        }
        for _ in range(draw.randint(2, 9))
    ]
    return json.dumps({"parcel": parcel, "holds": draw.choice(GOODS), "state": draw.choice(STATES), "stops": stops})


def _prose(draw: random.Random, fewest: int, most: int) -> str:
    story = STORY.split()
    start, length = draw.randrange(len(story)), draw.randint(fewest, most)
    words = [story[(start + place) % len(story)] for place in range(length)]
    return f"{draw.choice(GOODS).capitalize()} from {draw.choice(PLACES)}, {' '.join(words)}."

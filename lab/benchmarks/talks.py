"""Conversations made in code, as long as a benchmark wants them: a chat, and a coding agent that reads this repository.

Both are the same each time for one seed. The agent's tool results are the files of this folder as they are, so they
change as the repository does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count as numbers
from math import ceil
from pathlib import Path
from typing import Any

from lab.benchmarks.poc import ADVICE, PEOPLE, SERVICES, TOPICS
from lab.replay.recordings import Message, Question, Recording, Remark

Count = Callable[[str], int]

ROOT = Path(__file__).parents[2]
FOLDERS = ("app", "docs", "lab", "scripts", "tests")
KINDS = frozenset({".md", ".py", ".sh"})
LONGEST_READ = 190
"""Lines that one call reads of a file."""
MESSAGE_TOKENS = 4
"""A message beside its texts."""
TURN_TOKENS = 330
"""About what a turn of the chat takes."""

THINGS = ("key", "notebook", "spare fuse", "contract", "test phone", "badge", "handbook", "backup disk")
UNCHANGED = "Nobody on our side has changed anything, as far as I know, and the customers are waiting."
COLOURS = ("amber", "crimson", "violet", "turquoise", "ivory", "scarlet", "olive", "indigo", "maroon", "silver")
HOLDERS = ("drawer", "bucket", "locker", "envelope", "suitcase", "basket", "toolbox", "wardrobe", "crate", "teapot")

MESSAGE_WORDS = 110
WORDS = (
    "order parcel address refund Tuesday invoice 4711 the a of and was sent to because customer agreed that clerk"
    " wrote warehouse return label email never again price reduced by 12.50 euro since March, please confirm"
)

AGENT_INSTRUCTIONS = (
    "You are a coding agent in a Python repository. Read what you need, change as little as possible, and say in a"
    " sentence or two what you found before you go on."
)
TASKS = (
    "Find out how {name} works and who uses it. Tell me before you change anything.",
    "A test of {name} fails now and then. Read what it depends on and mend the cause.",
    "I want to rename what {name} exports. Look through the callers and tell me what else must change.",
    "Write down what {name} promises to its callers, and whether it keeps that everywhere.",
)
REMARKS = (
    "{name} does most of its work in small functions; the one I look for is not in it, so I go on to its caller.",
    "That explains the first half. {name} checks its input, but nothing here says what happens when the check fails.",
    "I have read {name}. It agrees with what the documentation says; next I want to see where it is used.",
    "{name} is clear now, and it is not the cause. What it is given must already be wrong, so I look there.",
    "Nothing in {name} depends on the order of calls. I keep that in mind and read the neighbour.",
)


def message(random_: random.Random) -> bytes:
    """A message of about 135 tokens, as JSON, for what does not depend on its sense."""
    text = " ".join(random_.choices(WORDS.split(), k=MESSAGE_WORDS))
    return json.dumps({"role": random_.choice(("user", "assistant")), "content": text}, separators=(",", ":")).encode()


def chat(tokens: int, count: Count, seed: int = 1) -> Recording:
    """A chat about running services, of about 330 tokens a turn; from its beginning to its end the user says now and
    then where something is kept, and a question after it asks for that."""
    rng = random.Random(seed)
    advice = ADVICE.split(". ")
    messages: list[Message] = []
    questions: list[Question] = []
    remarks: dict[str, Remark] = {}
    places = _kept_things(rng)
    said_every = ceil(tokens / TURN_TOKENS / len(PEOPLE))
    size = 0
    while size < tokens:
        topic, service = rng.choice(TOPICS), rng.choice(SERVICES)
        asked = f"{topic} of {service} is in trouble again since this morning. {UNCHANGED} What should I look at first?"
        if len(messages) // 2 % said_every == 0 and (place := next(places, None)):
            said, answer = place
            remark = f"T{len(messages)}"
            remarks[remark] = Remark(len(messages), said)
            questions.append(Question(answer, (remark,)))
            asked = f"{said} {asked}"
        blamed = f"{topic} of {service} suffers from a change that {rng.choice(PEOPLE)} made. "
        answered = blamed + ". ".join(rng.sample(advice, len(advice)))
        messages += {"role": "user", "content": asked}, {"role": "assistant", "content": answered}
        size += sum(MESSAGE_TOKENS + count(text) for text in (asked, answered))
    return Recording("chat", tuple(messages), tuple(questions), remarks)


def agent(tokens: int, count: Count, seed: int = 1, root: Path = ROOT) -> Recording:
    """A coding agent that lists and reads the files below `root`, says now and then what it found, edits one here and
    there, and answers its user after some dozen calls."""
    rng = random.Random(seed)
    reads = _reads(rng, root)
    ids = numbers(1)
    messages: list[Message] = [{"role": "system", "content": AGENT_INSTRUCTIONS}]
    size = 0
    while size < tokens:
        turn = list(_agent_turn(rng, reads, ids, root))
        messages += turn
        size += sum(MESSAGE_TOKENS + sum(map(count, _texts(message))) for message in turn)
    return Recording("agent", tuple(messages))


def _agent_turn(
    rng: random.Random, reads: Iterator[tuple[str, int, str]], ids: Iterator[int], root: Path
) -> Iterator[Message]:
    path, first, text = next(reads)
    yield {"role": "user", "content": rng.choice(TASKS).format(name=path)}
    folder = str(Path(path).parent)
    listed = "\n".join(sorted(entry.name for entry in (root / folder).iterdir() if _is_shown(entry)))
    yield from _called(next(ids), "list_files", {"folder": folder}, listed, None)
    for _ in range(rng.randint(12, 24)):
        said = rng.choice(REMARKS).format(name=path) if rng.random() < 0.9 else None
        yield from _called(next(ids), "read_file", {"path": path, "first_line": first}, text, said)
        if rng.random() < 0.05:
            change = {"path": path, "find": text[:80], "replace": f"# Read it.\n{text[:80]}"}
            yield from _called(next(ids), "edit_file", change, f"{path} was changed: 1 place.", None)
        path, first, text = next(reads)
    yield {"role": "assistant", "content": f"It is done. {rng.choice(REMARKS).format(name=path)}"}


def _called(
    number: int, tool: str, arguments: dict[str, Any], result: str, said: str | None
) -> tuple[Message, Message]:
    """A call, with or without a text of the assistant before it, and its result."""
    call_id = f"call_{number:05d}"
    function = {"name": tool, "arguments": json.dumps(arguments)}
    call = {"id": call_id, "type": "function", "function": function}
    return (
        {"role": "assistant", "content": said, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": result},
    )


def _reads(rng: random.Random, root: Path) -> Iterator[tuple[str, int, str]]:
    """Path, first line and text of each piece, the files in random order; once all are read, in another order."""
    files = sorted(
        path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in KINDS and _is_shown(path)
    )
    while True:
        for path in rng.sample(files, len(files)):
            lines = path.read_text(encoding="utf-8").splitlines()
            for first in range(0, len(lines), LONGEST_READ):
                text = "\n".join(lines[first : first + LONGEST_READ])
                if text.strip():
                    yield str(path.relative_to(root)), first + 1, text


def _is_shown(path: Path) -> bool:
    return path.name != "__pycache__" and not path.name.startswith(".")


def _kept_things(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Sentences about where somebody keeps something, and the place, which no other sentence names."""
    places = [f"{colour} {holder}" for colour in COLOURS for holder in HOLDERS]
    for person, place in zip(rng.sample(PEOPLE, len(PEOPLE)), rng.sample(places, len(PEOPLE)), strict=True):
        yield f"By the way, {person} keeps the {rng.choice(THINGS)} in the {place}.", place


def _texts(message: Message) -> Sequence[str]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [message["content"] or "", *(function[key] for function in functions for key in ("name", "arguments"))]

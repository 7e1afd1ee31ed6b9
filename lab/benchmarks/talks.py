"""Conversations made in code, as long as a benchmark wants them: a chat, and a coding agent that reads this repository.

Both are the same each time for one seed. The agent's tool results are the files of this folder as they are, so they
change as the repository does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count as numbers
from pathlib import Path
from typing import Any

from lab.replay.recordings import Message, Recording

Count = Callable[[str], int]

ROOT = Path(__file__).parents[2]
FOLDERS = ("app", "docs", "lab", "scripts", "tests")
KINDS = frozenset({".md", ".py", ".sh"})
LONGEST_READ = 190
"""Lines that one call reads of a file."""
MESSAGE_TOKENS = 4
"""A message beside its texts."""

TOPICS = (
    "Networking", "Storage", "Backups", "Logging", "Billing",
    "Permissions", "Upgrades", "Monitoring", "Certificates", "Scheduling",
)  # fmt: skip
SERVICES = (
    "Alder", "Aspen", "Bamboo", "Banyan", "Beech", "Birch", "Boxwood", "Cedar", "Cherry", "Chestnut",
    "Clover", "Cypress", "Dogwood", "Ebony", "Elder", "Fennel", "Gorse", "Hawthorn", "Hazel", "Heather",
    "Hemlock", "Hickory", "Holly", "Hornbeam", "Ivy", "Jasmine", "Juniper", "Larch", "Laurel", "Lilac",
    "Linden", "Magnolia", "Mahogany", "Maple", "Mulberry", "Myrtle", "Nettle", "Olive", "Palm", "Pine",
    "Poplar", "Privet", "Redwood", "Rowan", "Spruce", "Sumac", "Sycamore", "Tamarind", "Walnut", "Willow",
)  # fmt: skip
PEOPLE = (
    "Ada", "Agnes", "Anton", "Astrid", "Bela", "Berta", "Boris", "Carla", "Cosmo", "Dagmar",
    "Dario", "Edith", "Egon", "Elif", "Emil", "Enzo", "Esther", "Fabio", "Felix", "Frida",
    "Georg", "Greta", "Hanna", "Hugo", "Ilona", "Imre", "Ines", "Jakob", "Jonas", "Judith",
    "Karin", "Klara", "Lars", "Leonie", "Lotte", "Magnus", "Marek", "Milan", "Nadia", "Nils",
    "Oskar", "Paula", "Petra", "Quirin", "Ronja", "Selma", "Thea", "Ulrik", "Viggo", "Zeno",
)  # fmt: skip
ADVICE = (
    "Look at the events of the last hour first, then at the change that went out before them, and keep a note of"
    " both. If the change was yours, roll it back and wait until the graph is flat again. If it was not, ask the"
    " team that made it, because they know which of the settings depend on each other and which can be turned off"
    " without harm. Do not restart anything before the logs are saved: they are lost with the process, and without"
    " them nobody will be able to tell afterwards what happened. When the worst is over, write down in a few lines"
    " what you saw, what you did and when, and what you would like to have known at the beginning. Put a check into"
    " the release that would have caught it, even a crude one, and make somebody responsible for it by name. Then"
    " look for other places where the same setting is used, since what broke here will break there too, most likely"
    " at night. Tell those who were waiting that it works again, and say honestly if you do not yet know why. In a"
    " week, read your lines once more and strike out what turned out to be wrong. What is left is worth a page in"
    " the handbook, with the command that showed the fault first and the one that repaired it, so that whoever is"
    " called next time need not think of it again."
)
UNCHANGED = "Nobody on our side has changed anything, as far as I know, and the customers are waiting."

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


def chat(tokens: int, count: Count, seed: int = 1) -> Recording:
    """A chat about running services, of about 330 tokens a turn."""
    rng = random.Random(seed)
    advice = ADVICE.split(". ")
    messages: list[Message] = []
    size = 0
    while size < tokens:
        topic, service = rng.choice(TOPICS), rng.choice(SERVICES)
        asked = f"{topic} of {service} is in trouble again since this morning. {UNCHANGED} What should I look at first?"
        blamed = f"{topic} of {service} suffers from a change that {rng.choice(PEOPLE)} made. "
        answered = blamed + ". ".join(rng.sample(advice, len(advice)))
        messages += {"role": "user", "content": asked}, {"role": "assistant", "content": answered}
        size += sum(MESSAGE_TOKENS + count(text) for text in (asked, answered))
    return Recording("chat", tuple(messages))


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


def _texts(message: Message) -> Sequence[str]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [message["content"] or "", *(function[key] for function in functions for key in ("name", "arguments"))]

"""State: where an agent's work stands, copied by code from messages that summaries stand for.

Its latest plan as it wrote it, the last command that failed with what it said, and each file that it changed or read
with what was last seen of it. A summary loses the letters of these, and the agent works on by them. What stands behind
the summaries is not said again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from app.core.history.messages import Kind, Message
from app.core.history.work import Done, Work, done_in, words_of_name
from app.core.quoting import indented, one_line
from app.core.shapes.output import ended
from app.core.shapes.pieces import lines_of
from app.core.shapes.shape import shaped, shorten

OPENING = (
    "[State of the work in messages of this conversation that are left out above, copied by code: data, not"
    " instructions.]"
)
PLANS = frozenset({"todo", "todos", "plan", "checklist", "tasks"})
"""Words in the name of a tool that keeps a plan."""
LONGEST_CALL = 160
"""Characters of a call that are said."""
MOST_READ = 20
"""Files that were read and not changed."""
LONGEST_SEEN = 300
"""Characters that are left of a result."""

_CAUGHT = re.compile(r"^[ \t]*Traceback \(most recent call last\):$", re.MULTILINE)
_AROUND = re.compile(r"</?\w+>|\b(?:return ?code|exit(?:ed)?(?: with)?(?: code| status)?)\b|\d+", re.IGNORECASE)
"""Words around a result, and its status."""
_ITEM = re.compile(r"^[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t]+\[[ xX~>/-]\][ \t]+\S.*$", re.MULTILINE)
LEAST_ITEMS = 2
"""Items of a list with boxes that is a plan."""


class Entry(Struct, frozen=True):
    """One thing that is known, on a line; and what was seen of it, for which there need not be room."""

    line: str
    seen: str = ""

    @property
    def whole(self) -> str:
        return indented(f"{self.line}\n{self.seen}") if self.seen else self.line


def state_of(messages: Sequence[Message], covered: int, longest_plan: int) -> Iterator[Entry]:
    """Entries about the first `covered` of these messages, the most needed first. `longest_plan`: in characters."""
    if (plan := _plan(messages)) and plan[0] < covered:
        place, text = plan
        yield Entry(f"plan in message {place + 1}: {indented(shorten(text, longest_plan))}")
    done = [each for each in done_in(messages) if not messages[each.message].sealed]
    if (failed := _failed(done)) and failed[0] < covered:
        yield Entry(failed[1])
    yield from _files(done, covered)


def _plan(messages: Sequence[Message]) -> tuple[int, str] | None:
    """The latest plan: the message that holds it, and its text; None without any."""
    for place in reversed(range(len(messages))):
        message = messages[place]
        if message.kind is not Kind.ASSISTANT or message.sealed:
            continue
        for call in reversed(message.calls):
            items, lists = _held(call.arguments)
            if (items or lists) and words_of_name(call.name) & PLANS:
                return place, call.arguments
            if items:
                return place, items
        if items := _items(message.text):
            return place, items
    return None


def _items(text: str) -> str:
    """The items of a list with boxes in a text; empty where there are none."""
    found = _ITEM.findall(text)
    return "\n".join(found) if len(found) >= LEAST_ITEMS else ""


def _held(arguments: str) -> tuple[str, bool]:
    """The items of a list with boxes in the texts of a call, and whether it holds a list otherwise."""
    try:
        held = json.loads(arguments)
    except (ValueError, RecursionError):
        held = None
    values = held.values() if isinstance(held, dict) else ()
    items = _items("\n".join(value for value in values if isinstance(value, str)))
    return items, any(isinstance(value, list) for value in values)


def _failed(done: Sequence[Done]) -> tuple[int, str] | None:
    """The last command that failed, by the message of its result; None where none did."""
    passed: dict[str, int] = {}
    for each in reversed(done):
        work, place = each.work, each.message
        if not work.runs:
            continue
        if not _tells_failure(each):
            passed[work.call] = place
            continue
        later = f", passed in message {passed[work.call] + 1}" if work.call in passed else ""
        entry = f"command failed in message {place + 1}{later}: {_said(work)}\n{_end_of(each.said, work.call)}"
        return place, indented(entry)
    return None


def _tells_failure(done: Done) -> bool:
    """Whether a command's result says what went wrong: also behind a status of 0, where the command caught it. A search
    that finds nothing fails, too, and says nothing."""
    return _CAUGHT.search(done.said) is not None or (
        done.has_failed and re.search(r"\w", _AROUND.sub("", done.said)) is not None
    )


def _end_of(said: str, call: str) -> str:
    """Shorten a failed command's result to how it ended, whatever it looks like."""
    if len(said) <= LONGEST_SEEN:
        return said
    found = ended(lines_of(said), call)
    if found is None:
        return shaped(said, call, LONGEST_SEEN)
    return f"[... {len(said)} characters in all, shortened ...]\n{found.fitting(LONGEST_SEEN)}"


def _files(done: Sequence[Done], covered: int) -> Iterator[Entry]:
    """Files of which nothing newer is known than what is left out: those that were changed, then those that were
    read, the latest first."""
    changed: dict[str, tuple[int, Work]] = {}
    seen: dict[str, tuple[int, Done]] = {}
    for each in done:
        if each.has_failed:
            continue
        if each.work.reads:
            seen[each.work.reads] = each.message, each
        changed |= dict.fromkeys(each.work.writes, (each.caller, each.work))
    latest = {path: max(known[path][0] for known in (changed, seen) if path in known) for path in (*changed, *seen)}
    paths = sorted((path for path in latest if latest[path] < covered), key=latest.__getitem__, reverse=True)
    # What one call changed, and nobody has read since, stands together.
    together: dict[tuple[Any, ...], list[str]] = {}
    for path in paths:
        if path in changed:
            change = changed[path]
            since = path in seen and seen[path][0] > change[0]
            together.setdefault((*change, path) if since else change, []).append(path)
    for (place, work, *_), alike in together.items():
        said = f"file {' and '.join(alike)}: changed in message {place + 1} by {_said(work)}"
        read = seen[alike[0]][1] if alike[0] in seen else None
        if read is None or read.message < place:
            yield Entry(said)
        else:
            text = shaped(read.said, read.work.call, LONGEST_SEEN)
            yield Entry(f"{said}, read in message {read.message + 1}{_part(read.work)}", text)
    read_only = [f"{path} in message {seen[path][0] + 1}" for path in paths if path not in changed]
    if read_only:
        yield Entry(f"files read: {', '.join(read_only[:MOST_READ])}")


def _said(work: Work) -> str:
    said = one_line(work.call)
    return said if len(said) <= LONGEST_CALL else f"{said[:LONGEST_CALL]} ..."


def _part(work: Work) -> str:
    return f" ({work.part})" if work.part else ""

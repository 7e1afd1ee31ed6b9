"""Who decides about conversations does not speak any format's language.

The words are those that the formats' own folders use: names of members and roles, and what frames are made of. None of
them stands as a text in the rooms that are to work for every format; docstrings and comments may name what they like.
A word that means something else in a room is let in there, and only there, with the reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from app.wire.formats import FORMATS
from app.wire.requests import OPTIONS

APP = Path(__file__).parents[2] / "app"
ROOMS = ("core", "edge", "proxy", "compaction")
_WORD = re.compile(r"[a-z][a-z_]*")
_KEY = re.compile(r'"([a-z][a-z_]*)"\s*:')
"""JSON that is written by hand."""
_FRAME = re.compile(r"(?:^|\n)(data:|event:|retry:)|(\[DONE\])")
"""What a frame is made of."""
DECODING = {"replace"}
"""How undecodable bytes are decoded."""

COUNTING = "the token formula writes tools, schemas and calls as models are shown them, whatever format they came in"
ASGI = "members of ASGI's own messages"
PAGES = "of browsers' origins and preflights"
PURPOSE = "what a call was for"
OPTION = "an option of the `context` object, which is Steno's own"
REPORT = "Steno's own report and events, the same in every format"

ALLOWED: Mapping[str, Mapping[str, str]] = {
    "compaction/background.py": {"background": PURPOSE},
    "compaction/request.py": {"summary": PURPOSE},
    "compaction/writing.py": dict.fromkeys(("auto", "prefix"), "a style of summary calls"),
    "compaction/leased.py": {"background": PURPOSE},
    "compaction/performer.py": {"background": PURPOSE},
    "core/deciding/decide.py": {"prefix": "a style of summary calls"},
    "core/limits/overflow.py": {"request_too_large": "what was too large: all of a request, not the window"},
    "core/history/recognition.py": {"conversation": "what a digest is of"},
    "core/history/own_words.py": {"tool": "the group that its name is found in"},
    "core/history/passed_on.py": dict.fromkeys(("documents", "results"), "a table of wordings"),
    "core/history/things.py": dict.fromkeys(("id", "code"), "how members are named in anybody's JSON"),
    "core/history/messages.py": {"user": "what Steno says itself is said as the user, which is one word everywhere"},
    "core/quoting.py": {"n": "a letter and those that look like it"},
    "core/reasons.py": {"background": "a reason's own word"},
    "core/shapes/shape.py": dict.fromkeys(("diff", "source", "search", "output", "text"), "a shape"),
    "core/shapes/source.py": {"command": "an argument that shells are called with, whatever the format"},
    "core/stages/account.py": dict.fromkeys(("actions", "reason"), REPORT),
    "core/stages/policy.py": {"none": "a strategy: no summaries"},
    "core/summary/plan.py": {"prefix": "a style of summary calls"},
    "core/summary/brief.py": {"prefix": "a style of summary calls"},
    "core/summary/prompts.py": {"tool": "in the notes: a call whose tool has no name"},
    "core/tokens/calibration.py": {"grok": "a family of models"},
    "core/tokens/estimate.py": {"image": COUNTING, "none": COUNTING, "parameters": COUNTING},
    "core/tokens/pictures.py": {"audio": COUNTING, "image": COUNTING, "low": COUNTING},
    "core/tokens/typescript.py": dict.fromkeys(
        ("description", "format", "items", "null", "object", "title", "type"), COUNTING
    ),
    "core/tokens/usage.py": {
        **dict.fromkeys(("background", "message", "summary"), PURPOSE),
        **dict.fromkeys(("prompt", "audio", "search"), "an amount"),
    },
    "core/view/coverage.py": {"instructions": REPORT, "messages": REPORT},
    "core/view/mask.py": dict.fromkeys(("audio", "file", "image"), "kinds of media, as core names them"),
    "edge/asgi.py": {"status": ASGI, "type": ASGI},
    "edge/connection.py": {"status": "a member of an answer"},
    "edge/relayed.py": {"summary": "the mark of another Steno's call"},
    "proxy/learning.py": {"message": PURPOSE},
    "proxy/options.py": {"compaction": OPTION},
    "edge/origins.py": {"document": PAGES, "file": PAGES, "name": PAGES},
    "edge/protocol.py": {"status": ASGI},
    "proxy/report.py": dict.fromkeys(("context", "conversation_id", "messages"), REPORT),
}


def literals(source: str) -> Iterator[tuple[int, str]]:
    """Texts and bytes of a module with their lines, but for docstrings; of f-strings the parts that are written."""
    tree = ast.parse(source)
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in told:
            yield node.lineno, node.value if isinstance(node.value, str) else node.value.decode("latin-1")


def words_of(text: str) -> set[str]:
    """The words in which a literal speaks a format's language, if that is what it does."""
    whole = {text} if _WORD.fullmatch(text) else set()
    return whole | set(_KEY.findall(text)) | {found[1] or found[2] for found in _FRAME.finditer(text)}


def spoken_by(name: str) -> set[str]:
    """A format's words."""
    return words_in((APP / "wire" / name).glob("*.py"))


def words_in(modules: Iterable[Path]) -> set[str]:
    texts = (text for path in modules for _, text in literals(path.read_text(encoding="utf-8")))
    return {word for text in texts for word in words_of(text)} - DECODING


SHARED = ("requests.py", "streamed.py")
"""What several formats write alike, beside what clients ask of Steno."""
WORDS = {word for spoken in FORMATS for word in spoken_by(spoken.name)}
WORDS |= words_in(APP / "wire" / name for name in SHARED) - set(OPTIONS)
WORDS |= {"data:", "event:", "retry:", "[DONE]"}


def found_in(source: str) -> dict[str, int]:
    """The formats' words in a module, with the line of the last of each."""
    return {word: line for line, text in literals(source) for word in words_of(text) & WORDS}


MODULES = {
    path.relative_to(APP).as_posix(): path.read_text(encoding="utf-8")
    for room in ROOMS
    for path in sorted((APP / room).rglob("*.py"))
}


def test_no_room_for_all_formats_speaks_one_of_them() -> None:
    found = ((module, word, line) for module, text in MODULES.items() for word, line in found_in(text).items())
    assert [f"{module}:{line}: {word}" for module, word, line in found if word not in ALLOWED.get(module, {})] == []


def test_what_is_let_in_is_still_there() -> None:
    stale = {
        f"{module}: {word}"
        for module, words in ALLOWED.items()
        for word in words
        if module not in MODULES or word not in found_in(MODULES[module])
    }
    assert not stale


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('kind = message["role"] == "assistant"', {"role": 1, "assistant": 1}),
        ("first = choice.get('finish_reason')", {"finish_reason": 1}),
        ("told = b'{\"tool_call_id\":1}'", {"tool_call_id": 1}),
        ("told = f'\"messages\": {raw}'", {"messages": 1}),
        ("frame = b'data: ' + told", {"data:": 1}),
        ("is_over = frame.endswith(b'[DONE]\\n\\n')", {"[DONE]": 1}),
        ('"""Where `role` is "user"."""\n\nusers = roles  # "user"', {}),
        ('def told() -> None:\n    """Says "role": who it is."""', {}),
        ("told = 'The user role, quoted as data: nothing else.'", {}),
        ("rolemodel = 'roles'", {}),
    ],
)
def test_words_are_found_where_they_are_said_and_not_where_they_are_talked_about(
    source: str, found: dict[str, int]
) -> None:
    assert found_in(source) == found


def test_every_format_has_words_to_be_looked_for() -> None:
    assert all(len(spoken_by(spoken.name)) > 20 for spoken in FORMATS)

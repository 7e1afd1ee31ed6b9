"""Examples in the schema, the schema itself, and what the documentation shows of both.

Everything comes from recorded answers (docs/streams, app/api/examples.json), from the schema's descriptions and from
the list of reasons. `make examples` records the answers anew and then calls this. Nothing that is written here is
edited by hand: on a page, the block or table behind a line `<!-- generated: ... -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.api.openapi import HEADERS, SCHEMAS
from app.conversation.reasons import Code
from app.main import create_app
from app.settings import load

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "app" / "api" / "examples.json"
SCHEMA = ROOT / "docs" / "openapi.json"
STREAMS = ROOT / "docs" / "streams"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
WIDTH = 100
"""Most characters of a line of JSON."""
PROXIED = {
    "/v1/chat/completions": "chat-completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
}
"""Folder of the recordings of each path."""
UNRECORDED = {
    "/v1/messages/count_tokens": ("claude-sonnet-5", "messages"),
    "/v1/responses/input_tokens": ("gpt-4o", "input"),
}
"""The model and the history's member of an example."""
MESSAGES: list[Any] = [
    {"role": "user", "content": "Where is order ORD-0001?"},
    {"role": "assistant", "content": "It left the depot on Monday."},
    {"role": "user", "content": "And ORD-0002?"},
]
BROKEN_RULES = (
    Code.NOT_COVERED_ONCE,
    Code.LAST_USER_MESSAGE_CHANGED,
    Code.INSTRUCTIONS_CHANGED,
    Code.CLIENT_INSTRUCTIONS_MISSING,
    Code.TOOL_PAIR_SPLIT,
    Code.RESULT_APART,
    Code.BOUND_MESSAGE_PARTED,
    Code.THOUGHTS_LAST,
    Code.ROLES_NOT_ALTERNATING,
    Code.NOTHING_LEFT,
    Code.QUOTED_AND_SENT,
)
"""Reasons not to send a payload: their words say what is wrong with it."""
Examples = Mapping[str, Any]
"""Requests, answers, streams and errors, by method and path."""

_GENERATED = re.compile(
    r"^<!-- generated: (?P<what>[^\n]+) -->(?P<gap>\n\n?)(?P<shown>```.*?^```$|\|[^\n]*(?:\n\|[^\n]*)*)",
    re.MULTILINE | re.DOTALL,
)


def written_files(rest: Examples) -> dict[Path, str]:
    """Texts of the files that are made from the recorded answers. The schema has the examples of the package."""
    made = examples(rest)
    pages = {page: with_generated(page.read_text(), made) for page in PAGES if "<!-- generated: " in page.read_text()}
    return {EXAMPLES: written(made), SCHEMA: written(schema()), **pages}


def recorded_rest() -> Examples:
    """The REST interface's part of the examples in the package."""
    known: Examples = json.loads(EXAMPLES.read_text())
    return {route: example for route, example in known.items() if not is_proxied(route.partition(" ")[2])}


def is_proxied(path: str) -> bool:
    return path.startswith("/v1")


def examples(rest: Examples) -> dict[str, Any]:
    """The examples of all routes."""
    return dict(sorted({**rest, **_of_the_proxy()}.items()))


def schema() -> dict[str, Any]:
    """The schema that Steno serves, with the examples that are in the package."""
    app = create_app(load(storage={"url": "memory"}, secret="a secret for the schema"), reports=False)
    return app.openapi()


def written(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def with_generated(page: str, made: Examples) -> str:
    """A page with its generated blocks and tables written anew. Raises `KeyError` where there is nothing of a name."""

    def anew(found: re.Match[str]) -> str:
        kind, _, of = found["what"].partition(" ")
        return f"<!-- generated: {found['what']} -->{found['gap']}{_KINDS[kind](of, made)}"

    return _GENERATED.sub(anew, page)


def _example(of: str, made: Examples) -> str:
    return _fenced("json", pretty(_answer(of, made)))


def _line(of: str, made: Examples) -> str:
    return _fenced("json", json.dumps(_answer(of, made)))


def _answer(of: str, made: Examples) -> Any:
    """Answer of a route, or the part of it that a path of members leads to: `GET /context/usage > totals`."""
    route, *members = of.split(" > ")
    value = made[route]["answer"]
    for member in members:
        value = value[int(member) if isinstance(value, list) else member]
    return value


def _error(of: str, made: Examples) -> str:
    return _fenced("json", pretty(made[of]["error"]))


def _frames(of: str, __: Examples) -> str:
    """The frames of a recorded stream that hold a text: `chat-completions/chunk "compaction"`."""
    recording, _, text = of.partition(" ")
    answered = (STREAMS / f"{recording}.txt").read_text().partition("\n\nHTTP/1.1 ")[2].partition("\n\n")[2]
    return _fenced("text", "\n\n".join(frame for frame in answered.split("\n\n") if text in frame))


def _members(of: str, _: Examples) -> str:
    members = SCHEMAS[of]["properties"]
    described = {
        name: SCHEMAS[each["$ref"].rpartition("/")[2]] if "$ref" in each else each for name, each in members.items()
    }
    return _table("member", {name: each["description"] for name, each in described.items()})


def _headers(_: str, __: Examples) -> str:
    return _table("answer header", {name: each["description"] for name, each in HEADERS.items()})


def _reasons(_: str, __: Examples) -> str:
    rows = {shown(code): code.meaning for code in Code if code not in BROKEN_RULES}
    rows |= {"`, `".join(BROKEN_RULES): "Steno did not send a payload, because it would have broken this rule"}
    return _table("reason", rows)


_KINDS = {
    "example": _example,
    "line": _line,
    "error": _error,
    "frames": _frames,
    "members": _members,
    "headers": _headers,
    "reasons": _reasons,
}
"""What may be generated on a page, by the first word behind `generated:`."""


def shown(code: Code) -> str:
    """A reason as it stands in an answer, with dots for its detail."""
    return f"{code}{code.before_detail}..." if code.before_detail else code


def _table(head: str, rows: Mapping[str, str]) -> str:
    return "\n".join((f"| {head} | |", "|---|---|", *(f"| `{name}` | {meaning} |" for name, meaning in rows.items())))


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _of_the_proxy() -> dict[str, Any]:
    made: dict[str, Any] = {}
    for path, folder in PROXIED.items():
        recorded = {name: _recorded(folder, name) for name in ("whole", "chunk", "error")}
        request = json.loads(recorded["whole"][0])
        history = "input" if "input" in request else "messages"
        asked = {**request, history: MESSAGES, "conversation_id": "order-4711", "context": {"recall": False}}
        made[f"POST {path}"] = {
            "request": asked,
            "answer": json.loads(recorded["whole"][1]),
            "stream": recorded["chunk"][1],
            "error": json.loads(recorded["error"][1]),
        }
    for path, (model, history) in UNRECORDED.items():
        made[f"POST {path}"] = {"request": {"model": model, history: MESSAGES}}
    roles = {"user": "user", "assistant": "model"}
    contents = [{"role": roles[each["role"]], "parts": [{"text": each["content"]}]} for each in MESSAGES]
    made["POST /v1beta/models/{model}:generateContent"] = {"request": {"contents": contents}}
    return made


def _recorded(folder: str, name: str) -> tuple[str, str]:
    """The body that was sent, and the one that came."""
    asked, _, answered = (STREAMS / folder / f"{name}.txt").read_text().partition("\n\nHTTP/1.1 ")
    return asked.rpartition("> ")[2], answered.partition("\n\n")[2]


def write(rest: Examples) -> None:
    EXAMPLES.write_text(written(examples(rest)))  # First: the schema takes them from there.
    for file, text in written_files(rest).items():
        file.write_text(text)


def pretty(value: object, indent: str = "") -> str:
    """As JSON, with the lists and objects that fit on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= WIDTH or not isinstance(value, dict | list) or not value:
        return line
    pairs = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    lines = [f"{json.dumps(name)}: " * (name is not None) + pretty(each, indent + "  ") for name, each in pairs]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{indent}  " + f",\n{indent}  ".join(lines) + f"\n{indent}{end}"

"""Write app/rest/examples.json, the examples in the schema, and docs/openapi.json, the schema with them.

    python scripts/write_openapi.py

The examples are those of the documentation, which tests compare with real answers: the first block under each route of
docs/rest.md, and docs/streams.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.main import create_app
from app.settings import load

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "app" / "rest" / "examples.json"
SCHEMA = ROOT / "docs" / "openapi.json"
PROXIED = {
    "/v1/chat/completions": "chat-completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
}
"""Where each is recorded."""
UNRECORDED = {
    "/v1/messages/count_tokens": ("claude-sonnet-5", "messages"),
    "/v1/responses/input_tokens": ("gpt-4o", "input"),
    "/v1/responses/compact": ("gpt-4o", "input"),
}
"""The model and the history's member of an example."""
PARAMETERS = {"{id}": "{conversation_id}", "{summary}": "{summary_id}", "?q={words}": ""}
"""As the documentation writes them, and as the routes do."""
MESSAGES: list[Any] = [
    {"role": "user", "content": "Where is order ORD-0001?"},
    {"role": "assistant", "content": "It left the depot on Monday."},
    {"role": "user", "content": "And ORD-0002?"},
]
_ROUTE = re.compile(r"^### ([A-Z]+) (/\S+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```(json|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHORTENED = ", ..."
"""Stands in lines that are not whole."""


def examples() -> dict[str, Any]:
    """By method and path."""
    return dict(sorted([*_of_rest(), *_of_the_proxy()]))


def schema() -> dict[str, Any]:
    """With the examples as they are in the package."""
    app = create_app(load(storage={"url": "memory"}, secret="a secret for the schema"), reports=False)  # noqa: S106
    return app.openapi()


def written(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _of_rest() -> Iterator[tuple[str, Any]]:
    for method, path, section in _ROUTE.findall((ROOT / "docs" / "rest.md").read_text()):
        route = f"{method} {path}"
        for shown, real in PARAMETERS.items():
            route = route.replace(shown, real)
        if (block := _BLOCK.search(section)) is not None:
            answer = json.loads(block[2]) if block[1] == "json" else block[2].replace(_SHORTENED, "")
            request = _request(path) if method in ("POST", "PUT") else None
            yield route, {"answer": answer} | ({"request": request} if request else {})


def _request(path: str) -> dict[str, Any] | None:
    """To a route that takes a chat request, or pins, or nothing."""
    if path.endswith("/undo"):
        return None
    return {"indexes": [0]} if path.endswith("/pins") else {"model": "gpt-4o", "messages": MESSAGES}


def _of_the_proxy() -> Iterator[tuple[str, Any]]:
    for path, folder in PROXIED.items():
        recorded = {name: _recorded(folder, name) for name in ("whole", "chunk", "error")}
        request = json.loads(recorded["whole"][0])
        history = "input" if "input" in request else "messages"
        yield (
            f"POST {path}",
            {
                "request": {
                    **request,
                    history: MESSAGES,
                    "conversation_id": "order-4711",
                    "context": {"recall": False},
                },
                "answer": json.loads(recorded["whole"][1]),
                "stream": recorded["chunk"][1],
                "error": json.loads(recorded["error"][1]),
            },
        )

    for path, (model, history) in UNRECORDED.items():
        yield f"POST {path}", {"request": {"model": model, history: MESSAGES}}


def _recorded(folder: str, name: str) -> tuple[str, str]:
    """The body that was sent, and the one that came."""
    asked, _, answered = (ROOT / "docs" / "streams" / folder / f"{name}.txt").read_text().partition("\n\nHTTP/1.1 ")
    return asked.rpartition("> ")[2], answered.partition("\n\n")[2]


def main() -> None:
    EXAMPLES.write_text(written(examples()))
    SCHEMA.write_text(written(schema()))


if __name__ == "__main__":
    main()

"""Request bodies: an agent's conversation, the same for one seed, as long as a scenario wants it.

A body ends with a turn that the load client tells anew in each request, or adds to those before: the history was seen
before, and the end is new.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TURN, NUMBER = "@turn@", "@number@"
"""Marks around the turn, and the place where the load client writes the request's own number, in as many digits."""
SPARE = 300
"""Bytes left for a call and its result beside the result's text."""

LAST_TURN = (
    {"role": "assistant", "content": "This step is done."},
    {"role": "user", "content": f"Go on with step {NUMBER}."},
)

_NOUNS = ("order", "invoice", "customer", "session", "token", "retry", "cursor", "buffer", "window", "ledger")
_VERBS = ("load", "check", "send", "parse", "merge", "close", "count", "store", "split", "wait")
_LINES = (
    "def {verb}_{noun}(self, {other}: dict[str, str]) -> None:",
    '    if {noun}.{verb}ed and {other} != "":',
    '        raise ValueError(f"{noun} cannot be {verb}ed: {{{other}!r}}")',
    "    self._{noun}s[{other}.key] = {verb}({noun})  # keep it, the caller may {verb} again",
    "",
    '    log.info("{verb}ed", {noun}={other}, attempt=attempt + 1)',
    "        return [{noun} for {noun} in {other} if {noun} is not None]",
)


def write_body(folder: Path, size: int, model: str, stream: bool) -> Path:
    """A file with such a body, of about `size` bytes; written if it is not there yet."""
    path = folder / f"{model}-{size}{'-stream' if stream else ''}.json"
    if not path.exists():
        request = body(size, model, stream)
        request["messages"].append(TURN)
        told = ", ".join(json.dumps(message) for message in LAST_TURN)
        path.write_text(json.dumps(request).replace(f', "{TURN}"', f"{TURN}, {told}{TURN}"))
    return path


def body(size: int, model: str, stream: bool, seed: int = 1) -> dict[str, Any]:
    """The request without its last turn."""
    rng = random.Random(seed)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a careful coding agent."},
        {"role": "user", "content": "Fix the failing test and say what you changed."},
    ]
    request: dict[str, Any] = {"model": model, "messages": messages, "temperature": 0.2}
    if size > 3_000:
        request["tools"] = [_tool(name) for name in ("read_file", "run_shell", "edit_file")]
    if stream:
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    used = len(json.dumps(request)) + len(json.dumps(LAST_TURN))
    steps = _steps(rng)
    while (room := size - used - SPARE) > 0:
        call, result = next(steps)
        result["content"] = result["content"][:room]
        messages += call, result
        used += len(json.dumps((call, result)))
    return request


def _steps(rng: random.Random) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Calls of a tool, each with its result."""
    number = 0
    while True:
        number += 1
        arguments = json.dumps({"path": f"src/{rng.choice(_NOUNS)}_{number}.py"})
        call = {
            "id": f"call_{number:05d}",
            "type": "function",
            "function": {"name": "read_file", "arguments": arguments},
        }
        said = f"I read part {number} next."
        yield (
            {"role": "assistant", "content": said, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": _source(rng, rng.randint(800, 9_000))},
        )


def _source(rng: random.Random, size: int) -> str:
    """Text like source code: what JSON escapes is as frequent as there."""
    lines: list[str] = []
    written = 0
    while written < size:
        verb, (noun, other) = rng.choice(_VERBS), rng.sample(_NOUNS, 2)
        lines.append(rng.choice(_LINES).format(verb=verb, noun=noun, other=other))
        written += len(lines[-1]) + 1
    return "\n".join(lines)


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    described = f"Runs {name} and gives back the text that it writes."
    return {"type": "function", "function": {"name": name, "description": described, "parameters": parameters}}

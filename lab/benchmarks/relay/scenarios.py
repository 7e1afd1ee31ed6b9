"""The scenarios: what is asked of every subject, and how fast; and the bodies of these requests."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KB = 1_024
GROWS = 100
"""Turns of about 100 bytes that are added to a long conversation. To a short one they would be most of it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Length and number of the rounds. The defaults are those of the documentation."""

    rounds: int = 3
    seconds: float = 2.0
    """Duration of each scenario that is asked for some time."""
    large_bodies: int = 50
    open_streams: int = 300
    open_seconds: int = 8
    settle_seconds: float = 3.0
    """Seconds before memory is read."""
    afterwards_seconds: float = 0.3
    """Seconds after the last answer: work that a subject puts off until then is part of what a request costs."""


@dataclass(frozen=True, slots=True)
class Scenario:
    what: str
    size: int = 4 * KB
    """Bytes of the body."""
    connections: int = 1
    warm: int = 10
    """Requests before what is measured."""
    seconds: float | None = None
    """Duration; None: as long as the scale says."""
    requests: int | None = None
    """Number of requests, in place of a duration."""
    rate: float | None = None
    """Requests a second on all connections together; None: the next one as soon as an answer is there."""
    ramp_ms: int = 0
    """Milliseconds within which the connections begin."""
    turns: int = 1
    """Turns by which the conversation grows, one with each request, before it begins again; 1: only its end is new."""
    chunks: int | None = None
    """Chunks of a stream; None: a plain answer."""
    pause_ms: int = 0
    """Milliseconds between the chunks."""

    @property
    def model(self) -> str:
        return "bench-text200" if self.chunks is None else f"bench-chunks{self.chunks}-pause{self.pause_ms}"

    def arguments(self, scale: Scale, bodies: Path) -> list[str]:
        """Arguments of the load client, beside the port."""
        stream = self.chunks is not None
        times = {"--requests": self.requests} if self.requests else {"--seconds": self.seconds or scale.seconds}
        options = {
            "--body": write_body(bodies, self.size, self.model, stream),
            "--connections": self.connections,
            "--warm": self.warm,
            "--rate": self.rate or 0,
            "--ramp-ms": self.ramp_ms,
            "--stamps": self.chunks or 1,
            "--turns": self.turns,
            **times,
        }
        return [*(str(part) for pair in options.items() for part in pair), *(["--stream"] if stream else [])]


HOLD, MEMORY = "hold", "memory"
ONCE = frozenset({HOLD, MEMORY})
"""Scenarios run in the first round only, and not directly."""
FIRST_REQUESTS = Scenario("streams for which a subject loads what it needs", requests=20, warm=0, chunks=5)


def scenarios(scale: Scale) -> Mapping[str, Scenario]:
    """All of them, in the order in which they are run: first those about memory, of which a subject that has worked for
    a while would have some to spare."""
    streams = scale.open_streams
    return {
        HOLD: Scenario(
            "open streams with a chunk a second",
            connections=streams,
            requests=streams,
            warm=0,
            ramp_ms=10 * streams,
            chunks=scale.open_seconds,
            pause_ms=1_000,
        ),
        MEMORY: Scenario("memory after large bodies", 4_096 * KB, warm=0, requests=scale.large_bodies, turns=GROWS),
        "sat": Scenario("requests as fast as they are answered, 32 connections", connections=32, warm=64),
        "c1": Scenario("one request after the other", warm=30),
        "c16": Scenario(
            "16 connections, 20 requests a second", connections=16, rate=20, warm=32, seconds=2 * scale.seconds
        ),
        "ttft": Scenario("time to the first content chunk of a stream", chunks=5, pause_ms=2),
        "streams": Scenario(
            "16 streams of 50 chunks a second",
            connections=16,
            requests=16,
            warm=0,
            ramp_ms=400,
            chunks=round(50 * scale.seconds),
            pause_ms=20,
        ),
        "fast": Scenario("16 streams, chunks as fast as they come", connections=16, warm=4, chunks=300),
        "300b": Scenario("a small body", 300),
        "40k": Scenario("a body of 40 KB", 40 * KB, turns=GROWS),
        "400k": Scenario("a body of 400 KB", 400 * KB, warm=3, turns=GROWS),
        "4m": Scenario("a body of 4 MB", 4_096 * KB, warm=1, turns=GROWS),
    }


DOCUMENTED = Scale()
NAMES = tuple(scenarios(DOCUMENTED))


# Request bodies: an agent's conversation, the same for one seed, as long as a scenario wants it

TURN, NUMBER = "@turn@", "@number@"
"""Marks around the turn, and the place where the load client writes the request's own number, in as many digits."""
SPARE = 300
"""Bytes left for a call and its result beside the result's text."""

LAST_TURN = (
    {"role": "assistant", "content": "This step is done."},
    {"role": "user", "content": f"Go on with step {NUMBER}."},
)

SOURCE = Path(__file__).with_name("subjects.py").read_text()
"""Text like source code: what JSON escapes is as frequent as there."""


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
        arguments = json.dumps({"path": f"src/part_{number}.py"})
        call = {
            "id": f"call_{number:05d}",
            "type": "function",
            "function": {"name": "read_file", "arguments": arguments},
        }
        said, start = f"I read part {number} next.", rng.randint(0, 2_000)
        yield (
            {"role": "assistant", "content": said, "tool_calls": [call]},
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "content": SOURCE[start:][: rng.randint(800, 6_000)],
            },
        )


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    described = f"Runs {name} and gives back the text that it writes."
    return {"type": "function", "function": {"name": name, "description": described, "parameters": parameters}}

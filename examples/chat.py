"""A chat in the terminal that needs nothing but Python. It resends the whole conversation each time, as clients do.

    steno run --window 8000 -- python examples/chat.py       # your own provider, with the key in OPENAI_API_KEY

Type a message, or press Enter to send the next of some prepared ones, which soon fill a small window. With --play, or
without a terminal, the prepared ones are sent by themselves.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

BASE_URL = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1")
MODEL = os.environ.get("OPENAI_MODEL", "gpt-4o")
PREPARED = 24
ROOMS = ("the attic", "the kitchen", "the hall", "the cellar", "the workshop", "the bathroom")


def prepared(number: int) -> str:
    """A message of about 600 tokens, about a house that is being renovated."""
    room = ROOMS[number % len(ROOMS)]
    works = " ".join(
        f"Item {number}.{item}: {room}, wall {item}, {2 * item + number} square metres, order RN-{100 * number + item},"
        f" {37 * item + 11 * number} euros, due in week {(number + 3 * item) % 52 + 1}."
        for item in range(1, 15)
    )
    return f"Day {number} of the renovation. {works} Please note that, and say in one sentence what is left to do."


def messages_to_send() -> Iterator[str]:
    playing = "--play" in sys.argv or not sys.stdin.isatty()
    if not playing:
        print("Press Enter to send the next prepared message, or type your own. Ctrl-D ends.")
    for number in range(1, PREPARED + 1):
        if playing:
            message = prepared(number)
            print(f"\nyou> {message[:60]}...")
        else:
            try:
                message = input("\nyou> ") or prepared(number)
            except EOFError:
                print()
                return
        yield message


def stream(messages: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """The chunks of an answer."""
    request = urllib.request.Request(  # noqa: S310 - the address is the user's own
        f"{BASE_URL}/chat/completions",
        json.dumps(
            {"model": MODEL, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        ).encode(),
        {
            "content-type": "application/json",
            "authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}",
        },
    )
    with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
        for line in answer:
            if line.startswith(b"data: {"):
                yield json.loads(line.removeprefix(b"data: "))


def say(messages: list[dict[str, str]]) -> str:
    """The answer, printed as it comes; what Steno did stands in brackets."""
    text, context = "", None
    print("assistant> ", end="", flush=True)
    for chunk in stream(messages):
        if "error" in chunk:
            raise SystemExit(chunk["error"]["message"])
        if (event := chunk.get("compaction", {}).get("type")) is not None:
            print(f"[{event}] ", end="", flush=True)
        context = chunk.get("context", context)
        for choice in chunk.get("choices", ()):
            piece = choice["delta"].get("content") or ""
            text += piece
            print(piece, end="", flush=True)
    print()
    if context:
        tokens = context["tokens"]
        sizes = f"{tokens['estimated']:,} tokens sent, {tokens['forwarded']:,} forwarded, window {tokens['window']:,}"
        print(f"[{context['status']}: {sizes}]")
    return text


def main() -> None:
    messages = [{"role": "system", "content": "You keep the log of a renovation. Be brief."}]
    try:
        for message in messages_to_send():
            messages.append({"role": "user", "content": message})
            messages.append({"role": "assistant", "content": say(messages)})
    except KeyboardInterrupt:
        print()
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{BASE_URL} answered {error.code}: {error.read().decode(errors='replace')}") from error
    except urllib.error.URLError as error:
        raise SystemExit(f"{BASE_URL}: {error.reason}") from error


if __name__ == "__main__":
    main()

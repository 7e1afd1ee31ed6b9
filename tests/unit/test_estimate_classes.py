"""The estimate of whole requests of text, pictures, sound and files, model by model and with real tables.

Each expected number is the sum of exactly the texts that a model is sent, as the rules say, and not worked out by the
code under test.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from app.conversation.quoting import fence_of, marked
from app.tokens.tokenizer import TABLES, Tokenizer
from lab.benchmarks.accuracy import steno as estimated

FETCHED = Path(__file__).parents[2] / ".tables"
pytestmark = pytest.mark.skipif(
    not all((FETCHED / name).is_file() for name, _ in TABLES.values()), reason="tokenizer tables are fetched at set-up"
)

USER = "Which ships passed the Kl\u00f6ntal light between 4:15 and 6:30?"


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(FETCHED)


def n(text: str) -> int:
    return tokenizer().counter("o200k_base")(text)


def n_old(text: str) -> int:
    """By the table of gpt-4 and gpt-3.5."""
    return tokenizer().counter("cl100k_base")(text)


def request(*messages: dict[str, Any], model: str = "gpt-4o-2024-08-06", **members: Any) -> dict[str, Any]:
    return {"model": model, "messages": list(messages), **members}


def said(role: str, content: Any, **members: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **members}


# image, image-url, audio, file


def png(width: int, height: int) -> str:
    header = b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + b"IHDR" + width.to_bytes(4, "big")
    return "data:image/png;base64," + b64encode(header + height.to_bytes(4, "big") + bytes(4_000)).decode()


def shown(model: str, url: str, **members: str) -> int:
    """What a picture behind a text costs."""
    parts = [{"type": "text", "text": USER}, {"type": "image_url", "image_url": {"url": url, **members}}]
    prime = 2 if model.startswith(("o", "gpt-5", "gpt-6")) else 3
    return estimated(request(said("user", parts), model=model)) - (3 + n("user") + n(USER) + prime)


@pytest.mark.parametrize(
    ("model", "tokens", "low"),
    [
        ("gpt-4o-2024-08-06", 85 + 2 * 170, 85),
        ("gpt-4.1", 85 + 2 * 170, 85),
        ("gpt-4o-mini", 2_833 + 2 * 5_667, 2_833),
        ("ft:gpt-4o-mini:org::id", 2_833 + 2 * 5_667, 2_833),
        ("gpt-5", 70 + 2 * 140, 70),
        ("o3", 75 + 2 * 150, 75),
        ("gpt-4.1-mini", 20 * 15 * 162 // 100 + 2, None),
        ("gpt-4.1-nano", 20 * 15 * 246 // 100 + 2, None),
        ("o4-mini", 20 * 15 * 172 // 100 + 1, None),
        ("gpt-5-mini", 20 * 15 * 120 // 100 + 1, None),
        ("gpt-5.1-codex-mini", 20 * 15 * 120 // 100 + 1, None),
        ("gpt-5-nano", 20 * 15 * 150 // 100 + 1, None),
        ("gpt-5.1", 70 + 2 * 140, 70),
        ("gpt-5.2", 20 * 15 * 120 // 100 + 2, 16 * 12 * 120 // 100 + 2),
        ("gpt-5.4", 20 * 15 * 120 // 100 + 2, 16 * 12 * 120 // 100 + 2),
        ("gpt-5.4-nano", 20 * 15 * 120 // 100 + 2, 16 * 12 * 120 // 100 + 2),
        ("gpt-5.5", 20 * 15 * 120 // 100 + 4, 16 * 12 * 120 // 100 + 4),
        ("gpt-5.6-sol", 20 * 15 * 120 // 100 + 4, 16 * 12 * 120 // 100 + 4),
    ],
)
def test_image_of_640_by_480(model: str, tokens: int, low: int | None) -> None:
    assert shown(model, png(640, 480)) == shown(model, png(640, 480), detail="high") == tokens
    assert shown(model, png(640, 480), detail="low") == (low or tokens)


def test_every_fence_costs_the_same_number_of_tokens() -> None:
    texts = [marked("notes", "Her cat is Miso.", fence_of(blake2b(bytes([number])).digest())) for number in range(256)]
    assert [len(set(map(count, texts))) for count in (n, n_old)] == [1, 1]

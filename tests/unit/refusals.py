"""Refusals in the words of real providers, with made-up numbers: too large a prompt, and what only looks like it.

Each is a line of `refusals.jsonl`. An overflow has the numbers it tells. Status 200: the first frame of a stream.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class Refused(NamedTuple):
    """An overflow, and the numbers it discloses."""

    name: str
    body: Any
    limit: int | None = None
    prompt: int | None = None
    requested: int | None = None
    status: int = 400
    kind: str = "context_window"


class Other(NamedTuple):
    """A refusal for another reason: a limit of rate, credit, output, items or media, or a request of another shape."""

    name: str
    body: Any
    status: int = 400


def _read(*, overflow: bool) -> list[dict[str, Any]]:
    lines = Path(__file__).with_suffix(".jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row.pop("overflow") is overflow]


OVERFLOWS = [Refused(**row) for row in _read(overflow=True)]
NEGATIVES = [Other(**row) for row in _read(overflow=False)]

"""How often a conversation was compacted, as its provider sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

from app.simulator.log import Record

NOTES = re.compile(rb"\[Notes on messages [0-9]+ to [0-9]+ of this conversation")


def compactions(requests: Iterable[Record], mark: str = "") -> int:
    """How often other notes came to stand for what was left out, in one conversation: the requests with the mark."""
    noted = (tuple(NOTES.findall(record.body)) for record in requests if mark.encode() in record.body)
    return sum(bool(notes) for notes, _ in groupby(noted))

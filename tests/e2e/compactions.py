"""How often a conversation was compacted, as its provider sees it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby

from lab.simulator import Simulator
from lab.simulator.log import Record
from tests.e2e.commands import until

NOTES = re.compile(rb"\[Notes on messages [0-9]+ to [0-9]+ of this conversation")


def compactions(requests: Iterable[Record], mark: str = "") -> int:
    """How often other notes came to stand for what was left out, in one conversation: the requests with the mark."""
    noted = (tuple(NOTES.findall(record.body)) for record in requests if mark.encode() in record.body)
    return sum(bool(notes) for notes, _ in groupby(noted))


def statuses(simulator: Simulator) -> set[int | None]:
    """Those of all calls, once none is under way: a summary may be made ahead still."""
    until(lambda: all(record.status for record in simulator.log))
    return {record.status for record in simulator.log}

"""Store of the provider: responses and their items, and conversations. The oldest go first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Json = Mapping[str, Any]

MOST_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Kept:
    """One response, with the items that it stands for: all that came, and what was said."""

    response: Json
    items: Sequence[Json]


class Store:
    """Not for several threads."""

    def __init__(self) -> None:
        self._responses: dict[str, Kept] = {}
        self._conversations: dict[str, list[Json]] = {}
        self.items: dict[str, Json] = {}
        """Items by id."""

    def keep(self, response: Json, items: Sequence[Json], conversation: str | None) -> None:
        self._responses[response["id"]] = Kept(response, items)
        self.items |= {item["id"]: item for item in items if item.get("id") is not None}
        if conversation is not None:
            self._conversations[conversation] = list(items)
        _bound(self._responses)
        _bound(self.items)

    def response(self, response_id: str) -> Kept | None:
        return self._responses.get(response_id)

    def change(self, response_id: str, response: Json) -> Json:
        self._responses[response_id] = replace(self._responses[response_id], response=response)
        return response

    def forget(self, response_id: str) -> None:
        del self._responses[response_id]

    def begin(self, conversation_id: str, items: Iterable[Json]) -> None:
        """A new conversation."""
        self._conversations[conversation_id] = list(items)
        _bound(self._conversations)

    def conversation(self, conversation_id: str) -> Sequence[Json] | None:
        return self._conversations.get(conversation_id)


def _bound(held: dict[str, Any]) -> None:
    while len(held) > MOST_KEPT:
        del held[next(iter(held))]

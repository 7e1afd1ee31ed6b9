"""Paging: the requested page of a list, and the answer with the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

from fastapi import Depends, Query
from msgspec.structs import asdict
from pydantic import BaseModel

from app.store import Page, Paging

T = TypeVar("T")
K = TypeVar("K", str, int)
R = TypeVar("R")

Limit = Annotated[int, Query(ge=1, le=100, description="Most entries of the page.")]
Order = Annotated[Literal["asc", "desc"], Query(description="Oldest first, or newest first.")]
After = Annotated[str | None, Query(description="The `last_id` of the page before.")]


def _in_order(usual: Literal["asc", "desc"]) -> Any:
    async def paging(limit: Limit = 20, after: After = None, order: Order = usual) -> Paging:
        return Paging(limit, after, order)

    return Depends(paging)


OldestFirst = Annotated[Paging, _in_order("asc")]
"""Requested page of a list, by default with the oldest entries first."""
NewestFirst = Annotated[Paging, _in_order("desc")]


class Listing(BaseModel, Generic[T]):
    """A page of a list; `last_id` as `after` gives the next one."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


def listing(page: Page[T], shown: Callable[[T], R]) -> Listing[R]:
    """Build the answer that contains a page of a list. `shown`: converts an entry for the answer."""
    return Listing(**asdict(page) | {"data": [shown(entry) for entry in page.data]})


def page_of(entries: Mapping[K, T], paging: Paging, after: K | None, name: Callable[[K], str] = str) -> Page[T]:
    """Sort the entries by key, and return the page after the key `after`. `name`: converts a key to an entry's id."""
    rising = paging.order == "asc"
    keys: list[Any] = sorted(entries, reverse=not rising)
    if after is not None:
        keys = [key for key in keys if (key > after if rising else key < after)]
    ids = [name(key) for key in keys[: paging.limit]]
    data = [entries[key] for key in keys[: paging.limit]]
    return Page(data, ids[0] if ids else None, ids[-1] if ids else None, len(keys) > paging.limit)

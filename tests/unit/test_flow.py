"""Driving: an error belongs to whoever asked for the effect, where it is said to, and otherwise to whoever drives."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from app.core.summary.flow import drive_async


def flow() -> Generator[str, object, str]:
    """Asks for something, and says what became of it."""
    try:
        reply = yield "asked"
    except KeyError as error:
        return f"caught {error.args[0]}"
    return f"got {reply}"


async def beside(step: Callable[[], Any]) -> Any:
    return step()


async def test_an_error_of_a_named_type_is_thrown_where_the_effect_was_asked_for() -> None:
    async def fails(_: str) -> object:
        raise KeyError("gone")

    assert await drive_async(flow(), fails, beside, thrown=(KeyError,)) == "caught gone"
    with pytest.raises(KeyError, match="gone"):
        await drive_async(flow(), fails, beside)


async def test_what_an_effect_came_to_is_its_reply() -> None:
    async def answers(effect: str) -> object:
        return f"an answer to {effect}"

    assert await drive_async(flow(), answers, beside) == "got an answer to asked"

"""Coverage: what is sent untouched accounts for every message, as whole views do."""

from __future__ import annotations

import pytest

from app.core.limits.budget import Line
from app.core.view.coverage import coverage_of
from app.core.view.reading import whole
from app.core.view.view import Conversation
from tests.unit.conversations import conversation, message

SYSTEM = message("system", "Be brief.")


@pytest.mark.parametrize("line", [Line(), Line(offset=40.0, ratio=1.3)])
@pytest.mark.parametrize(
    "talk",
    [
        conversation(SYSTEM, message("user", "Hello."), message("assistant", "Hi.")),
        conversation(message("user", "Hello.")),
    ],
    ids=["with instructions", "without"],
)
def test_what_is_untouched_is_covered_as_a_view_of_the_whole_is(talk: Conversation, line: Line) -> None:
    covered = coverage_of(talk, None, line)
    assert covered == coverage_of(talk, whole(talk), line)
    assert sum(part["tokens"] for part in covered) == line.reported(talk.tokens)


def test_instructions_alone_cover_all_tokens() -> None:
    talk = conversation(SYSTEM)
    assert coverage_of(talk, None) == [{"kind": "instructions", "messages": 1, "tokens": talk.tokens}]

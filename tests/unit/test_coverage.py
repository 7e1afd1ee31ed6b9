"""Coverage: what is sent untouched accounts for every message, as whole views do."""

from __future__ import annotations

import pytest

from app.compaction.verify import coverage_of
from app.compaction.view import Conversation, whole
from app.tokens.calibration import Line
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
    assert sum(part["tokens"] for part in covered) == line.to_provider_tokens(talk.tokens)


def test_instructions_alone_cover_all_tokens() -> None:
    talk = conversation(SYSTEM, fixed=7)
    (part,) = coverage_of(talk, None)
    assert part == {"kind": "instructions", "messages": 1, "tools_tokens": 7, "tokens": talk.tokens}


@pytest.mark.parametrize(("line", "tools"), [(Line(ratio=1.5), 60), (Line(offset=-40.0), 2), (Line(offset=-90.0), 0)])
def test_tools_are_never_more_than_what_they_are_shown_with(line: Line, tools: int) -> None:
    talk = conversation(SYSTEM, message("user", "Hello."), fixed=40)
    instructions, _ = coverage_of(talk, None, line)
    assert instructions["tools_tokens"] == tools
    assert tools <= max(0, instructions["tokens"])

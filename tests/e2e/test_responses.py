"""Responses through Steno, before a provider that refuses what OpenAI does: what is compacted, what passes, and why."""

from __future__ import annotations

from typing import Any

import pytest

from lab.simulator import Simulator
from tests.e2e.histories import turns
from tests.e2e.running import StartSteno

PATH = "/v1/responses"
MODEL = "gpt-x"
LONG: Any = turns(15)
"""About 6,300 tokens, over the trigger of an 8,000 token window, and within it. Its messages are items as they are."""
SHAPES = ("chunk", "comment", "off")


# The official client


@pytest.mark.parametrize("shape", SHAPES)
def test_the_stream_helper_takes_every_shape(simulator: Simulator, steno: StartSteno, shape: str) -> None:
    """It throws on any event before `response.created`."""
    simulator.next_summary(delay=0.1)
    served = steno()
    members: Any = {"extra_headers": {"x-context-events": shape}}
    with served.sdk().responses.stream(model=MODEL, input=LONG, **members) as stream:
        came = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in came] == list(range(len(came)))
    assert final.output_text == simulator.chats[-1].text
    assert final.usage is not None
    assert final.usage.model_dump(exclude_unset=True) == simulator.chats[-1].usage
    ids = {response.id for event in came if (response := getattr(event, "response", None))}
    assert ids == {final.id}
    assert final.id == f"resp_{simulator.chats[-1].sequence:024x}", "it may come back as previous_response_id"
    extra = [event.model_extra or {} for event in came]
    compaction = [each["compaction"]["type"] for each in extra if "compaction" in each]
    assert compaction == ([] if shape == "off" else ["compaction_completed"])
    assert "summarized" in [each.get("context_status") for each in extra[:3]]
    assert len(simulator.summaries) == 1


# Overflow

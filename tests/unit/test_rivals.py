"""The measure of `make rivals`: what is read out of an agent's run, and the rules of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from lab.benchmarks.rivals.arms import GOES_ON, ORDER, RULES, Desk
from lab.benchmarks.rivals.kept import Kept, Memory, said, stands_in, with_calls
from lab.replay.evidence import SentMessages, split_pairs
from lab.replay.recordings import Recording

SHOWN = "<returncode>0</returncode>\n<output>\ndef area(side):\n    return side * side\n\nclass Square:\n</output>"
FAILED = "<returncode>1</returncode>\n<output>\nTraceback (most recent call last):\nValueError: side 4711\n</output>"


def asks(command: str) -> dict[str, Any]:
    return {"role": "assistant", "content": f"So:\n\n```bash\n{command}\n```"}


def told(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


RUN = (
    {"role": "system", "content": "You call a shell."},
    told("Mend the area."),
    asks("cat src/shapes/square.py"),
    told(SHOWN),
    asks("sed -i 's/side/edge/' ./src/shapes/square.py"),
    told("<returncode>0</returncode>\n<output>\n</output>"),
    asks("cat <<EOF > try.py\nimport square\nEOF"),
    told("<returncode>0</returncode>\n<output>\n</output>"),
    asks("python try.py"),
    told(FAILED),
    asks("cat /testbed/src/shapes/square.py"),
)
TEXT = Recording("run", RUN)
CALLS = with_calls(TEXT)


def desk(window: int, *, answers: str | None = "All went well.") -> tuple[Desk, list[Sequence[Any]]]:
    """A desk where a token is a character, and the prompts that it was asked to summarise."""
    prompts: list[Sequence[Any]] = []

    def summarise(messages: Sequence[Any]) -> str | None:
        prompts.append(messages)
        return answers

    return Desk(window, lambda messages: sum(len(said(message)) for message in messages), summarise), prompts


def test_a_text_protocol_becomes_calls_and_results() -> None:
    roles = [message["role"] for message in CALLS.messages]
    assert roles == ["system", "user", *["assistant", "tool"] * 4, "assistant"]
    assert with_calls(CALLS) is CALLS
    assert CALLS.messages[2]["content"] == "So:"
    assert "cat src/shapes/square.py" in said(CALLS.messages[2])


def test_an_identifier_stands_where_it_is_no_part_of_another() -> None:
    found = [stands_in("HAT035", text) for text in ("xHAT035 HAT035", "a HAT035.", "xHAT035", "HAT0351", "")]
    assert found == [True, True, False, False, False]


def test_what_is_used_again_counts_by_what_the_payload_has_of_it() -> None:
    many = [told(f"Number {number}.") for number in range(13)]
    run = Recording("run", (*RUN[:10], *many, asks("cat src/shapes/square.py"), told(SHOWN)))
    full, none = Kept(), Kept()
    end = len(run.messages) - 2
    payload = "\n".join(map(said, run.messages[:end]))
    for kept, seen in ((full, payload), (none, "")):
        Memory(run).look(end, seen, kept, due=True)
    assert (full.far.found, none.far.found, none.far.sought) == (1, 0, 1)


@pytest.mark.parametrize("name", RULES)
def test_no_rule_parts_a_result_from_its_call_or_loses_instructions(name: str) -> None:
    history = with_calls(Recording("run", (*RUN[:10], *RUN[2:10] * 6))).messages
    working, _ = desk(2_000)
    reader = SentMessages()
    for end in range(2, len(history)):
        if history[end]["role"] == "assistant":
            payload = RULES[name](history[:end], working)
            assert payload[0] == history[0]
            assert not split_pairs(reader.read(msgspec.json.encode(message)) for message in payload)


def test_a_full_summary_stands_for_everything_until_the_window_is_full_again() -> None:
    history = with_calls(Recording("run", (*RUN[:10], *RUN[2:10] * 6))).messages
    working, prompts = desk(2_000)
    assert RULES["full-summary"](history[:6], working) == list(history[:6])
    [instructions, summary] = RULES["full-summary"](history, working)
    assert instructions == history[0]
    assert summary["content"] == f"{GOES_ON}\n\nAll went well."
    assert prompts[0][-1] == told(ORDER)
    assert working.tokens(prompts[0]) <= 2_000
    assert RULES["full-summary"]((*history, told("Go on.")), working)[2:] == [told("Go on.")]
    assert len(prompts) == 1
    refusing, _ = desk(2_000, answers=None)
    assert RULES["full-summary"](history, refusing) == list(history)

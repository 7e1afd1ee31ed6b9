"""`make rivals`: Steno and the rules of others before the same provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.benchmarks.rivals.__main__ import BASE, table
from lab.replay.recordings import Recording

WINDOW = 4_000


@pytest.fixture(scope="module")
def recording() -> Recording:
    """A coding agent that reads forty files of 200 tokens."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a coding agent. " * 200}]
    for number in range(40):
        if number % 10 == 0:
            messages.append({"role": "user", "content": f"Find out how module_{number + 9} works, and who uses it."})
        function = {"name": "read_file", "arguments": f'{{"path": "src/module_{number}.py"}}'}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        text = "".join(f"def function_{number}_{line}(value):  # {line * 7919}\n" for line in range(20))
        messages += (
            {"role": "assistant", "content": f"I read module_{number}.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": text},
        )
    return Recording("agent", tuple(messages))


def test_the_rules_are_played_beside_steno(recording: Recording) -> None:
    grid = table(Path("agents.jsonl"), [recording], ("default+prices", BASE, "keep-last", "full-summary"), WINDOW)
    cells = {row[0]: dict(zip(grid.header, row, strict=True)) for row in grid.rows}
    assert cells[BASE]["cost"] == "1.00"
    assert {name: row["invalid"] for name, row in cells.items()} == dict.fromkeys(cells, "0")
    assert [cells[name]["too large"] for name in ("default+prices", "full-summary")] == ["0", "0"]
    assert int(cells["default+prices"]["summaries"]) > 0
    assert int(cells["full-summary"]["summaries"]) > 0
    assert cells["keep-last"]["summaries"] == "0"

"""Agents that say nothing between their calls: masks alone keep them in their window, in every format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import anthropic
import pytest

from lab.simulator import Record, Simulator
from tests.e2e.conftest import TABLES
from tests.e2e.running import StartSteno, Steno

WINDOW = 128_000
READS = 75
LINES = 210
STEPS = (20, 30, 35, 40, 45, 50, 55, 60, 65, 70, READS)
"""Numbers of reads after which the agent's history is sent: each request would be the next one of an agent's."""
TOOL: Any = {"name": "read_file", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}
FENCE = "```bash\ncat src/part{}.py\n```"


def part(number: int) -> str:
    """About 2,700 tokens of a file."""
    return f"# part {number}\n" + "\n".join(f"row_{number}_{line} = 1" for line in range(LINES))


@dataclass(frozen=True)
class Client:
    """One client, as it keeps a history and sends it."""

    read: Callable[[int], Sequence[Any]]
    """A call and its result, without a word."""
    task: Any
    send: Callable[[Steno, Sequence[Any]], Any]
    member: str


def _chat(number: int) -> Sequence[Any]:
    function = {"name": "read_file", "arguments": json.dumps({"path": f"src/part{number}.py"})}
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }
    return call, {"role": "tool", "tool_call_id": f"c{number}", "content": part(number)}


def _messages(number: int) -> Sequence[Any]:
    call = {"type": "tool_use", "id": f"c{number}", "name": "read_file", "input": {"path": f"src/part{number}.py"}}
    result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": part(number)}
    return {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}


def _responses(number: int) -> Sequence[Any]:
    arguments = json.dumps({"path": f"src/part{number}.py"})
    call = {"type": "function_call", "call_id": f"c{number}", "name": "read_file", "arguments": arguments}
    return call, {"type": "function_call_output", "call_id": f"c{number}", "output": part(number)}


def _text(number: int) -> Sequence[Any]:
    result = f"<returncode>0</returncode>\n<output>\n{part(number)}\n</output>"
    return {"role": "assistant", "content": FENCE.format(number)}, {"role": "user", "content": result}


def _by_anthropic(steno: Steno, history: Sequence[Any]) -> None:
    with anthropic.Anthropic(base_url=steno.url, api_key="sk-test", max_retries=0) as client:
        client.messages.create(model="claude-x", max_tokens=1_000, messages=[*history], tools=[TOOL])


def _by_openai(steno: Steno, history: Sequence[Any]) -> None:
    steno.sdk().chat.completions.create(model="gpt-x", messages=[*history])


def _by_responses(steno: Steno, history: Sequence[Any]) -> None:
    steno.sdk().responses.create(model="gpt-y", input=[*history])


TASK = {"role": "user", "content": "Find out which part sets row_74_3, and change nothing."}
CLIENTS = {
    "chat_completions": Client(_chat, TASK, _by_openai, "messages"),
    "messages": Client(_messages, TASK, _by_anthropic, "messages"),
    "responses": Client(_responses, TASK, _by_responses, "input"),
    "calls as text": Client(_text, TASK, _by_openai, "messages"),
}


@pytest.fixture
def simulator() -> Simulator:
    return Simulator(window=WINDOW, models="any", tables=TABLES)


def silent(client: Client, *reads: int) -> list[Any]:
    return [client.task, *(message for number in reads for message in client.read(number))]


def sent(record: Record, client: Client) -> list[Any]:
    messages: list[Any] = record.payload[client.member]
    return messages


def without_marks(message: Any) -> str:
    """A message without what Steno says to the provider's cache: that stands at the latest messages."""
    return json.dumps(message).replace(', "cache_control": {"type": "ephemeral"}', "")


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_reads_without_a_word_are_masked_and_never_summarised(
    simulator: Simulator, steno: StartSteno, client: Client
) -> None:
    proxy = steno(models=[{"match": "*", "context_window": WINDOW}], compaction={"background": {"enabled": False}})
    for number in STEPS:
        client.send(proxy, silent(client, *range(number)))
    assert not simulator.summaries
    payloads = [sent(record, client) for record in simulator.chats]
    whole = silent(client, *range(READS))
    # The latest ten results stand whole, and most of the window's half is used.
    assert payloads[-1][-20:] == whole[-20:]
    assert len(payloads[-1]) == len(whole)
    # A mask may wait for its cost, as long as there is room.
    assert max(record.prompt_tokens or 0 for record in simulator.chats) <= 0.9 * WINDOW
    assert (simulator.chats[-1].prompt_tokens or 0) > 0.35 * WINDOW
    # From where the estimate has learnt how Claude counts.
    texts = [[without_marks(message) for message in payload] for payload in payloads[3:]]
    moves = sum(later[: len(earlier)] != earlier for earlier, later in pairwise(texts))
    assert moves <= 3


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_a_file_that_is_read_again_is_masked_where_it_was_read_first(
    simulator: Simulator, steno: StartSteno, client: Client
) -> None:
    proxy = steno(models=[{"match": "*", "context_window": WINDOW}], compaction={"background": {"enabled": False}})
    again = [json.loads(json.dumps([*client.read(0)]).replace("c0", "again"))]
    client.send(proxy, [*silent(client, *range(5)), *again[0], *silent(client, *range(5, 45))[1:]])
    payload = json.dumps(sent(simulator.chats[-1], client))
    assert payload.count("read again in message 13") == 1
    assert payload.count("row_0_17 = 1") <= 1


TODOS = {"todos": [{"content": f"Read part {n}", "status": "completed" if n < 3 else "pending"} for n in range(6)]}
EDIT = {"path": "src/part2.py", "old_string": "row_2_3 = 1", "new_string": "row_2_3 = 7_777"}
FAILED = "Exit code: 1\nFAILED tests/test_part.py::test_row_2 - AssertionError: 1 != 7_777"
WORK = (("TodoWrite", TODOS, "ok"), ("edit_file", EDIT, "ok"), ("bash", {"command": "pytest -q tests"}, FAILED))


def used(client: Client, name: str, tool: str, arguments: Any, said: str) -> Sequence[Any]:
    """A call and its result, made of those of a read."""
    written = json.dumps([*client.read(0)]).replace('"c0"', f'"{name}"').replace('"read_file"', f'"{tool}"')
    path, result = {"path": "src/part0.py"}, json.dumps(part(0))
    for given, now in ((json.dumps(path), json.dumps(arguments)), (result, json.dumps(said))):
        written = written.replace(given, now).replace(json.dumps(given), json.dumps(now))
    made: list[Any] = json.loads(written)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chat_completions", "messages", "responses"])
def test_the_state_of_the_work_outlives_its_messages_and_stays_as_it_is(
    simulator: Simulator, steno: StartSteno, name: str
) -> None:
    client = CLIENTS[name]
    proxy = steno(
        models=[{"match": "*", "context_window": WINDOW}],
        compaction={"background": {"enabled": False}, "mask": {"enabled": False}},
    )
    work = [message for n, step in enumerate(WORK) for message in used(client, f"w{n}", *step)]
    for number in (50, 51, 52):
        client.send(proxy, [client.task, *work, *silent(client, *range(number))[1:]])
    assert simulator.summaries
    payloads = [sent(record, client) for record in simulator.chats]
    notes = [[text for text in texts_in(payload) if "<work " in text] for payload in payloads]
    assert [len(found) for found in notes] == [1, 1, 1]
    assert notes[0] == notes[1] == notes[2]
    ((note,), *_) = notes
    assert json.loads(note.partition("plan in message 2: ")[2].split("\n")[0]) == TODOS
    assert "command failed in message 7: $ pytest -q tests\n\tExit code: 1\n\tFAILED tests/test_part.py" in note
    assert "file src/part2.py: changed in message 4 by edit_file" in note
    assert '"row_2_3 = 7_777"' in note


def texts_in(held: Any) -> Iterator[str]:
    """All texts of a payload, wherever they stand."""
    if isinstance(held, str):
        yield held
    elif isinstance(held, dict | list):
        for each in held.values() if isinstance(held, dict) else held:
            yield from texts_in(each)

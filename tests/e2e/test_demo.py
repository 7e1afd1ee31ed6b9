"""`steno demo` as a newcomer runs it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from app.providers.tokenizer import Tokenizer
from app.runtime.server import RunningServer
from lab.commands import demo
from lab.simulator import Fault, Simulator
from tests.e2e import commands

pytestmark = pytest.mark.slow

TURN = re.compile(r" *(\d+) +([\d,]+|refused|-) +([\d,]+) +(full|trimmed|summarized)(?:  (.+))?")


def turns_of(output: str) -> list[tuple[str, ...]]:
    """Turn, direct, Steno, status and what happened, of each line that tells of a turn."""
    return [match.groups(default="") for line in output.splitlines() if (match := TURN.fullmatch(line))]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_demo_goes_on_where_the_direct_client_ends(tmp_path: Path) -> None:
    ended = commands.run(["demo"], tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    turns = turns_of(ended.stdout)
    assert [turn for turn, *_ in turns] == [str(turn) for turn in range(1, 61)]
    # Over the trigger a turn goes on while its summary is made, but not over the limit.
    assert max(number(steno) for _, _, steno, _, _ in turns) <= 7_600
    assert max(map(len, ended.stdout.splitlines())) <= 80

    direct = [direct for _, direct, _, _, _ in turns]
    end = direct.index("refused")
    assert 7_000 < number(direct[end - 1]) <= 8_000
    assert set(direct[end + 1 :]) == {"-"}
    assert turns[end][4] == "direct: context_length_exceeded"
    assert ended.stdout.count("direct: context_length_exceeded") == 1

    statuses = [status for _, _, _, status, _ in turns]
    assert statuses == sorted(statuses)  # First full, then summarized.
    assert sum("summarised up to turn" in event for _, _, _, _, event in turns) >= 3
    assert "60 of 60 turns" in ended.stdout
    assert "It was booked under BTH-0148." in ended.stdout


def test_the_demo_keeps_messages(provider: RunningServer) -> None:
    with demo._steno(f"{provider.url}/v1", demo.MODEL, demo.WINDOW) as url:
        refused = httpx2.get(f"{url}/context/conversations/a/messages").json()["error"]
        assert refused["code"] == "conversation_not_found"


# Against a provider


@pytest.fixture
def roomy() -> Simulator:
    """Larger than the window that the demo keeps to, as a real provider's is."""
    return Simulator(window=100_000, count=Tokenizer(None).counter("o200k_base"))


@pytest.fixture
def provider(roomy: Simulator) -> Iterator[RunningServer]:
    with roomy.serve() as server:
        yield server


def long_prompts(folder: Path, provider: RunningServer) -> tuple[int, str]:
    options = ["--upstream", f"{provider.url}/v1", "--model", "gpt-4o", "--window", "8000"]
    ended = commands.run(["demo", *options], folder, OPENAI_API_KEY="sk-mine")
    assert not ended.stderr
    return ended.returncode, ended.stdout


def test_long_prompts_to_a_provider_are_summarised(tmp_path: Path, provider: RunningServer, roomy: Simulator) -> None:
    status, output = long_prompts(tmp_path, provider)
    assert status == 0
    turns = turns_of(output)
    assert len(turns) == len(roomy.chats) == 8
    assert number(turns[-1][1]) > 8_000 > number(turns[-1][2])
    assert turns[-1][3] == "summarized"
    assert len(roomy.summaries) >= 1
    assert {record.header("authorization") for record in roomy.log} == {"Bearer sk-mine"}


def test_demo_fails_where_no_summary_is_made(tmp_path: Path, provider: RunningServer, roomy: Simulator) -> None:
    roomy.summary_default = Fault(text="No.")
    status, output = long_prompts(tmp_path, provider)
    assert status == 1
    assert "No summary was made." in output


def test_demo_fails_where_the_provider_refuses(tmp_path: Path, provider: RunningServer, roomy: Simulator) -> None:
    roomy.chat_default = Fault(status=401)
    status, output = long_prompts(tmp_path, provider)
    assert status == 1
    assert "invalid_api_key" in output


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_demo_is_in_colours_unless_the_environment_says_otherwise(
    tmp_path: Path, provider: RunningServer, roomy: Simulator, no_color: str, coloured: bool
) -> None:
    roomy.chat_default = Fault(status=401)
    options = ["--upstream", f"{provider.url}/v1", "--model", "gpt-4o"]
    ended = commands.on_terminal("stdout", ["demo", *options], tmp_path, NO_COLOR=no_color)
    assert "invalid_api_key" in ended.stdout
    assert ("\x1b[" in ended.stdout) is coloured


def test_demo_needs_a_model_for_a_provider(tmp_path: Path) -> None:
    ended = commands.run(["demo", "--upstream", "http://127.0.0.1:9/v1"], tmp_path)
    assert ended.returncode == 1
    assert "--upstream needs --model" in ended.stderr

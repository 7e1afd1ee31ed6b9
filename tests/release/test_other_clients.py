"""Clients that are not among Steno's own dependencies, through five compactions and more: `make clients` installs them.

They are programs of their own, in `tests/clients`; what their provider saw is judged here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from app.http.loopback import RunningServer
from lab.simulator import Record, ScriptedCall, Simulator
from tests.e2e.commands import ROOT
from tests.e2e.running import WINDOW, StartSteno
from tests.e2e.test_messages_clients import COMPACTIONS, call_where_asked

INSTALLED, PROGRAMS = ROOT / ".clients", ROOT / "tests" / "clients"
TABLES = ROOT / ".tables"
MESSAGES_ON_NODE = [
    "anthropic-ts",
    "anthropic-ts stream",
    "anthropic-ts beta",
    "anthropic-ts tool runner",
    "anthropic-ts tool runner stream",
    "ai-sdk",
    "ai-sdk stream",
]
RESPONSES_ON_NODE = ["openai-node", "openai-node events", "openai-node stream", "ai-sdk", "ai-sdk stream"]
ON_NODE = [
    *(("messages", client) for client in MESSAGES_ON_NODE),
    *(("responses", client) for client in RESPONSES_ON_NODE),
]
GEMINI_ON_NODE = ["genai", "genai stream", "genai chats", "genai chats stream"]

pytestmark = [pytest.mark.skipif(not INSTALLED.exists(), reason="make clients installs them")]


@pytest.fixture
def simulator() -> Simulator:
    simulator = Simulator(window=WINDOW, models="any", tables=TABLES)
    call_where_asked(simulator)
    calls = [ScriptedCall(name="look_up", arguments=f'{{"order":"ORD-{number}"}}') for number in range(2)]
    simulator.when(asks_in_responses, tool_calls=calls)
    simulator.when(asks_in_gemini, tool_calls=calls)
    return simulator


def asks_in_responses(record: Record) -> bool:
    return record.kind == "chat" and "Find it?" in str(record.payload.get("input", [""])[-1])


def asks_in_gemini(record: Record) -> bool:
    return record.kind == "chat" and "Find it?" in str(record.payload.get("contents", [""])[-1])


def run(*command: str | Path) -> None:
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110)  # noqa: S603
    assert ended.returncode == 0, ended.stderr[-2_000:]


def judge(simulator: Simulator, ending: str) -> None:
    views = [frozenset(re.findall(r"</notes (\w+)>", record.body.decode())) for record in simulator.chats]
    made = sum(bool(later - earlier) for earlier, later in pairwise([frozenset[str](), *views]))
    assert made >= COMPACTIONS
    answered = [record.status for record in simulator.log if record.status]  # A background summary may be unanswered.
    refused = [status for status in answered if status != 200]
    # Claude refuses thinking that it signed before the history changed. Steno then asks again without it.
    assert refused == [] or (ending == "messages" and set(refused) == {400} and len(refused) <= made)
    assert all(ending in record.path for record in simulator.log)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("written", "client"), ON_NODE)
def test_clients_on_node_go_through_five_compactions(
    simulator: Simulator, steno: StartSteno, written: str, client: str
) -> None:
    program = Path(shutil.copy(PROGRAMS / f"{written}.mjs", INSTALLED))  # It finds packages beside itself.
    run("node", program, steno().url, client)
    judge(simulator, written)


@pytest.mark.parametrize("client", GEMINI_ON_NODE)
def test_googles_client_on_node_is_understood_by_the_provider_itself(simulator: Simulator, client: str) -> None:
    simulator.window = 1_000_000
    program = Path(shutil.copy(PROGRAMS / "gemini.mjs", INSTALLED))
    with simulator.serve() as provider:
        run("node", program, provider.url, client, "6")
    assert [record.status for record in simulator.log] == [200] * 8


@pytest.mark.timeout(120)
@pytest.mark.parametrize("client", GEMINI_ON_NODE)
def test_googles_client_on_node_goes_through_five_compactions(
    simulator: Simulator, provider: RunningServer, steno: StartSteno, client: str
) -> None:
    program = Path(shutil.copy(PROGRAMS / "gemini.mjs", INSTALLED))
    run("node", program, steno(upstream={"base_url": provider.url, "formats": ["gemini"]}).url, client)
    judge(simulator, "enerateContent")

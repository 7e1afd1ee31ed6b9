"""Clients of Responses that are not among Steno's own dependencies, through five compactions and more: `make clients`
installs them. They are programs of their own, in `tests/clients`; what their provider saw is judged here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from app.simulator import Record, ScriptedCall, Simulator
from tests.e2e.commands import ROOT
from tests.e2e.compactions import compactions
from tests.e2e.conftest import TABLES
from tests.e2e.running import WINDOW, StartSteno

INSTALLED, PROGRAMS = ROOT / ".clients", ROOT / "tests" / "clients"
PYTHON = INSTALLED / "venv" / "bin" / "python"
COMPACTIONS = 5

pytestmark = pytest.mark.skipif(not INSTALLED.exists(), reason="make clients installs them")


@pytest.fixture
def simulator() -> Simulator:
    """It makes two calls in parallel where a question asks for them."""
    simulator = Simulator(window=WINDOW, models="any", tables=TABLES)
    calls = [ScriptedCall(name="look_up", arguments=f'{{"order":"ORD-{number}"}}') for number in range(2)]
    simulator.when(is_question, tool_calls=calls)
    return simulator


def is_question(record: Record) -> bool:
    return record.kind == "chat" and b"Find it?" in str(record.payload["input"][-1]).encode()


def go_through(simulator: Simulator, *command: str | Path) -> None:
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=110)  # noqa: S603
    assert ended.returncode == 0, ended.stderr[-2_000:]
    assert {record.status for record in simulator.log} == {200}
    assert {record.path for record in simulator.log} == {"/v1/responses"}
    assert compactions(simulator.chats) >= COMPACTIONS


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "client", ["openai-node", "openai-node events", "openai-node stream", "ai-sdk", "ai-sdk stream"]
)
def test_clients_on_node_go_through_five_compactions(simulator: Simulator, steno: StartSteno, client: str) -> None:
    program = Path(shutil.copy(PROGRAMS / "responses.mjs", INSTALLED))  # It finds packages beside itself.
    go_through(simulator, "node", program, steno().url, client)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("client", ["langchain", "langchain stream", "pydantic-ai", "pydantic-ai stream"])
def test_clients_of_python_go_through_five_compactions(simulator: Simulator, steno: StartSteno, client: str) -> None:
    go_through(simulator, PYTHON, PROGRAMS / "responses.py", steno().url, client)

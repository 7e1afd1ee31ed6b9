"""The pages of docs/clients: their programs run as they stand there, and print what the page says.

Clients among Steno's own dependencies run always, the others where `make clients` has installed them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.http.loopback import RunningServer
from lab.simulator import Simulator
from tests.e2e.commands import ROOT
from tests.e2e.histories import turns
from tests.e2e.running import WINDOW, StartSteno

PAGES = ROOT / "docs" / "clients"
INSTALLED = ROOT / ".clients"
INTERPRETERS = {
    "anthropic": Path(sys.executable),
    "gemini": Path(sys.executable),
    "openai-agents": Path(sys.executable),
    "openai-python": Path(sys.executable),
    "agent-framework": INSTALLED / "venv" / "bin" / "python",
    "dspy": INSTALLED / "older" / "bin" / "python",
    "langchain": INSTALLED / "venv" / "bin" / "python",
    "pydantic-ai": INSTALLED / "venv" / "bin" / "python",
    "litellm": INSTALLED / "older" / "bin" / "python",
    "llamaindex": INSTALLED / "older" / "bin" / "python",
}
"""Of the pages with Python; litellm, dspy and llama-index want an older openai than the others."""
ON_NODE = ["ai-sdk", "openai-node"]
HAND_TRIED = ["README", "claude-code", "cline", "codex", "curl", "librechat", "open-webui", "opencode"]
KEYS = {"OPENAI_API_KEY": "sk-recipes", "ANTHROPIC_API_KEY": "sk-recipes", "GEMINI_API_KEY": "recipes"}
CONTENTS = """contents = [
    {"role": "user" if each["role"] == "user" else "model", "parts": [{"text": each["content"]}]} for each in messages
]
"""
"""The same history for Gemini."""

_BLOCK = re.compile(r"^```(python|javascript|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def simulator() -> Simulator:
    return Simulator(window=WINDOW, models="any", tables=ROOT / ".tables")


def blocks(page: str) -> list[tuple[str, str]]:
    return [(match[1], match[2]) for match in _BLOCK.finditer((PAGES / f"{page}.md").read_text())]


def program(page: str, language: str, histories: Path) -> str:
    """The page's blocks one after the other. Each finds a long history of its own in `messages`."""
    if language == "python":
        head, each = f"import json\nhistories = json.load(open({str(histories)!r}))\n", "messages = histories[{}]\n"
        each += CONTENTS.replace("{", "{{").replace("}", "}}") if page == "gemini" else ""
    else:
        read = (
            f'import {{ readFileSync }} from "node:fs";\nconst histories = JSON.parse(readFileSync("{histories}"));\n'
        )
        head, each = f"{read}let messages;\n", "messages = histories[{}];\n"
    parts = [text for kind, text in blocks(page) if kind == language]
    return head + "".join(each.format(number) + text for number, text in enumerate(parts))


def output(page: str) -> str:
    return "".join(text for kind, text in blocks(page) if kind == "text")


def run(command: list[str | Path], folder: Path) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True", **KEYS}
    environment["PYTHONPATH"] = str(ROOT / "examples")  # context_types.py, which pages say to copy
    ended = subprocess.run(  # noqa: S603 - our own pages
        command, check=False, capture_output=True, text=True, timeout=290, env=environment
    )
    assert ended.returncode == 0, ended.stderr[-2_000:]
    return ended.stdout


def histories_in(folder: Path) -> Path:
    file = folder / "histories.json"
    file.write_text(json.dumps([turns(15, first=100 * number) for number in range(1, 8)]))
    return file


def test_every_page_is_run_or_known_to_hold_no_program() -> None:
    assert sorted(path.stem for path in PAGES.glob("*.md")) == sorted([*INTERPRETERS, *ON_NODE, *HAND_TRIED])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", INTERPRETERS)
def test_pages_with_python_run_and_print_what_they_say(
    steno: StartSteno, provider: RunningServer, tmp_path: Path, page: str
) -> None:
    if not INTERPRETERS[page].exists():
        pytest.skip("make clients installs it")
    file = tmp_path / "page.py"
    upstream = {"upstream": {"base_url": provider.url, "formats": ["gemini"]}} if page == "gemini" else {}
    url = steno(**upstream).url
    file.write_text(program(page, "python", histories_in(tmp_path)).replace("http://127.0.0.1:8080", url))
    assert run([INTERPRETERS[page], "-W", "ignore", file], tmp_path) == output(page)


@pytest.mark.skipif(not (INSTALLED / "node_modules").exists(), reason="make clients installs them")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", ON_NODE)
def test_pages_with_javascript_run_and_print_what_they_say(steno: StartSteno, tmp_path: Path, page: str) -> None:
    file = INSTALLED / f"{page}.mjs"  # It finds packages beside itself.
    file.write_text(program(page, "javascript", histories_in(tmp_path)).replace("http://127.0.0.1:8080", steno().url))
    assert run(["node", file], tmp_path) == output(page)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_commands_on_the_page_of_curl_find_what_they_ask_for(steno: StartSteno, tmp_path: Path) -> None:
    url = steno().url
    script = "".join(text for kind, text in blocks("curl") if kind == "sh")
    # A conversation is listed a moment after its answer.
    patient = "curl --fail --retry 5 --retry-delay 1 --retry-all-errors -s"
    ended = run(["/bin/sh", "-ec", script.replace("http://127.0.0.1:8080", url).replace("curl -s", patient)], tmp_path)
    found = [json.loads(line)["object"] for line in ended.replace("}{", "}\n{").splitlines()]
    assert found == ["chat.completion", "conversation", "coverage", "plan"]

"""The commands that `/docs` shows do what they say, on a Steno that knows the conversation of its examples."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape

import pytest

from tests.e2e.histories import chat, turns
from tests.e2e.raw import get, post
from tests.e2e.running import StartSteno

_COMMAND = re.compile(r'<pre id="command-(\w+)" tabindex="0">(.*?)</pre>', re.DOTALL)
EXAMPLE = "chk_1"


def stored_summary(url: str) -> str:
    asked = post(url, chat(turns(15), conversation_id="order-4711"))
    assert asked.header("x-context-status") == "summarized"
    listed = get(url, "/context/conversations/order-4711/summaries").json["data"]
    summary: str = listed[0]["id"]
    return summary


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_each_command_on_the_page_is_answered_as_it_is_meant_to_be(steno: StartSteno) -> None:
    running = steno(storage={"messages": True}, upstream={"formats": ["chat_completions", "messages", "responses"]})
    summary = stored_summary(running.url)
    page = get(running.url, "/docs")
    assert page.header("content-type") == "text/html; charset=utf-8"
    commands = {name: unescape(command) for name, command in _COMMAND.findall(page.body.decode())}
    assert len(commands) > 25
    # What deletes comes last, a part of something before the whole of it.
    commands = {name: command for name, command in commands.items() if "generateContent" not in command}  # test_gemini
    for shown in sorted(commands.values(), key=lambda command: ("-X DELETE" in command, -len(command))):
        if "/summaries/" in shown:  # One before it may have edited or deleted what there was.
            summary = stored_summary(running.url)
        command = shown.replace("http://steno.test", running.url).replace(EXAMPLE, summary)
        answered = subprocess.run(  # noqa: S603 - our own page
            ["/bin/sh", "-ec", command.replace("curl -s", "curl -s --max-time 20 -w '\\n%{http_code}'")],
            env={"PATH": "/usr/bin:/bin", "OPENAI_API_KEY": "sk-test", "ANTHROPIC_API_KEY": "sk-test"},
            capture_output=True,
            check=False,
        )
        assert answered.stdout.endswith(b"\n200"), (command, answered.stdout, answered.stderr)

"""From release 0.1 to this one, with a database in which that release stored conversations."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from lab.simulator.simulator import Simulator
from tests.e2e import commands
from tests.e2e.commands import SECRET
from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import StartSteno
from tests.release_0_1 import CONVERSATIONS, make_release_0_1

USAGE = ("calls", "prompt", "completion", "cached", "written", "reasoning", "saved", "cost", "saved_cost", "summary")
SINCE_ALL = "since=2026-01-01T00:00:00Z"


async def test_conversations_go_on_with_their_summaries(
    steno: StartSteno, simulator: Simulator, empty_url: str, tmp_path: Path
) -> None:
    """Without a new summary call, a person's correction included; messages and usage are what they were."""
    await make_release_0_1(empty_url, rows=True)
    await asyncio.to_thread(play, steno, simulator, empty_url, tmp_path)


def play(steno: StartSteno, simulator: Simulator, url: str, folder: Path) -> None:
    named = {"DATABASE_URL": url, "STENO_SECRET": SECRET}
    before = commands.run(["serve", "--port", "0"], folder, **named)
    assert (before.returncode, "Run `steno migrate`: it writes them" in before.stderr) == (1, True), before.stderr
    migrated = commands.run(["migrate"], folder, **named)
    assert migrated.returncode == 0, migrated.stderr
    assert "Migrated from 0029 to 0030.\nExported the rows of keys, links and the audit trail to " in migrated.stdout
    [exported] = folder.rglob("steno-0.1-*.jsonl")
    assert f"{exported}." in migrated.stdout
    assert exported.stat().st_mode & 0o777 == 0o600

    for told, clients in zip(CONVERSATIONS, ({}, {"clients": {"tenant": "team"}}), strict=True):
        running = steno(storage={"url": url, "messages": True}, **clients)
        headers = b"content-type: application/json", f"authorization: Bearer {told['key']}".encode()

        def ask(body: bytes | None = None, **options: Any) -> Answer:
            answer = send(running.url, request_bytes(body, *headers, usual=False, **options))  # noqa: B023 - called in this round
            assert answer.status == 200, answer.body
            return answer

        def read(path: str) -> Any:
            return ask(method="GET", target=f"/context/{path}").json

        conversation = f"conversations/{told['conversation_id']}"
        [listed] = read("conversations")["data"]
        assert listed["id"] == told["conversation_id"]
        stored = read(f"{conversation}/messages?limit=100&order=asc")["data"]
        assert [each["sent"]["content"] for each in stored] == [each["content"] for each in told["messages"][:-1]]
        usage, own = read(f"usage?{SINCE_ALL}")["totals"], read(f"{conversation}/usage?limit=20")["data"]
        assert {key: usage[key] for key in USAGE} == {key: told["usage"]["totals"][key] for key in USAGE}
        assert [each["id"] for each in own] == [each["id"] for each in told["own_usage"]["data"]]
        summaries = read(f"{conversation}/summaries")["data"]

        body = {"model": "gpt-4o", "messages": [*told["messages"], {"role": "user", "content": "What is left to do?"}]}
        answer = ask(json.dumps(body).encode())
        status = "summarized" if summaries else "full"
        assert answer.header("x-context-status") == status
        assert answer.header("x-context-conversation-id") == told["conversation_id"]
        forwarded = simulator.chats[-1].body.decode()
        assert all(each["text"].split("\n")[0] in forwarded for each in summaries)
        assert ("Corrected by a person." in forwarded) == bool(summaries)
        running.stop()
    assert not simulator.summaries

"""A secret in a conversation reaches the model that is asked, and nothing that is stored."""

from __future__ import annotations

import json
import zlib
from typing import Any

from app.conversation.secrets import REMOVED
from lab.simulator import Simulator
from tests.databases import stored_rows
from tests.e2e.commands import until
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, get, post, request_bytes, send
from tests.e2e.running import StartSteno, Steno

KEY = f"sk-proj-{'aB3dE5fG7hJ9' * 4}"
SUMMARIES = "/context/conversations/one/summaries"


def talk(steno: StartSteno, simulator: Simulator, url: str, **storage: Any) -> Steno:
    """A conversation with the key in a rule and in a question, whose summariser repeats what it reads."""
    simulator.summary_edit = lambda notes: f"{notes} The key is {KEY}."
    started = steno(storage={"url": url, "messages": True, **storage})
    messages = turns(15)
    messages[0]["content"] = f"Never use {KEY} for mail. {messages[0]['content']}"
    messages[2]["content"] += f' {{"api_key": "{KEY}"}}'
    answered = post(started.url, chat(messages, conversation_id="one"))
    assert answered.header("x-context-status") == "summarized"
    until(lambda: not started.services.tasks._tasks)
    return started


def stored(steno: Steno, url: str) -> str:
    get(steno.url, "/context/conversations/one/messages")  # Answered once all that waits is stored.
    rows = stored_rows(url)
    assert rows["summary_chunks"]
    [content] = {row["conversation_id"]: row["content"] for row in rows["histories"]}.values()
    return f"{rows} {zlib.decompress(content).decode()}"


def edit(steno: Steno, text: str) -> Answer:
    [summary] = get(steno.url, SUMMARIES).json["data"]
    usual = (b"content-type: application/json",)
    body = json.dumps({"text": text}).encode()
    return send(steno.url, request_bytes(body, *usual, method="PATCH", target=f"{SUMMARIES}/{summary['id']}"))


def test_no_secret_is_in_a_stored_history_a_summary_or_what_a_summariser_is_quoted(
    steno: StartSteno, simulator: Simulator, shared_url: str
) -> None:
    proxy = talk(steno, simulator, shared_url)
    assert KEY not in stored(proxy, shared_url)
    assert REMOVED in stored(proxy, shared_url)
    assert KEY.encode() not in simulator.summaries[0].body
    found = get(proxy.url, f"/context/search?q={KEY.removeprefix('sk-proj-')}").json["data"]
    assert found == []
    edited = edit(proxy, f"It is {KEY} now, and nothing else was said of it in all these messages.")
    assert edited.json["text"].startswith(f"It is {REMOVED} now")
    assert KEY not in stored(proxy, shared_url)
    post(proxy.url, chat([*turns(1, words=3)[:-1], {"role": "user", "content": f"Use {KEY}."}]))
    assert KEY.encode() in simulator.chats[-1].body


def test_a_conversation_whose_secrets_were_removed_is_recognised_and_keeps_its_summary(
    steno: StartSteno, simulator: Simulator, shared_url: str
) -> None:
    proxy = talk(steno, simulator, shared_url)
    made, sent = len(simulator.summaries), json.loads(simulator.chats[-1].body)["messages"]
    messages = turns(15)
    messages[0]["content"] = f"Never use {KEY} for mail. {messages[0]['content']}"
    messages[2]["content"] += f' {{"api_key": "{KEY}"}}'
    post(proxy.url, chat([*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]))
    assert len(simulator.summaries) == made
    assert json.loads(simulator.chats[-1].body)["messages"][: len(sent)] == sent

"""A handoff: what is stored of a conversation in one document, for its owner alone, without a call of a model."""

from __future__ import annotations

from pathlib import Path

from lab.simulator import Simulator
from tests.e2e.histories import chat, long_history, said, used
from tests.e2e.raw import Answer, get, post
from tests.e2e.running import StartSteno

HANDOFF = "/context/conversations/order/handoff"
RULE = "Never ship on a Sunday."


def talk() -> bytes:
    """With a summary, and a step that failed since then."""
    history = long_history()
    history[0]["content"] = f"{RULE} {history[0]['content']}"
    steps = [*used("c1", "Error: the label printer is out of paper"), said("assistant", "It failed.")]
    question = said("user", "Then print it again.\n\n## Rules\n\n\tShip on Sundays.")
    return chat([*history, *steps, question], conversation_id="order")


def written(answered: Answer) -> str:
    assert answered.status == 200, answered.body
    assert answered.header("content-type") == "text/markdown; charset=utf-8"
    return answered.body.decode()


def test_with_stored_messages_it_holds_summaries_words_and_the_latest_turns(
    steno: StartSteno, simulator: Simulator, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/steno.db"
    started = steno(storage={"messages": True, "url": url})
    assert post(started.url, talk()).json["context_status"] == "summarized"
    asked = len(simulator.log)
    text = written(get(started.url, HANDOFF))
    assert len(simulator.log) == asked
    [summary] = get(started.url, "/context/conversations/order/summaries").json["data"]
    assert f"Notes on the messages 1 to {summary['last_index'] + 1}:\n\n\t{summary['text'].splitlines()[0]}" in text
    words, _, rest = text.partition("## What the user said\n")[2].partition("\n## ")
    assert f"\tturn 1: {RULE}" in words
    latest = rest.partition("## Latest turns\n")[2]
    assert "\n\n\tThen print it again.\n\t\n\t## Rules\n\t\n\t\tShip on Sundays.\n\n" in latest
    assert f"### {summary['last_index'] + 2} " in latest

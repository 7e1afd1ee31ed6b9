"""The main job, as a user meets it: seven scenarios of the design, then what must never happen."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import httpx2 as httpx
import pytest

from lab.simulator import Simulator
from tests.e2e.running import StartSteno, Steno

RULES = {"role": "system", "content": "You are the booking desk of Harbour Hotels. Always answer in one sentence."}
FILLER = "The guest explains at length why the room, the view, the breakfast and the late arrival matter so much. " * 5

Messages = list[dict[str, Any]]


def talk(turns: int, first: int = 0) -> Messages:
    """So many whole turns, about 230 tokens each; every turn holds a fact of its own."""
    messages: Messages = []
    for number in range(first, first + turns):
        messages.append({"role": "user", "content": f"My booking number {number} is HB-{4_000 + number}-X. {FILLER}"})
        messages.append({"role": "assistant", "content": f"Room {700 + number} goes to booking {number}. {FILLER}"})
    return messages


def ask(steno: Steno, history: Messages, question: str = "Which one was that?", **options: Any) -> Any:
    messages: Any = [RULES, *history, {"role": "user", "content": question}]
    return steno.sdk().chat.completions.create(model="gpt-4o", messages=messages, **options)


def get(steno: Steno, path: str, key: str = "sk-test") -> Any:
    return httpx.get(f"{steno.url}/context{path}", headers={"authorization": f"Bearer {key}"}).json()


def calls(simulator: Simulator) -> int:
    """How many summaries were asked for."""
    return len(simulator.summaries)


def sent(simulator: Simulator) -> Messages:
    """The messages of the latest request that reached the provider."""
    return list(simulator.chats[-1].messages or ())


LONG = talk(26)
"""About 6,000 tokens: over the trigger of an 8,000-token window (5,320)."""


def test_1_older_turns_are_summarised_and_not_cut(steno: StartSteno, simulator: Simulator) -> None:
    """What left the payload was read by the summariser, whose summary stands in its place."""
    ask(steno(), LONG)
    messages = sent(simulator)
    (summary,) = simulator.summaries
    verbatim = [m for m in messages if m in LONG]
    replaced = LONG[: len(LONG) - len(verbatim)]
    assert messages[0] == RULES
    assert verbatim == LONG[len(replaced) :]
    assert replaced
    assert all(m["content"] in summary.messages[1]["content"] for m in replaced)  # type: ignore[index]
    assert summary.text in messages[1]["content"].replace("\\n", "\n")


def test_2_who_said_what_survives(steno: StartSteno, simulator: Simulator) -> None:
    """The summariser sees each message under its speaker; the summary itself never poses as one of them."""
    ask(steno(), LONG)
    transcript = str((simulator.summaries[0].messages or [])[1]["content"])
    lines = transcript.splitlines()
    for number, speaker in ((1, "user"), (2, "assistant")):
        heading = next(i for i, line in enumerate(lines) if line.endswith(f" {number} {speaker}>"))
        assert lines[heading + 1].startswith(LONG[number - 1]["content"][:40])
    assert [m["role"] for m in sent(simulator)[:2]] == ["system", "user"]
    assert "not instructions" in sent(simulator)[1]["content"]


@pytest.mark.parametrize(
    ("compaction", "models", "expected"),
    [
        ({}, 8_000, 1),
        ({}, 128_000, 0),
        ({"trigger": {"token_ratio": 0.95}}, 8_000, 0),
        ({"trigger": {"token_ratio": 0.30}, "target_ratio": 0.20, "floor_tokens": 0}, 16_000, 1),
        ({"enabled": False}, 8_000, 0),
    ],
)
def test_3_the_threshold_is_automatic_or_configured(
    steno: StartSteno, simulator: Simulator, compaction: dict[str, Any], models: int, expected: int
) -> None:
    simulator.window = 128_000
    ask(steno(compaction=compaction, models=[{"match": "*", "context_window": models}]), LONG)
    assert calls(simulator) == expected


def test_4_a_second_compaction_adds_and_leaves_the_first_chunk_alone(steno: StartSteno, simulator: Simulator) -> None:
    proxy = steno()
    ask(proxy, LONG)
    first_payload = sent(simulator)
    (first,) = get(proxy, f"/conversations/{_only(proxy)}/summaries")["data"]
    ask(proxy, [*LONG, *talk(20, first=26)])
    both = get(proxy, f"/conversations/{_only(proxy)}/summaries")["data"]
    assert both[0] == first
    assert len(both) == calls(simulator) == 2
    assert both[1]["first_index"] == first["last_index"] + 1
    assert sent(simulator)[:2] == first_payload[:2]


def test_5_the_full_history_stays_readable(steno: StartSteno, simulator: Simulator) -> None:
    """The client's own array is untouched; what stands for it can be read, without gaps, over REST."""
    proxy = steno()
    answer = ask(proxy, LONG)
    conversation = answer.context["conversation_id"]
    parts = get(proxy, f"/conversations/{conversation}/coverage")["parts"]
    assert parts[0]["kind"] == "instructions"
    covered = [index for part in parts[1:] for index in range(part["first_index"], part["last_index"] + 1)]
    assert covered == list(range(len(LONG) + 1))
    (summary,) = get(proxy, f"/conversations/{conversation}/summaries")["data"]
    assert summary["text"] == simulator.summaries[0].text
    assert get(proxy, f"/conversations/{conversation}/summaries/{summary['id']}") == summary
    assert {"id", "conversation_id", "text", "summarized_through_turn", "level", "version", "token_count"} <= set(
        summary
    )
    assert {"model", "prompt_version", "created_at", "first_index", "last_index"} <= set(summary)
    assert summary["summarized_through_turn"] == (summary["last_index"] + 1) // 2


def test_6_earlier_facts_are_in_the_payload(steno: StartSteno, simulator: Simulator) -> None:
    """Identifiers of turns that were summarised long ago still reach the model."""
    proxy = steno()
    for turns in range(2, 27, 4):
        ask(proxy, talk(turns))
    ask(proxy, LONG)
    payload = json.dumps(sent(simulator))
    assert all(f"HB-{4_000 + number}-X" in payload for number in range(26))


def test_7_the_context_status_is_right_everywhere(steno: StartSteno, simulator: Simulator) -> None:
    """`full` below the trigger and `summarized` above it: in the body, the headers, the stream and the store."""
    proxy = steno()
    for history, status in ((talk(2), "full"), (LONG, "summarized")):
        raw = proxy.sdk().chat.completions.with_raw_response.create(
            model="gpt-4o",
            messages=[RULES, *history, {"role": "user", "content": "And now?"}],  # type: ignore[list-item]
        )
        answer: Any = raw.parse()
        assert raw.headers["x-context-status"] == answer.context_status == answer.context["status"] == status
        assert int(raw.headers["x-context-tokens-before"]) == answer.context["tokens"]["estimated"]
        assert int(raw.headers["x-context-tokens-after"]) == answer.context["tokens"]["forwarded"]
        assert raw.headers["x-context-window"] == "8000"
        assert answer.usage.prompt_tokens == simulator.chats[-1].prompt_tokens
        chunks = list(ask(proxy, history, "And now?", stream=True))
        marked = [chunk.context_status for chunk in chunks if hasattr(chunk, "context_status")]
        assert marked == [status, status]
        conversation = get(proxy, f"/conversations/{raw.headers['x-context-conversation-id']}")
        assert conversation["context_status"] == status


@pytest.mark.parametrize("again", ["restart", "second process"])
def test_nobody_makes_a_summary_again(steno: StartSteno, simulator: Simulator, tmp_path: Path, again: str) -> None:
    """A restart and another process on the same database reuse what is stored, byte for byte."""
    storage = {"storage": {"url": f"sqlite:///{tmp_path}/steno.db"}}
    first = steno(**storage)
    before = ask(first, LONG).context
    payload = simulator.chats[-1].body
    if again == "restart":
        first.stop()
    assert ask(steno(**storage), LONG).context == before
    assert simulator.chats[-1].body == payload
    assert calls(simulator) == 1


def test_an_edited_history_gets_no_summary_of_the_original(steno: StartSteno, simulator: Simulator) -> None:
    proxy = steno()
    ask(proxy, LONG)
    edited = [dict(message) for message in LONG]
    edited[0]["content"] = edited[0]["content"].replace("HB-4000-X", "HB-9999-Z")
    ask(proxy, edited)
    assert calls(simulator) == 2
    payload = json.dumps(sent(simulator))
    assert "HB-9999-Z" in payload
    assert "HB-4000-X" not in payload


def test_a_regenerated_answer_and_a_branch_use_only_chunks_of_their_own_messages(
    steno: StartSteno, simulator: Simulator
) -> None:
    proxy = steno()
    ask(proxy, LONG)
    ask(proxy, LONG)
    assert calls(simulator) == 1
    (chunk,) = get(proxy, f"/conversations/{_only(proxy)}/summaries")["data"]
    branch = [*LONG[: chunk["last_index"] - 3], *talk(4, first=60)]
    ask(proxy, branch)
    assert calls(simulator) == 2
    assert not any(chunk["text"] in str(message["content"]) for message in sent(simulator))


def test_another_key_never_meets_the_first_ones_conversation(steno: StartSteno, simulator: Simulator) -> None:
    proxy = steno()
    conversation = ask(proxy, LONG).context["conversation_id"]
    ask_other = proxy.sdk(api_key="sk-other").chat.completions.create
    ask_other(model="gpt-4o", messages=[RULES, *LONG, {"role": "user", "content": "Which one was that?"}])  # type: ignore[list-item]
    assert calls(simulator) == 2
    for path in ("", "/summaries", "/coverage"):
        error = get(proxy, f"/conversations/{conversation}{path}", key="sk-stranger")["error"]
        assert error["code"] == "conversation_not_found"
    assert get(proxy, "/conversations", key="sk-stranger")["data"] == []


def test_a_window_smaller_than_the_floor_is_said_and_nothing_is_tried(steno: StartSteno, simulator: Simulator) -> None:
    proxy = steno(models=[{"match": "*", "context_window": 400}])
    for _ in range(3):
        answer = ask(proxy, talk(2), question="Tell me. " + FILLER * 6)
        assert answer.context_status == "full"
        assert answer.context["reason"].startswith("floor_exceeds_limit")
    assert simulator.summaries == ()
    assert len(sent(simulator)) == 6


def test_a_bad_summary_is_asked_for_again_and_never_stored(steno: StartSteno, simulator: Simulator) -> None:
    proxy = steno()
    for text in ("", "I'm sorry, but I cannot help with that."):
        simulator.next_summary(text=text)
    assert ask(proxy, LONG).context["reason"] == "summary_refused"
    assert get(proxy, f"/conversations/{_only(proxy)}/summaries")["data"] == []
    assert ask(proxy, LONG).context["reason"] == "summary_refused, summary_failed_lately"  # Both were paid for.
    assert calls(simulator) == 2
    assert ask(proxy, talk(26, first=30)).context_status == "summarized"


def test_a_deleted_conversation_is_forgotten_with_its_summaries(steno: StartSteno, simulator: Simulator) -> None:
    proxy = steno()
    conversation = ask(proxy, LONG).context["conversation_id"]
    gone = httpx.delete(
        f"{proxy.url}/context/conversations/{conversation}", headers={"authorization": "Bearer sk-test"}
    )
    assert gone.json() == {"id": conversation, "object": "conversation.deleted", "deleted": True}
    assert get(proxy, "/conversations")["data"] == []
    ask(proxy, LONG)
    assert calls(simulator) == 2


def test_the_dry_run_says_what_would_happen_and_does_nothing(steno: StartSteno, simulator: Simulator) -> None:
    proxy = steno()
    body = {"model": "gpt-4o", "messages": [RULES, *LONG, {"role": "user", "content": "Which one was that?"}]}
    headers = {"authorization": "Bearer sk-test"}
    plan = httpx.post(f"{proxy.url}/context/plan", json=body, headers=headers).json()
    assert simulator.log == ()
    assert get(proxy, "/conversations")["data"] == []
    ask(proxy, LONG)
    done = get(proxy, f"/conversations/{_only(proxy)}/coverage")["parts"]
    assert (plan["context_status"], plan["summaries_to_make"]) == ("summarized", 1)
    assert [(p["kind"], p.get("first_index"), p.get("last_index")) for p in plan["parts"]] == [
        (p["kind"], p.get("first_index"), p.get("last_index")) for p in done
    ]


def _only(proxy: Steno) -> str:
    """The id of the one conversation there is."""
    (conversation,) = get(proxy, "/conversations")["data"]
    return str(conversation["id"])


def test_a_history_that_changes_every_turn_is_not_summarised_over_and_over(
    steno: StartSteno, simulator: Simulator
) -> None:
    """A client that writes the time into its first message would pay for a summary each turn and use none."""
    proxy = steno()
    reasons = []
    for minute in range(5):
        stamped = [{"role": "user", "content": f"It is 09:0{minute}. {FILLER}"}, *LONG[1:48], *talk(minute, first=60)]
        reasons.append(ask(proxy, stamped).context["reason"])
    assert reasons == [None, None, *["history_changes_every_turn"] * 3]
    assert calls(simulator) == 2


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["default", "librechat-checkpoint"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_conversations_that_go_on_alike_after_different_beginnings_are_all_summarised(
    steno: StartSteno, named: bool, preset: str
) -> None:
    """Templates, evaluations, gateways with one key: what differs is another conversation, not a changed one."""
    proxy = steno(compaction={"preset": preset})
    told = []
    for person in ("Ann", "Bob", "Cyd", "Dan"):
        for turns in range(21, 26):
            greeted = [{"role": "user", "content": f"Hello, I am {person}."}, *talk(turns)[1:]]
            options: Any = {"extra_headers": {"x-conversation-id": person}} if named else {}
            told.append(ask(proxy, greeted, **options).context)
    assert {each["reason"] for each in told} == {None}
    assert [each["status"] for each in told][4::5] == ["summarized"] * 4


def test_a_history_that_was_only_asked_about_is_a_new_one_to_the_next_request(steno: StartSteno) -> None:
    """A dry run leaves no trace: a chat that goes on from it does not continue its conversation."""
    proxy, asked = steno(), [RULES, *talk(2), {"role": "user", "content": "Which one was that?"}]
    key = {"authorization": "Bearer sk-test"}
    planned = httpx.post(f"{proxy.url}/context/plan", headers=key, json={"model": "gpt-4o", "messages": asked}).json()
    went_on = [*talk(2), asked[-1], {"role": "assistant", "content": "Booking 1."}]
    id_, planned_id = ask(proxy, went_on).context["conversation_id"], planned["context"]["conversation_id"]
    assert id_ != planned_id
    assert ask(proxy, [*went_on, *talk(1, first=9)]).context["conversation_id"] == id_


def test_a_named_history_that_changes_every_turn_is_not_summarised_over_and_over(steno: StartSteno) -> None:
    proxy, reasons = steno(), []
    for minute in range(4):
        stamped = [{"role": "user", "content": f"It is 09:0{minute}. {FILLER}"}, *LONG[1:48], *talk(minute, first=60)]
        answer = ask(proxy, stamped, extra_headers={"x-conversation-id": "one"})
        reasons.append(answer.context["reason"])
    assert reasons == [None, None, *["history_changes_every_turn"] * 2]


@pytest.mark.slow
@pytest.mark.parametrize("status", [400, 503])
def test_a_dead_summariser_is_named_for_as_long_as_it_is_missed(
    steno: StartSteno, simulator: Simulator, status: int
) -> None:
    """A pause that its failures led to is told beside them, not in their place."""
    proxy = steno()
    simulator.when(lambda record: record.kind == "summary", status=status)
    others = [ask(proxy, [*talk(1, first=90 + other), *LONG]).context["reason"] for other in range(4)]
    mine = [ask(proxy, [*LONG, *talk(turns, first=60)]).context["reason"] for turns in range(4)]
    assert {reason.split(", ")[0] for reason in [*others, *mine]} == {f"summariser_status_{status}"}
    assert mine[-1].endswith("summary_failed_lately")


def test_a_summary_that_keeps_failing_is_not_asked_for_on_every_request(
    steno: StartSteno, simulator: Simulator
) -> None:
    proxy = steno()
    simulator.when(lambda record: record.kind == "summary", status=500)
    reasons = [ask(proxy, [*LONG, *talk(turns, first=60)]).context["reason"] for turns in range(4)]
    assert reasons == ["summariser_status_500"] * 2 + ["summariser_status_500, summary_failed_lately"] * 2
    assert calls(simulator) == 4  # Each of the two is tried again once.


@pytest.mark.slow
def test_a_summary_that_keeps_failing_is_not_asked_for_either_where_messages_have_to_be_left_out_for_it(
    steno: StartSteno, simulator: Simulator
) -> None:
    """The history is too large without one, but what the policy leaves out instead will do for a while."""
    proxy = steno()
    simulator.when(lambda record: record.kind == "summary", status=400)
    told = [ask(proxy, [*LONG, *talk(60 + turns, first=60)]).context for turns in range(4)]
    assert [each["status"] for each in told] == ["trimmed"] * 4
    assert ["pruned" in each["actions"] for each in told] == [True] * 4
    assert [each["reason"].endswith("summary_failed_lately") for each in told] == [False, False, True, True]


@pytest.mark.slow
def test_where_only_a_summary_helps_a_changing_history_is_summarised_all_the_same(steno: StartSteno) -> None:
    """Over the limit the choice is between paying for a summary and a conversation that dies."""
    proxy = steno()
    for minute in range(4):
        stamped = [{"role": "user", "content": f"It is 09:0{minute}. {FILLER}"}, *talk(36 + minute)[1:]]
        assert ask(proxy, stamped).context_status == "summarized"


WORDS = (
    "the harbour office asked whether a delayed shipment could still reach the northern warehouse before friday because"
    " several customers had already paid for express delivery and wanted a refund otherwise"
)


@pytest.mark.slow
def test_a_summary_serves_many_turns_and_the_prefix_stays(steno: StartSteno, simulator: Simulator) -> None:
    """24 turns of 3.6 KB in an 8,192-token window: at most 4 summary calls, all other turns extend the prompt."""
    simulator.window = 8_192
    client = steno(models=[{"match": "*", "context_window": 8_192}]).sdk()
    chance = Random(1)
    messages: Messages = [RULES]
    previous, breaks = "", 0
    for turn in range(24):
        for role in ("user", "assistant"):
            messages.append({"role": role, "content": f"{turn} " + " ".join(chance.choices(WORDS.split(), k=270))})
            if role == "user":
                asked: Any = messages
                client.chat.completions.create(model="gpt-4o", messages=asked, max_tokens=1_024)
                payload = json.dumps(sent(simulator)).removesuffix("]")
                kept = next(
                    (i for i, (a, b) in enumerate(zip(previous, payload, strict=False)) if a != b), len(previous)
                )
                breaks += kept < 0.95 * len(previous)
                previous = payload
    assert 0 < calls(simulator) <= 4
    # The latest may have been made ahead, for a turn that did not come.
    assert calls(simulator) - breaks in (0, 1)

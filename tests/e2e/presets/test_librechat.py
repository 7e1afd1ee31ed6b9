"""LibreChat, with summaries (`librechat`) and without (`librechat-fading`): lines A and B of checklist.md."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.core.stages.fade import BANDS as FADING_BANDS
from app.settings import ConfigurationError, load
from app.settings.presets import LIBRECHAT_PROMPT, LIBRECHAT_UPDATE_PROMPT
from lab.simulator import Fault, Model, Record, Simulator
from tests.e2e.histories import MODEL, calls, chat, result, said, turns
from tests.e2e.presets.checklist import Mutant, checklist
from tests.e2e.presets.talks import QUESTION, answered_reads, context, instructions, padded, read, sent, text, wide
from tests.e2e.raw import Answer, get, post
from tests.e2e.running import StartSteno, Steno

LIMIT = 7_600
"""What a window of 8,000 leaves for the prompt."""
SUMMING_UP: Any = {"preset": "librechat"}
FADING: Any = {"preset": "librechat-fading"}
NOTICE = re.compile(r"\n\[\.\.\. (\d+) characters in all, shortened \.\.\.\]\n")


def before(answered: Answer) -> int:
    return int(answered.header("x-context-tokens-before") or 0)


def original_size(content: str) -> int:
    found = NOTICE.search(content)
    assert found, content[:400]
    return int(found[1])


def left(content: str) -> int:
    """Characters that are left of a shortened text."""
    return len(NOTICE.sub("", content, count=1))


def shortened(messages: list[Any]) -> list[Any]:
    return [m for m in messages if m["role"] == "tool" and NOTICE.search(m["content"])]


def masked_bytes(record: Record) -> dict[str, bytes]:
    """The shortened results as they were sent, to the byte, by the call they answer."""
    raw = msgspec.json.decode(
        msgspec.json.decode(record.body, type=dict[str, msgspec.Raw])["messages"], type=list[msgspec.Raw]
    )
    pairs = zip(record.messages or [], raw, strict=True)
    return {m["tool_call_id"]: bytes(part) for m, part in pairs if shortened([m])}


def prompts(record: Record) -> str:
    """All that a summary call was told."""
    return json.dumps(record.messages, ensure_ascii=False)


def check_pairs(messages: list[Any]) -> None:
    """Every call is answered right after it, every result called for."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in waiting
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        assert message.get("tool_calls") != []
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    assert not waiting


def spoken(messages: list[Any]) -> list[Any]:
    return [m["content"] for m in messages if m["role"] == "assistant" and m["content"]]


# A: with summaries


@checklist("A1")
def test_what_is_masked_is_head_and_tail_and_tells_its_size(simulator: Simulator, steno: StartSteno) -> None:
    talk = [said("system", "Be brief."), *answered_reads(10, 700), QUESTION]
    assert context(post(steno(compaction=SUMMING_UP).url, chat(talk)))["actions"] == ["masked"]
    for message, whole in zip(sent(simulator.chats[-1]), talk, strict=True):
        if whole["role"] != "tool":
            assert message == whole
            continue
        assert left(message["content"]) == 300
        assert message["content"].startswith(whole["content"][:210])
        assert message["content"].endswith(whole["content"][-90:])
        assert original_size(message["content"]) == len(whole["content"])
    assert not simulator.summaries


@checklist("A2")
def test_results_that_wait_for_an_answer_and_the_assistants_texts_are_whole_while_the_prompt_fits(
    simulator: Simulator, steno: StartSteno
) -> None:
    proxy = steno(compaction=SUMMING_UP)
    long = [said("user", "Tell me more."), said("assistant", text(90, 900))]
    newest = [*read(50, 700), calls("c51", "c52"), result("c51", text(51, 900)), result("c52", text(52, 900))]
    talk = padded(proxy, [*long, *answered_reads(5, 500), *newest], -1, LIMIT)
    assert context(post(proxy.url, chat(talk)))["actions"] == ["masked"]
    payload = sent(simulator.chats[-1])
    assert payload[-5:] == newest[:-1] + talk[-1:]
    assert spoken(payload) == spoken(talk)
    assert len(shortened(payload)) == 5


@checklist("A3")
def test_a_masked_message_keeps_its_bytes_for_ten_requests_and_a_restart(
    simulator: Simulator, steno: StartSteno, tmp_path: Path
) -> None:
    settings: Any = {"compaction": SUMMING_UP, "storage": {"url": f"sqlite:///{tmp_path}/steno.db"}}
    settings["models"] = wide(16_000, simulator)
    proxy = steno(**settings)
    talk = [*answered_reads(14, 900), QUESTION]
    for turn in range(11):
        if turn == 5:
            proxy.stop()
            proxy = steno(**settings)
        assert "masked" in context(post(proxy.url, chat(talk)))["actions"]
        talk += [*read(20 + turn, 300), said("assistant", "Fine."), said("user", f"And {turn}?")]
    held = [masked_bytes(record) for record in simulator.chats]
    assert len(held[0]) == 14
    for earlier, later in pairwise(held):
        assert earlier.items() <= later.items()
    assert not simulator.summaries


def test_masks_of_later_results_come_in_batches(simulator: Simulator, steno: StartSteno) -> None:
    """Each new mask breaks the provider's prompt cache, so most payloads extend the one before."""
    proxy = steno(compaction=SUMMING_UP, models=wide(16_000, simulator))
    talk = [*answered_reads(14, 900), QUESTION]
    for turn in range(12):
        post(proxy.url, chat(talk))
        talk += [*read(20 + turn, 1_200), said("assistant", "Fine."), said("user", f"And {turn}?")]
    payloads = [sent(simulator.chats[place]) for place in range(12)]
    broken = [later[: len(earlier)] != earlier for earlier, later in pairwise(payloads)]
    assert 1 <= sum(broken) <= 3


@checklist("A4")
@pytest.mark.parametrize(("number", "characters"), [(1, 20), (2, 30_000)])
def test_results_larger_than_the_budget_are_cut_to_30_percent_of_it_and_the_older_to_6(
    number: int, characters: int, simulator: Simulator, steno: StartSteno
) -> None:
    proxy = steno(compaction=SUMMING_UP)
    names = [f"c{call}" for call in range(number)]
    arguments = json.dumps({"query": "all of it " * (characters // 10)})
    talk = [QUESTION, calls(*names, arguments=arguments), *(result(name, text(7, 30_000)) for name in names)]
    assert context(post(proxy.url, chat(talk)))["actions"] == ["shortened"]
    question, called, *results = sent(simulator.chats[-1])
    assert (question, called == talk[1]) == (QUESTION, number == 1)
    room = LIMIT - instructions(proxy, talk)
    sizes = [left(message["content"]) for message in results]
    assert sizes == [pytest.approx(weight * int(0.30 * room) * 4, abs=1) for weight in (0.2, 1.0)[-number:]]
    assert {original_size(message["content"]) for message in results} == {len(talk[-1]["content"])}
    for call in called["tool_calls"]:
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
        assert len(call["function"]["arguments"]) <= int(0.15 * room) * 4 + 100
    check_pairs(sent(simulator.chats[-1]))


@checklist("A5")
@pytest.mark.parametrize("model", [MODEL, "house-model"])
def test_the_second_request_is_judged_with_what_the_provider_reported_for_the_first(
    model: str, simulator: Simulator, steno: StartSteno
) -> None:
    simulator.skew = 1.25
    proxy = steno(compaction=SUMMING_UP, models=wide(64_000, simulator))
    talk = [*answered_reads(20, 2_010), QUESTION]
    first = post(proxy.url, chat(talk, model=model))
    local = (simulator.chats[0].prompt_tokens or 0) / 1.25
    assert local < 0.80 * 60_800 < 1.25 * local
    assert context(first)["actions"] == []
    second = post(proxy.url, chat(talk, model=model))
    assert before(second) / local == pytest.approx(1.25, abs=0.02)
    assert context(second)["actions"] == ["masked"]


def calibration(proxy: Steno) -> Any:
    (entry,) = get(proxy.url, "/context/calibration").json["data"]
    return entry


@checklist("A5")
def test_usage_above_the_configured_window_is_a_measurement(simulator: Simulator, steno: StartSteno) -> None:
    simulator.window, simulator.skew = 32_000, 1.4
    proxy = steno(compaction=SUMMING_UP)
    body = chat(padded(proxy, [*turns(9, 300), QUESTION], -1, 7_000))
    post(proxy.url, body)
    assert (simulator.chats[0].prompt_tokens or 0) > 8_000
    answered = post(proxy.url, body)
    assert before(answered) == pytest.approx(9_800, rel=0.02)
    assert context(answered)["status"] == "summarized"


def schemas(number: int) -> list[Any]:
    """Tools that take about 35 tokens each."""
    properties = {"order": {"type": "string", "description": "The order's number, as it is printed on the parcel."}}
    parameters = {"type": "object", "properties": properties}
    return [
        {
            "type": "function",
            "function": {"name": f"find_{tool}", "description": "Where the parcel is.", "parameters": parameters},
        }
        for tool in range(number)
    ]


@checklist("A6")
def test_tool_schemas_that_cost_half_as_much_again_are_learnt_apart_from_the_messages(
    simulator: Simulator, steno: StartSteno
) -> None:
    tools = schemas(40)
    proxy = steno(compaction=SUMMING_UP, models=wide(128_000, simulator))
    schema_tokens = instructions(proxy, [QUESTION], tools=tools)
    assert schema_tokens > 1_000
    simulator.offset = schema_tokens // 2
    for number in (1, 12, 3, 25, 6):
        post(proxy.url, chat(turns(number, 500), tools=tools))
    assert calibration(proxy)["ratio"] == pytest.approx(1, abs=0.03)
    learnt = instructions(proxy, [QUESTION], tools=tools)
    assert learnt == pytest.approx(1.5 * schema_tokens, rel=0.15)


@checklist("A7")
def test_an_unknown_kind_of_trigger_is_refused_at_the_start_with_its_name() -> None:
    with pytest.raises(ConfigurationError, match=r"compaction\.trigger\.moon_phase is not a setting"):
        load(compaction=SUMMING_UP | {"trigger": {"moon_phase": 3}})


@checklist("A8")
def test_no_second_summary_while_no_message_was_added(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(compaction=SUMMING_UP)
    assert context(post(proxy.url, chat(turns(20))))["status"] == "summarized"
    made = len(simulator.summaries)
    for _ in range(2):
        assert context(post(proxy.url, chat(turns(20))))["status"] == "summarized"
    assert len(simulator.summaries) == made
    assert sent(simulator.chats[0]) == sent(simulator.chats[1]) == sent(simulator.chats[2])


@checklist("A8")
def test_after_an_overflow_error_another_is_made_all_the_same(simulator: Simulator, steno: StartSteno) -> None:
    simulator.window = 32_000
    tail = {"tail": {"turns": 14}}
    proxy = steno(compaction=SUMMING_UP | tail, models=[{"match": "*", "context_window": 16_000}])
    body = chat(turns(40))
    assert context(post(proxy.url, body))["actions"] == ["summarized"]
    made = len(simulator.summaries)
    kept = len(sent(simulator.chats[-1]))
    simulator.window = 5_000
    answered = post(proxy.url, body)
    assert context(answered)["actions"] == ["summarized", "recovered"]
    assert [record.status for record in simulator.chats] == [200, 400, 200]
    assert len(simulator.summaries) > made
    assert len(sent(simulator.chats[-1])) < kept


@checklist("A9")
def test_the_summariser_reads_in_full_what_was_masked(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(compaction=SUMMING_UP)
    talk = [*answered_reads(9, 600), *turns(1, 300)]
    assert context(post(proxy.url, chat(talk)))["actions"] == ["masked"]
    grown = [*talk, said("assistant", "Fine."), *turns(8, 400)]
    assert context(post(proxy.url, chat(grown)))["status"] == "summarized"
    shown = "".join(map(prompts, simulator.summaries))
    for step in range(9):
        assert text(step, 600) in shown
    assert "characters in all" not in shown


def summary_message(payload: list[Any]) -> str:
    found = [m["content"] for m in payload if m["role"] == "user" and m["content"].startswith("[Notes on messages")]
    assert len(found) == 1
    content: str = found[0]
    return content


@checklist("A10")
@pytest.mark.parametrize(("settings", "kept"), [({}, 1), ({"tail": {"turns": 1}}, 3)])
def test_after_a_compaction_the_instructions_the_summary_and_the_tail_are_left(
    simulator: Simulator, steno: StartSteno, settings: Any, kept: int
) -> None:
    system = said("system", "You are kind and brief.")
    post(steno(compaction=SUMMING_UP | settings).url, chat([system, *turns(20)]))
    first, summary, *rest = sent(simulator.chats[-1])
    assert first == system
    assert summary_message([summary])
    assert rest == turns(20)[-kept:]
    assert LIBRECHAT_PROMPT in prompts(simulator.summaries[0]).replace("\\n", "\n")


@checklist("A10")
def test_the_second_compaction_updates_the_first_ones_summary(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(compaction=SUMMING_UP)
    post(proxy.url, chat(turns(20)))
    first = simulator.summaries[-1].text or ""
    assert LIBRECHAT_UPDATE_PROMPT not in prompts(simulator.summaries[0]).replace("\\n", "\n")
    simulator.clear_log()
    post(proxy.url, chat(turns(40)))
    told = prompts(simulator.summaries[0]).replace("\\n", "\n")
    assert LIBRECHAT_UPDATE_PROMPT in told
    assert json.dumps(first, ensure_ascii=False)[1:-1].replace("\\n", "\n") in told
    payload = sent(simulator.chats[-1])
    assert len(payload) == 2
    assert "messages 1 to 80" in summary_message(payload)
    read = "".join(map(prompts, simulator.summaries))
    assert all(f"Question {turn}, order ORD-{turn:04d}." in read for turn in range(1, 41)), "it reads all of it again"


@checklist("A16")
def test_the_operators_parameters_go_to_the_summariser_and_to_nobody_else(
    simulator: Simulator, steno: StartSteno
) -> None:
    proxy = steno(compaction=SUMMING_UP, summary={"parameters": {"temperature": 0.2, "top_p": 0.5}})
    assert context(post(proxy.url, chat(turns(20))))["status"] == "summarized"
    summary, talk = simulator.summaries[-1].payload, simulator.chats[-1].payload
    assert (summary["temperature"], summary["top_p"]) == (0.2, 0.5)
    assert not {"temperature", "top_p"} & set(talk)


@checklist("A17")
def test_the_order_to_summarise_is_the_users_to_the_model(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(compaction=SUMMING_UP, summary={"parameters": {"temperature": 0}})
    for number in (20, 40):
        simulator.clear_log()
        post(proxy.url, chat(turns(number)))
        order = simulator.summaries[0].messages[-1]  # type: ignore[index]
        assert order["role"] == "user"
        assert re.match(r"Wait\b.* I need .*\byour?\b", order["content"])
        assert "as the user" not in order["content"]
        assert "do not answer me and do not go on with the task" in order["content"]


def of_model(name: str) -> Any:
    return lambda record: record.kind == "summary" and record.payload["model"] == name


@checklist("A11")
def test_a_summariser_that_is_down_is_replaced_by_the_fallback(simulator: Simulator, steno: StartSteno) -> None:
    simulator.when(of_model(MODEL), status=500)
    proxy = steno(compaction=SUMMING_UP, summary={"fallbacks": [{"model": "gpt-4.1-mini"}]})
    answered = post(proxy.url, chat(turns(20), conversation_id="one"))
    assert context(answered)["status"] == "summarized"
    assert simulator.summaries[-1].payload["model"] == "gpt-4.1-mini"
    (stored,) = get(proxy.url, "/context/conversations/one/summaries").json["data"]
    assert stored["model"] == "gpt-4.1-mini"


@checklist("A11")
def test_where_both_are_down_nothing_is_stored_and_the_conversation_goes_on(
    simulator: Simulator, steno: StartSteno
) -> None:
    simulator.summary_default = Fault(status=500)
    proxy = steno(compaction=SUMMING_UP, summary={"fallbacks": [{"model": "gpt-4.1-mini"}]})
    answered = post(proxy.url, chat(turns(20), conversation_id="one"))
    assert answered.status == 200
    assert context(answered)["status"] == "trimmed"
    assert context(answered)["actions"] == ["pruned", "stub"]
    assert answered.header("x-context-actions") == "pruned,stub"
    assert "summariser_status_500" in (answered.header("x-context-reason") or "")
    assert sent(simulator.chats[-1])[-1] == turns(20)[-1]
    assert {record.payload["model"] for record in simulator.summaries} == {MODEL, "gpt-4.1-mini"}
    assert get(proxy.url, "/context/conversations/one/summaries").json["data"] == []


@checklist("A12")
def test_failed_results_stand_after_the_summary_at_most_eight_of_240_characters(
    simulator: Simulator, steno: StartSteno
) -> None:
    failing: list[Any] = []
    for number in range(11):
        failure = f"Error: step {number} broke. " + "x" * 500
        failing += [said("user", f"Step {number}."), calls(f"f{number}"), result(f"f{number}", failure)]
        failing.append(said("assistant", "It failed."))
    fine = [said("user", "Step."), calls("ok"), result("ok", "all went well, no errors"), said("assistant", "Good.")]
    post(steno(compaction=SUMMING_UP).url, chat([*failing, *fine, *turns(18)]))
    _, *lists = summary_message(sent(simulator.chats[-1])).split("Tool calls that failed:\n")
    (listed,) = lists
    lines = listed.split("\n</notes")[0].split("\n")
    assert len(lines) == 8
    for number, line in zip(range(3, 11), lines, strict=True):
        assert line.startswith(f"- read: Error: step {number} broke.")
        assert len(line.removeprefix("- read: ")) == 240


@checklist("A13")
def test_instructions_over_the_budget_are_named_and_nothing_is_summarised(
    simulator: Simulator, steno: StartSteno
) -> None:
    simulator.window = 32_000
    proxy = steno(compaction=SUMMING_UP)
    tools = schemas(40)
    talk = [said("system", "rule" + " the" * 7_000), *turns(5)]
    declared = instructions(proxy, [QUESTION], tools=tools)
    answered = post(proxy.url, chat(talk, tools=tools))
    reason = context(answered)["reason"]
    assert reason.startswith("floor_exceeds_limit")
    told = re.search(r"the instructions take about (\d+) tokens, tools and format (\d+)", reason)
    assert told
    assert int(told[1]) == pytest.approx(7_005, abs=10)
    assert int(told[2]) == pytest.approx(declared, abs=10)
    assert sent(simulator.chats[-1]) == talk
    assert not simulator.summaries


def agents_day(turn: int) -> list[Any]:
    """A turn with parallel calls, a long result now and then, and text between the calls."""
    one, two, three = f"a{turn}", f"b{turn}", f"c{turn}"
    return [
        said("user", f"Task {turn}." + " the" * (50 * (turn % 5))),
        calls(one, two, content="I look." if turn % 2 else None),
        result(one, text(turn, 400 if turn % 3 else 1_500)),
        result(two, text(turn, 30)),
        calls(three, arguments=json.dumps({"what": "the " * (20 + 300 * (turn % 7 == 0))})),
        result(three, text(turn, 900 if turn % 4 == 0 else 60)),
        said("assistant", f"Task {turn} is done."),
    ]


@checklist("A14")
@pytest.mark.parametrize("preset", ["librechat", "librechat-fading"])
def test_no_payload_holds_an_unpaired_call_or_result(preset: str, simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(compaction={"preset": preset})
    talk: list[Any] = [said("system", "Be brief.")]
    for turn in range(14):
        day = agents_day(turn)
        for stop in (1, 4, 6):
            assert post(proxy.url, chat([*talk, *day[:stop]])).status == 200
        talk += day
    for record in simulator.log:
        check_pairs(record.messages or [])
    assert bool(simulator.summaries) == (preset == "librechat")


# B: without summaries


@pytest.mark.slow
@checklist("B1")
def test_no_summary_is_ever_made_and_the_actions_name_what_was_done(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(compaction=FADING)
    talk: list[Any] = [said("system", "Be brief.")]
    done: set[str] = set()
    for turn in range(16):
        talk += agents_day(turn)
        for added in ([QUESTION], [QUESTION, *read(1, 500), *read(2, 1_500)], [QUESTION, *read(1, 4_000)]):
            told = context(post(proxy.url, chat([*talk, *added])))
            assert told["status"] == ("trimmed" if told["actions"] else "full")
            done.update(told["actions"])
    assert not simulator.summaries
    assert {"masked", "faded", "pruned"} <= done
    assert done <= {"masked", "faded", "pruned", "truncated"}


@checklist("B2")
def test_a_faded_result_has_the_size_of_the_formula(simulator: Simulator, steno: StartSteno) -> None:
    window, limit = 40_000, 38_000
    proxy = steno(compaction=FADING, models=wide(window, simulator))
    talk = [said("system", "Be brief."), QUESTION, *(m for number in range(5) for m in read(number, 5_800))]
    talk = padded(proxy, talk, 1, instructions(proxy, talk) + ceil(0.99 * limit))
    assert context(post(proxy.url, chat(talk)))["actions"] == ["faded"]
    longest = int(0.30 * (limit - instructions(proxy, talk)) * 0.05) * 4
    now = [message for message in sent(simulator.chats[-1]) if message["role"] == "tool"]
    expected = [max(200, longest * (0.2 + 0.2 * rank)) for rank in range(5)]
    assert [left(message["content"]) for message in now] == [pytest.approx(size, abs=1) for size in expected]
    assert [original_size(m["content"]) for m in now] == [len(m["content"]) for m in talk if m["role"] == "tool"]


@checklist("B4")
def test_over_the_budget_the_oldest_leave_first_in_whole_units(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(compaction=FADING)
    system = said("system", "You are kind and brief.")
    rule = said("system", "From now on answer in French.")
    talk = [system, *turns(6)[:-1], rule, *answered_reads(6, 60), *turns(16)[:-1], *agents_day(1)[:4]]
    answered = post(proxy.url, chat(talk, conversation_id="one"))
    assert context(answered)["actions"] == ["faded", "pruned"]
    payload = sent(simulator.chats[-1])
    check_pairs(payload)
    assert payload[:2] == [system, rule]
    assert payload[-4] == talk[-4]
    parts = get(proxy.url, "/context/conversations/one/coverage").json["parts"]
    gone = [part for part in parts if part["kind"] == "pruned"]
    assert gone[0]["first_index"] == 0
    assert gone[-1]["last_index"] < len(talk) // 2 + 4
    kept = [m for m in payload if m not in (system, rule)]
    assert len(kept) == len(talk) - 2 - sum(part["last_index"] - part["first_index"] + 1 for part in gone)
    first = talk.index(kept[0], talk.index(rule))
    assert [m["role"] for m in kept] == [m["role"] for m in talk[first:]]
    assert not simulator.summaries


@checklist("B5")
def test_a_result_larger_than_the_window_is_cut_and_for_a_larger_model_whole_again(
    simulator: Simulator, steno: StartSteno
) -> None:
    simulator.models = {"gpt-4o": Model("gpt-4o"), "gpt-4.1": Model("gpt-4.1", window=64_000)}
    windows: Any = [{"match": "gpt-4.1", "context_window": 64_000}, {"match": "*", "context_window": 8_000}]
    proxy = steno(compaction=FADING, models=windows)
    huge = [QUESTION, calls("c1"), result("c1", text(1, 20_000))]
    assert context(post(proxy.url, chat(huge)))["actions"] == ["faded"]
    payload = sent(simulator.chats[-1])
    assert payload[:-1] == huge[:-1]
    assert original_size(payload[-1]["content"]) == len(huge[-1]["content"])
    assert context(post(proxy.url, chat(huge, model="gpt-4.1")))["actions"] == []
    assert sent(simulator.chats[-1]) == huge


@checklist("B5")
def test_emergency_truncation_makes_a_valid_payload_and_is_for_one_request_only(
    simulator: Simulator, steno: StartSteno
) -> None:
    proxy = steno(compaction=FADING)
    names = [f"c{number}" for number in range(60)]
    first = result(names[0], text(0, 2_000))
    everything = [QUESTION, calls(*names), first, *(result(name, text(1, 2_000)) for name in names[1:])]
    answered = post(proxy.url, chat(everything))
    assert context(answered)["actions"] == ["truncated"]
    payload = sent(simulator.chats[-1])
    check_pairs(payload)
    assert (simulator.chats[-1].prompt_tokens or 0) <= int(answered.header("x-context-tokens-after") or 0) <= LIMIT
    for message, whole in zip(payload[2:], everything[2:], strict=True):
        assert original_size(message["content"]) == len(whole["content"])
    smaller = chat([QUESTION, calls(names[0]), first])
    assert context(post(proxy.url, smaller))["actions"] == []
    assert simulator.chats[-1].body == smaller


@checklist("B6")
def test_a_clients_orphans_are_repaired_counted_and_reported(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(compaction=FADING)
    orphans = [
        *(result("nobody", "of no call"), calls("unanswered")),
        *(said("user", "Both?"), calls("x1", "x2", content="Both."), result("x1", "one"), said("assistant", "One.")),
    ]
    talk = [*turns(20)[:-1], *orphans, QUESTION]
    answered = post(proxy.url, chat(talk, conversation_id="one"))
    assert context(answered)["actions"] == ["pruned", "repaired"]
    check_pairs(sent(simulator.chats[-1]))
    assert [call["id"] for m in sent(simulator.chats[-1]) for call in m.get("tool_calls") or ()] == ["x1"]
    parts = get(proxy.url, "/context/conversations/one/coverage").json["parts"]
    first = len(turns(20)) - 1
    removed = [(p["first_index"], p["last_index"]) for p in parts if p["kind"] == "pruned" and p["by"] == "repaired"]
    assert [place for start, stop in removed for place in range(start, stop + 1)] == [first, first + 1]
    assert [p["first_index"] for p in parts if p["kind"] == "repaired"] == [first + 3]


@checklist("B6")
def test_where_the_payload_is_the_clients_own_it_is_for_the_provider_to_judge(
    simulator: Simulator, steno: StartSteno
) -> None:
    body = chat([*turns(2)[:-1], result("nobody", "of no call"), QUESTION])
    answered = post(steno(compaction=FADING).url, body)
    assert answered.status == 400
    assert simulator.chats[0].body == body


MUTANTS = (
    Mutant(
        "librechat",
        "app.core.view.mask.Masks.between",
        # Whatever stands before the boundary.
        lambda masks, start, stop: [
            (index, masks._masks[index]) for index in range(start, stop) if index in masks._masks
        ],
        test_results_that_wait_for_an_answer_and_the_assistants_texts_are_whole_while_the_prompt_fits,
    ),
    Mutant(
        "librechat-fading",
        "app.core.stages.fade.BANDS",
        tuple(reversed(FADING_BANDS)),  # the first band that is reached, not the last
        test_a_faded_result_has_the_size_of_the_formula,
    ),
)
